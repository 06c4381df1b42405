package client

import (
	stded25519 "crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/cometbft/cometbft/crypto/ed25519"

	"github.com/starling-kv/starling/internal/durable"
)

var (
	// ErrNoSuchKey means that the keyring has no key of that name.
	ErrNoSuchKey = errors.New("no such key")
	// ErrKeyExists means that a key would be overwritten.
	ErrKeyExists = errors.New("the key exists already")
	// ErrPassphrase means that the passphrase of an encrypted key is wrong or was not given.
	ErrPassphrase = errors.New("the passphrase of the key is missing or wrong")
)

const (
	keySuffix = ".json"
	keyMode   = 0o600
	dirMode   = 0o700
)

var keyName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// Keyring is a folder of private keys, one file NAME.json for each, readable only by the owner. A
// key is encrypted if it was stored with a passphrase (EncryptWith, SetPassphrase). Anybody who can
// read the file of an unencrypted key controls the account.
type Keyring struct {
	dir string
	ask func(name string) (string, error) // nil: encrypted keys cannot be used
	// work is the logarithm of the scrypt cost of stored keys.
	work int
}

// NewKeyring returns the keyring in dir. The folder is created together with the first key.
func NewKeyring(dir string) *Keyring { return &Keyring{dir: dir, work: ScryptWork} }

// WithPassphrase returns the same keyring. It asks for the passphrase whenever an encrypted key is
// needed.
func (k *Keyring) WithPassphrase(ask func(name string) (string, error)) *Keyring {
	return &Keyring{dir: k.dir, ask: ask, work: k.work}
}

// WithWork returns the same keyring. It stores encrypted keys with another logarithm of the cost
// than ScryptWork, such as a lower one for tests. Keys with a higher one could not be read again.
func (k *Keyring) WithWork(work int) *Keyring {
	return &Keyring{dir: k.dir, ask: k.ask, work: min(work, ScryptWork)}
}

// A KeyOption changes how a key is stored.
type KeyOption func(*stored)

type stored struct{ passphrase string }

// EncryptWith encrypts a key with a passphrase, using age's scrypt recipient. An empty passphrase
// leaves the key unencrypted.
func EncryptWith(passphrase string) KeyOption { return func(s *stored) { s.passphrase = passphrase } }

// KeyInfo is the public part of a key.
type KeyInfo struct {
	Name      string
	PublicKey ed25519.PubKey
	Encrypted bool
}

// Add creates a random key.
func (k *Keyring) Add(name string, options ...KeyOption) (KeyInfo, error) {
	seed := make([]byte, ed25519.SeedSize)
	if _, err := rand.Read(seed); err != nil {
		return KeyInfo{}, fmt.Errorf("keyring: %w", err)
	}
	return k.Import(name, seed, options...)
}

// Import stores a key, given as its 32-byte seed, or as the 64 bytes of seed and public key.
func (k *Keyring) Import(name string, private []byte, options ...KeyOption) (KeyInfo, error) {
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
	var how stored
	for _, o := range options {
		o(&how)
	}
	content, err := encodeKeyFile(ed25519.PrivKey(priv), how.passphrase, k.work)
	if err != nil {
		return KeyInfo{}, fmt.Errorf("keyring: %w", err)
	}
	info := KeyInfo{Name: name, PublicKey: ed25519.PrivKey(priv).PubKey().Bytes(), Encrypted: how.passphrase != ""}
	return info, k.write(name, content, durable.WriteNew)
}

// ImportExported stores a key that was encrypted by Export, with the same passphrase.
func (k *Keyring) ImportExported(name string, exported []byte, passphrase string) (KeyInfo, error) {
	priv, err := decryptSeed(string(exported), passphrase)
	if err != nil {
		return KeyInfo{}, fmt.Errorf("keyring: %w", err)
	}
	return k.Import(name, priv, EncryptWith(passphrase))
}

