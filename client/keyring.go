package client

import (
	stded25519 "crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/cometbft/cometbft/crypto/ed25519"
)

var (
	// ErrNoSuchKey means that the keyring has no key of that name.
	ErrNoSuchKey = errors.New("no such key")
	// ErrKeyExists means that a key would be overwritten.
	ErrKeyExists = errors.New("the key exists already")
)

const (
	keyType   = "ed25519"
	keySuffix = ".json"
	keyMode   = 0o600
	dirMode   = 0o700
)

var keyName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// Keyring is a folder of private keys, one file NAME.json for each, readable by the owner only. The
// keys are not encrypted: anybody who can read the file controls the account.
type Keyring struct {
	dir string
}

// NewKeyring returns the keyring in dir. The folder is created with the first key.
func NewKeyring(dir string) *Keyring { return &Keyring{dir: dir} }

// KeyInfo is the public part of a key.
type KeyInfo struct {
	Name      string
	PublicKey ed25519.PubKey
}

type keyFile struct {
	Type      string `json:"type"`
	PublicKey string `json:"public_key"` // hex
	Seed      string `json:"seed"`       // hex; RFC 8032's private key
}

// Add creates a random key.
func (k *Keyring) Add(name string) (KeyInfo, error) {
	seed := make([]byte, ed25519.SeedSize)
	if _, err := rand.Read(seed); err != nil {
		return KeyInfo{}, fmt.Errorf("keyring: %w", err)
	}
	return k.Import(name, seed)
}

// Import stores a key by its 32 byte seed, or by the 64 bytes of seed and public key.
func (k *Keyring) Import(name string, private []byte) (KeyInfo, error) {
	if err := checkName(name); err != nil {
		return KeyInfo{}, err
	}
	if len(private) != ed25519.SeedSize && len(private) != ed25519.PrivateKeySize {
		return KeyInfo{}, fmt.Errorf("keyring: an ed25519 private key has %d or %d bytes, this one has %d", ed25519.SeedSize, ed25519.PrivateKeySize, len(private))
	}
	priv := stded25519.NewKeyFromSeed(private[:ed25519.SeedSize])
	if len(private) == ed25519.PrivateKeySize && !slices.Equal(priv, private) {
		return KeyInfo{}, errors.New("keyring: the second half of the private key is not the public key of the first")
	}
	info := KeyInfo{Name: name, PublicKey: ed25519.PrivKey(priv).PubKey().Bytes()}
	content, err := json.MarshalIndent(keyFile{Type: keyType, PublicKey: hex.EncodeToString(info.PublicKey), Seed: hex.EncodeToString(priv.Seed())}, "", "  ")
	if err != nil {
		return KeyInfo{}, fmt.Errorf("keyring: %w", err)
	}
	return info, k.write(name, append(content, '\n'))
}

// write never overwrites a key and never leaves half of one: the file is complete and durable
// before it gets its name.
func (k *Keyring) write(name string, content []byte) (err error) {
	if err := os.MkdirAll(k.dir, dirMode); err != nil {
		return fmt.Errorf("keyring: %w", err)
	}
	f, err := os.CreateTemp(k.dir, ".new-*") // mode 0600
	if err != nil {
		return fmt.Errorf("keyring: %w", err)
	}
	defer func() { err = errors.Join(err, os.Remove(f.Name())) }()
	_, err = f.Write(content)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("keyring: %w", err)
	}
	if err := os.Link(f.Name(), k.path(name)); errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: %s (%s); choose another name, or move the file away", ErrKeyExists, name, k.path(name))
	} else if err != nil {
		return fmt.Errorf("keyring: %w", err)
	}
	return nil
}

// Get returns a private key.
func (k *Keyring) Get(name string) (ed25519.PrivKey, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	path := k.path(name)
	stat, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %q is not in %s; `starlingd keys list` shows what is, `starlingd keys add %s` makes it", ErrNoSuchKey, name, k.dir, name)
	} else if err != nil {
		return nil, fmt.Errorf("keyring: %w", err)
	}
	if mode := stat.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("keyring: others can read %s (mode %04o): if nobody has, `chmod 600 %s`", path, mode, path)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("keyring: %w", err)
	}
	var file keyFile
	if err := json.Unmarshal(content, &file); err != nil {
		return nil, fmt.Errorf("keyring: %s is damaged: %w", path, err)
	}
	seed, err := hex.DecodeString(file.Seed)
	if err != nil || len(seed) != ed25519.SeedSize || file.Type != keyType {
		return nil, fmt.Errorf("keyring: %s is damaged: no %s seed of %d bytes in it", path, keyType, ed25519.SeedSize)
	}
	priv := ed25519.PrivKey(stded25519.NewKeyFromSeed(seed))
	if public := hex.EncodeToString(priv.PubKey().Bytes()); public != file.PublicKey {
		return nil, fmt.Errorf("keyring: %s is damaged: its seed has public key %s, it says %s", path, public, file.PublicKey)
	}
	return priv, nil
}

// Show returns the public part of a key.
func (k *Keyring) Show(name string) (KeyInfo, error) {
	priv, err := k.Get(name)
	if err != nil {
		return KeyInfo{}, err
	}
	return KeyInfo{Name: name, PublicKey: priv.PubKey().Bytes()}, nil
}

// List returns the keys by name.
func (k *Keyring) List() ([]KeyInfo, error) {
	files, err := os.ReadDir(k.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("keyring: %w", err)
	}
	var all []KeyInfo
	for _, f := range files {
		name, ok := strings.CutSuffix(f.Name(), keySuffix)
		if !ok || checkName(name) != nil {
			continue
		}
		info, err := k.Show(name)
		if err != nil {
			return nil, err
		}
		all = append(all, info)
	}
	return all, nil
}

func (k *Keyring) path(name string) string { return filepath.Join(k.dir, name+keySuffix) }

func checkName(name string) error {
	if !keyName.MatchString(name) {
		return fmt.Errorf("keyring: %q is no name for a key: 1 to 64 letters, digits, dots, dashes and underscores, the first a letter or digit", name)
	}
	return nil
}
