package client

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestKeyring(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "home", "keys")
	k := NewKeyring(dir)
	all, err := k.List()
	require.NoError(t, err)
	require.Empty(t, all)
	_, err = k.Get("alice")
	require.ErrorIs(t, err, ErrNoSuchKey)

	alice, err := k.Add("alice")
	require.NoError(t, err)
	priv, err := k.Get("alice")
	require.NoError(t, err)
	require.Equal(t, alice.PublicKey.Bytes(), priv.PubKey().Bytes())
	_, err = k.Add("alice")
	require.ErrorIs(t, err, ErrKeyExists)
	again, err := k.Get("alice")
	require.NoError(t, err)
	require.Equal(t, priv, again)

	copied, err := k.Import("bob", priv)
	require.NoError(t, err)
	require.Equal(t, alice.PublicKey, copied.PublicKey)
	copied, err = k.Import("carol", priv[:32])
	require.NoError(t, err)
	require.Equal(t, alice.PublicKey, copied.PublicKey)
	_, err = k.Import("dave", priv[:31])
	require.Error(t, err)
	_, err = k.Import("dave", append(bytes.Clone(priv[:63]), priv[63]^1))
	require.Error(t, err)

	for _, name := range []string{"", ".", "..", "../x", "a/b", "-x", "a b", "ä", string(bytes.Repeat([]byte("x"), 65))} {
		_, err := k.Add(name)
		require.Error(t, err, name)
	}
	all, err = k.List()
	require.NoError(t, err)
	require.Len(t, all, 3)
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 3, "no incomplete file stays")

	stat, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), stat.Mode().Perm())
	path := filepath.Join(dir, "alice.json")
	stat, err = os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), stat.Mode().Perm())
	require.NoError(t, os.Chmod(path, 0o640))
	_, err = k.Get("alice")
	require.ErrorContains(t, err, "chmod 600")
	require.NoError(t, os.Chmod(path, 0o600))
	for _, content := range []string{"", "{}", `{"type":"ed25519","seed":"00","public_key":""}`, `{"type":"rsa"}`} {
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		_, err = k.Get("alice")
		require.ErrorContains(t, err, "damaged")
	}
}
