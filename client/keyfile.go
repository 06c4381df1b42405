package client

import (
	"bytes"
	stded25519 "crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"filippo.io/age"
	"filippo.io/age/armor"
	"github.com/cometbft/cometbft/crypto/ed25519"
)

const (
	keyType = "ed25519"
	// ScryptWork is the logarithm of the scrypt cost, as in the age program: about a second, and
	// 256 MiB. Files with a higher cost are refused, because decryption would take the memory that
	// they specify.
	ScryptWork = 18
	// maxSeedText is the length of the encrypted text: the seed in hex, and a newline.
	maxSeedText = 2*ed25519.SeedSize + 1
)

// keyFile is the file of a key. It contains either a seed or an encrypted seed.
type keyFile struct {
	Type      string `json:"type"`
	PublicKey string `json:"public_key"`     // hex
	Seed      string `json:"seed,omitempty"` // hex; the private key of RFC 8032
	// Encrypted is an armored age file (age-encryption.org/v1) that contains Seed and a newline.
	Encrypted string `json:"encrypted_seed,omitempty"`

	public  ed25519.PubKey
	private ed25519.PrivKey // nil if encrypted
}

func encodeKeyFile(priv ed25519.PrivKey, passphrase string, work int) ([]byte, error) {
	file := keyFile{Type: keyType, PublicKey: hex.EncodeToString(priv.PubKey().Bytes())}
	if passphrase == "" {
		file.Seed = hex.EncodeToString(seedOf(priv))
	} else {
		encrypted, err := encryptSeed(priv, passphrase, work)
		if err != nil {
			return nil, err
		}
		file.Encrypted = encrypted
	}
	content, err := json.MarshalIndent(file, "", "  ")
	return append(content, '\n'), err
}

// decodeKeyFile does not decrypt. The public key of an encrypted key is the one in the file.
func decodeKeyFile(content []byte) (*keyFile, error) {
	var file keyFile
	if err := json.Unmarshal(content, &file); err != nil {
		return nil, err
	}
	if file.Type != keyType {
		return nil, fmt.Errorf("its key has type %q, not %s", file.Type, keyType)
	}
	if (file.Seed == "") == (file.Encrypted == "") {
		return nil, errors.New("it must have exactly one of seed and encrypted_seed")
	}
	public, err := hex.DecodeString(file.PublicKey)
	if err != nil || len(public) != ed25519.PubKeySize {
		return nil, fmt.Errorf("it has no public key of %d bytes", ed25519.PubKeySize)
	}
	file.public = public
	if file.Encrypted != "" {
		return &file, nil
	}
	seed, err := hex.DecodeString(file.Seed)
	if err != nil || len(seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("it has no %s seed of %d bytes", keyType, ed25519.SeedSize)
	}
	file.private = ed25519.PrivKey(stded25519.NewKeyFromSeed(seed))
	if public := file.private.PubKey(); !public.Equals(file.public) {
		return nil, fmt.Errorf("its seed has public key %x, but the file has %s", public.Bytes(), file.PublicKey)
	}
	return &file, nil
}

func seedOf(priv ed25519.PrivKey) []byte { return stded25519.PrivateKey(priv).Seed() }

// encryptSeed returns an armored age file.
func encryptSeed(priv ed25519.PrivKey, passphrase string, work int) (string, error) {
	to, err := age.NewScryptRecipient(passphrase)
	if err != nil {
		return "", err
	}
	to.SetWorkFactor(work)
	var text bytes.Buffer
	armored := armor.NewWriter(&text)
	w, err := age.Encrypt(armored, to)
	if err != nil {
		return "", err
	}
	if _, err := fmt.Fprintf(w, "%x\n", seedOf(priv)); err != nil {
		return "", err
	}
	if err := errors.Join(w.Close(), armored.Close()); err != nil {
		return "", err
	}
	return text.String(), nil
}

func decryptSeed(armored, passphrase string) (ed25519.PrivKey, error) {
	if passphrase == "" {
		return nil, fmt.Errorf("%w: it is empty", ErrPassphrase)
	}
	with, err := age.NewScryptIdentity(passphrase)
	if err != nil {
		return nil, err
	}
	with.SetMaxWorkFactor(ScryptWork)
	r, err := age.Decrypt(armor.NewReader(strings.NewReader(armored)), with)
	var other *age.NoIdentityMatchError
	if errors.As(err, &other) {
		return nil, ErrPassphrase
	} else if err != nil {
		return nil, fmt.Errorf("cannot decrypt the key: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(r, maxSeedText+1))
	if err != nil {
		return nil, fmt.Errorf("cannot decrypt the key: %w", err)
	}
	seed, err := hex.DecodeString(strings.TrimSuffix(string(text), "\n"))
	if err != nil || len(seed) != ed25519.SeedSize {
		return nil, errors.New("the decrypted text is not a seed in hex") // and is not shown
	}
	return ed25519.PrivKey(stded25519.NewKeyFromSeed(seed)), nil
}
