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
)

var (
	// ErrNoSuchKey means that the keyring has no key of that name.
	ErrNoSuchKey = errors.New("no such key")
	// ErrKeyExists means that a key would be overwritten.
	ErrKeyExists = errors.New("the key exists already")
	// ErrPassphrase means that an encrypted key has another passphrase, or that none was given.
	ErrPassphrase = errors.New("the passphrase of the key is missing or wrong")
)

const (
	keySuffix = ".json"
	keyMode   = 0o600
	dirMode   = 0o700
)

var keyName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// Keyring is a folder of private keys, one file NAME.json for each, readable by the owner only. A
// key is encrypted if it was stored with a passphrase (EncryptWith, SetPassphrase); of another one,
// anybody who can read the file controls the account.
type Keyring struct {
	dir string
	ask func(name string) (string, error) // nil: no encrypted key can be used
	// work is the logarithm of scrypt's cost for keys that are stored.
	work int
}

// NewKeyring returns the keyring in dir. The folder is created with the first key.
func NewKeyring(dir string) *Keyring { return &Keyring{dir: dir, work: ScryptWork} }

// WithPassphrase returns the same keyring, which asks for the passphrase of an encrypted key
// whenever that key is needed.
func (k *Keyring) WithPassphrase(ask func(name string) (string, error)) *Keyring {
	return &Keyring{dir: k.dir, ask: ask, work: k.work}
}

// WithWork returns the same keyring, which stores encrypted keys at another cost than ScryptWork,
// as a logarithm: less for tests. One above it could not be read again.
func (k *Keyring) WithWork(work int) *Keyring {
	return &Keyring{dir: k.dir, ask: k.ask, work: min(work, ScryptWork)}
}

// A KeyOption says how a key is stored.
type KeyOption func(*stored)

type stored struct{ passphrase string }

// EncryptWith stores a key encrypted with a passphrase, by age's scrypt recipient. An empty one
// leaves it unencrypted.
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

// Import stores a key by its 32 byte seed, or by the 64 bytes of seed and public key.
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
	return info, k.write(name, content, os.Link)
}

// ImportExported stores a key that Export has encrypted, with the same passphrase.
func (k *Keyring) ImportExported(name string, exported []byte, passphrase string) (KeyInfo, error) {
	priv, err := decryptSeed(string(exported), passphrase)
	if err != nil {
		return KeyInfo{}, fmt.Errorf("keyring: %w", err)
	}
	return k.Import(name, priv, EncryptWith(passphrase))
}

// Export returns a key encrypted with a passphrase, of its own: an armored age file, whose content
// is the seed in hex. `age --decrypt` opens it, too.
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

// SetPassphrase stores a key anew, encrypted with another passphrase, or unencrypted if that is
// empty. After a crash there is the file from before or the new one.
func (k *Keyring) SetPassphrase(name, passphrase string) error {
	priv, err := k.Get(name)
	if err != nil {
		return err
	}
	content, err := encodeKeyFile(priv, passphrase, k.work)
	if err != nil {
		return fmt.Errorf("keyring: %w", err)
	}
	return k.write(name, content, os.Rename)
}

// Delete removes a key. Who has no other copy of it has lost what only its account may do.
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

// write never leaves half of a key: the file is complete and durable before place gives it its
// name.
func (k *Keyring) write(name string, content []byte, place func(from, to string) error) (err error) {
	if err := os.MkdirAll(k.dir, dirMode); err != nil {
		return fmt.Errorf("keyring: %w", err)
	}
	f, err := os.CreateTemp(k.dir, ".new-*") // mode 0600
	if err != nil {
		return fmt.Errorf("keyring: %w", err)
	}
	defer func() {
		if gone := os.Remove(f.Name()); !errors.Is(gone, fs.ErrNotExist) { // it has been renamed
			err = errors.Join(err, gone)
		}
	}()
	_, err = f.Write(content)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("keyring: %w", err)
	}
	if err := place(f.Name(), k.path(name)); errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: %s (%s); choose another name, or move the file away", ErrKeyExists, name, k.path(name))
	} else if err != nil {
		return fmt.Errorf("keyring: %w", err)
	}
	return nil
}

// Get returns a private key, which it decrypts if it is encrypted (WithPassphrase).
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
		return nil, fmt.Errorf("keyring: %s is damaged: its seed has public key %x, it says %s", k.path(name), public.Bytes(), file.PublicKey)
	}
	return priv, nil
}

// read reads a file, and decrypts nothing.
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
		return nil, fmt.Errorf("keyring: others can read %s (mode %04o): if nobody has, `chmod 600 %s`", path, mode, path)
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
	return fmt.Errorf("%w: %q is not in %s; `starlingd keys list` shows what is, `starlingd keys add %s` makes it", ErrNoSuchKey, name, k.dir, name)
}

// Show returns the public part of a key. It needs no passphrase.
func (k *Keyring) Show(name string) (KeyInfo, error) {
	file, err := k.read(name)
	if err != nil {
		return KeyInfo{}, err
	}
	return KeyInfo{Name: name, PublicKey: file.public, Encrypted: file.Encrypted != ""}, nil
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