// Export returns a key encrypted with a passphrase of its own: an armored age file that contains
// the seed in hex. `age --decrypt` opens it, too.
func (k *Keyring) Export(name, passphrase string) ([]byte, error) {
	priv, err := k.Get(name)
	if err != nil {
		return nil, err
	}
	exported, err := encryptSeed(priv, passphrase, k.work)
	if err != nil {
		return nil, fmt.Errorf("keyring: %w", err)
	}
	return []byte(exported), nil
}

// SetPassphrase stores a key again, encrypted with another passphrase, or unencrypted if that is
// empty. After a crash, either the old file or the new one exists.
func (k *Keyring) SetPassphrase(name, passphrase string) error {
	priv, err := k.Get(name)
	if err != nil {
		return err
	}
	content, err := encodeKeyFile(priv, passphrase, k.work)
	if err != nil {
		return fmt.Errorf("keyring: %w", err)
	}
	return k.write(name, content, durable.Write)
}

// Delete removes a key. Without another copy, access to its account is lost.
func (k *Keyring) Delete(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	err := os.Remove(k.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return k.noSuchKey(name)
	} else if err != nil {
		return fmt.Errorf("keyring: %w", err)
	}
	return nil
}

// write writes the file of a key with durable.Write or WriteNew, which never leave an incomplete
// file.
func (k *Keyring) write(name string, content []byte, write func(path string, content []byte, mode fs.FileMode) error) error {
	if err := os.MkdirAll(k.dir, dirMode); err != nil {
		return fmt.Errorf("keyring: %w", err)
	}
	if err := write(k.path(name), content, 0o600); errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: %s (%s); choose another name, or move the file", ErrKeyExists, name, k.path(name))
	} else if err != nil {
		return fmt.Errorf("keyring: %w", err)
	}
	return nil
}

// Get returns a private key. It decrypts an encrypted key (WithPassphrase).
func (k *Keyring) Get(name string) (ed25519.PrivKey, error) {
	file, err := k.read(name)
	if err != nil {
		return nil, err
	}
	if file.Encrypted == "" {
		return file.private, nil
	}
	if k.ask == nil {
		return nil, fmt.Errorf("keyring: %w: %q is encrypted", ErrPassphrase, name)
	}
	passphrase, err := k.ask(name)
	if err != nil {
		return nil, err
	}
	priv, err := decryptSeed(file.Encrypted, passphrase)
	if err != nil {
		return nil, fmt.Errorf("keyring: %s: %w", k.path(name), err)
	}
	if public := priv.PubKey(); !public.Equals(file.public) {
		return nil, fmt.Errorf("keyring: %s is damaged: its seed has public key %x, but the file has %s", k.path(name), public.Bytes(), file.PublicKey)
	}
	return priv, nil
}

// read reads the file of a key without decrypting it.
func (k *Keyring) read(name string) (*keyFile, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	path := k.path(name)
	stat, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, k.noSuchKey(name)
	} else if err != nil {
		return nil, fmt.Errorf("keyring: %w", err)
	}
	if mode := stat.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("keyring: others can read %s (mode %04o): if no other person has it, run `chmod 600 %s`", path, mode, path)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("keyring: %w", err)
	}
	file, err := decodeKeyFile(content)
	if err != nil {
		return nil, fmt.Errorf("keyring: %s is damaged: %w", path, err)
	}
	return file, nil
}

func (k *Keyring) noSuchKey(name string) error {
	return fmt.Errorf("%w: %q is not in %s; `starlingd keys list` lists the keys, `starlingd keys add %s` creates it", ErrNoSuchKey, name, k.dir, name)
}

// Show returns the public part of a key. It needs no passphrase.
func (k *Keyring) Show(name string) (KeyInfo, error) {
	file, err := k.read(name)
	if err != nil {
		return KeyInfo{}, err
	}
	return KeyInfo{Name: name, PublicKey: file.public, Encrypted: file.Encrypted != ""}, nil
}

// List returns the keys, sorted by name.
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
		return fmt.Errorf("keyring: %q is not a valid name of a key: use 1 to 64 letters, digits, dots, dashes and underscores, the first a letter or digit", name)
	}
	return nil
}
