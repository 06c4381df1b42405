package client

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// cheapKeyring needs only milliseconds for a passphrase.
func cheapKeyring(dir string) *Keyring { return NewKeyring(dir).WithWork(10) }

func TestEncryptedKey(t *testing.T) {
	dir := t.TempDir()
	plain := cheapKeyring(dir)
	alice, err := plain.Add("alice", EncryptWith("correct horse"))
	require.NoError(t, err)
	require.True(t, alice.Encrypted)

	// Public data needs no passphrase.
	shown, err := plain.Show("alice")
	require.NoError(t, err)
	require.Equal(t, alice, shown)
	_, err = plain.Get("alice")
	require.ErrorIs(t, err, ErrPassphrase)

	given := "wrong"
	k := plain.WithPassphrase(func(name string) (string, error) {
		require.Equal(t, "alice", name, "only for an encrypted key")
		return given, nil
	})
	_, err = k.Get("alice")
	require.ErrorIs(t, err, ErrPassphrase)
	given = ""
	_, err = k.Get("alice")
	require.ErrorIs(t, err, ErrPassphrase)
	given = "correct horse"
	priv, err := k.Get("alice")
	require.NoError(t, err)
	require.Equal(t, alice.PublicKey, priv.PubKey())
	content, err := os.ReadFile(filepath.Join(dir, "alice.json"))
	require.NoError(t, err)
	require.NotContains(t, string(content), `"seed"`)

	// An exported key has a passphrase of its own.
	exported, err := k.Export("alice", "battery staple")
	require.NoError(t, err)
	_, err = k.ImportExported("copy", exported, given)
	require.ErrorIs(t, err, ErrPassphrase)
	imported, err := k.ImportExported("copy", exported, "battery staple")
	require.NoError(t, err)
	require.Equal(t, alice.PublicKey, imported.PublicKey)
	require.True(t, imported.Encrypted)
	_, err = k.ImportExported("other", exported[:len(exported)/2], "battery staple")
	require.ErrorContains(t, err, "cannot decrypt the key")

	// Without a passphrase it is an ordinary key.
	require.NoError(t, k.SetPassphrase("alice", ""))
	again, err := plain.Get("alice")
	require.NoError(t, err)
	require.Equal(t, priv, again)
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 2, "no incomplete file stays")

	require.NoError(t, plain.Delete("alice"))
	require.ErrorIs(t, plain.Delete("alice"), ErrNoSuchKey)
	require.Error(t, plain.Delete("../alice"))
}

// TestEncryptedForAnother: the public key in an encrypted file is checked after decryption.
func TestEncryptedForAnother(t *testing.T) {
	dir := t.TempDir()
	k := cheapKeyring(dir).WithPassphrase(func(string) (string, error) { return "correct horse", nil })
	_, err := k.Add("alice", EncryptWith("correct horse"))
	require.NoError(t, err)
	bob, err := k.Add("bob")
	require.NoError(t, err)
	path := filepath.Join(dir, "alice.json")
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	var file keyFile
	require.NoError(t, json.Unmarshal(content, &file))
	file.PublicKey = strings.ToLower(bob.PublicKey.String()[len("PubKeyEd25519{") : len(bob.PublicKey.String())-1])
	content, err = json.Marshal(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, content, 0o600))
	_, err = k.Get("alice")
	require.ErrorContains(t, err, "is damaged: its seed has public key")
}

// TestGreedyKey: a file that requires more memory than our own files is refused.
func TestGreedyKey(t *testing.T) {
	const greedy = `-----BEGIN AGE ENCRYPTED FILE-----
YWdlLWVuY3J5cHRpb24ub3JnL3YxCi0+IHNjcnlwdCBiYjhuTzVhOGRNVUd4V3Nl
bHphL0hRIDIyCnlGbG9BWGpHaGw3TDFqbVJPbjlpTDJxVGdmOUpXdExUSjRoQ3hR
ZmVZZWMKLS0tIGJGWUJEUjVYdGVwQVp6MXBBcW5oQ2RlUm5YSlp3UzVuUkZLZ1p2
TTFWR2MK
-----END AGE ENCRYPTED FILE-----
`
	_, err := decryptSeed(greedy, "correct horse")
	require.Error(t, err)
	require.False(t, errors.Is(err, ErrPassphrase), "it was tried: %v", err)
	require.ErrorContains(t, err, "work factor")
}

func FuzzKeyFile(f *testing.F) {
	dir := f.TempDir()
	_, err := NewKeyring(dir).Add("alice")
	require.NoError(f, err)
	content, err := os.ReadFile(filepath.Join(dir, "alice.json"))
	require.NoError(f, err)
	f.Add(content)
	f.Add([]byte(`{"type":"ed25519","public_key":"d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a","encrypted_seed":"-----BEGIN AGE"}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		file, err := decodeKeyFile(content)
		if err != nil {
			return
		}
		require.Equal(t, file.private == nil, file.Encrypted != "")
		if file.private != nil {
			require.True(t, file.private.PubKey().Equals(file.public))
		}
	})
}
