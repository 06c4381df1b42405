package codefiles_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/codefiles"
	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/cosmos/nodedb/nodedbtest"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/transporttest"
)

func set(t *testing.T, db nodedb.DB, key string, value []byte) {
	t.Helper()
	b := db.NewBatch()
	require.NoError(t, b.Set([]byte(key), nodedb.AppendFast(nil, 3, value)))
	require.NoError(t, b.Write())
	require.NoError(t, b.Close())
}

// info returns a CodeInfo with a creator, as wasmd writes it.
func info(h iavlsync.Hash) []byte {
	return append(append([]byte{1<<3 | 2, 32}, h[:]...), 2<<3|2, 4, 'a', 'b', 'c', 'd')
}

func codeKey(id uint64) string {
	return "s/k:wasm/f\x01" + string(binary.BigEndian.AppendUint64(nil, id))
}

func TestHashes(t *testing.T) {
	db := nodedbtest.NewMem()
	wasm, clients := codefiles.Of("wasm"), codefiles.Of("08-wasm")
	require.Nil(t, codefiles.Of("bank"))
	none, err := wasm.Hashes(db)
	require.NoError(t, err)
	require.Empty(t, none)

	one, two := iavlsync.Hash{2}, iavlsync.Hash{1}
	set(t, db, codeKey(1), info(one))
	set(t, db, codeKey(2), info(two))
	set(t, db, codeKey(3), info(one)) // the same code, uploaded again
	set(t, db, "s/k:wasm/f\x02somebody", []byte("a contract"))
	set(t, db, "s/k:08-wasm/f\x00"+string(one[:]), nil)
	set(t, db, "s/k:08-wasm/fclients", []byte("a migrated client"))
	got, err := wasm.Hashes(db)
	require.NoError(t, err)
	require.Equal(t, []iavlsync.Hash{two, one}, got)
	got, err = clients.Hashes(db)
	require.NoError(t, err)
	require.Equal(t, []iavlsync.Hash{one}, got)

	for _, bad := range [][]byte{nil, {1<<3 | 2, 32, 1}, append([]byte{2<<3 | 2, 32}, one[:]...), append([]byte{1<<3 | 2, 31}, one[:]...)} {
		set(t, db, codeKey(4), bad)
		_, err = wasm.Hashes(db)
		require.ErrorContains(t, err, "unknown form", "%x", bad)
	}
	set(t, db, "s/k:08-wasm/f\x00short", nil)
	_, err = clients.Hashes(db)
	require.ErrorContains(t, err, "unknown form")
}

// TestFiles: a file that is missing or damaged is fetched, and only with the hash in the state.
func TestFiles(t *testing.T) {
	m := codefiles.Of("wasm")
	from, home := t.TempDir(), t.TempDir()
	small, large := []byte("\x00asm small"), bytes.Repeat([]byte("\x00asm"), iavlsync.FilePartBytes/4)
	var hashes []iavlsync.Hash
	for _, content := range [][]byte{small, large} {
		require.NoError(t, m.Write(from, content))
		hashes = append(hashes, sha256.Sum256(content))
	}
	missing := func() []iavlsync.Hash {
		t.Helper()
		missing, err := m.Missing(home, hashes)
		require.NoError(t, err)
		return missing
	}
	require.Equal(t, hashes, missing())

	mux := &transport.Mux{}
	codefiles.NewServer(from).Register(mux)
	var network transporttest.Network
	l, err := network.Listen("peer:1", transporttest.Config{ID: transporttest.ID(1), ChainID: "chain", Handler: mux})
	require.NoError(t, err)
	defer l.Close()
	conn, err := network.Dialer(transporttest.Config{ID: transporttest.ID(2), ChainID: "chain"}).Dial(context.Background(), transport.Address{HostPort: "peer:1"})
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	for i, content := range [][]byte{small, large} {
		b, err := codefiles.Fetch(context.Background(), conn, hashes[i])
		require.NoError(t, err)
		require.Equal(t, content, b)
		require.NoError(t, m.Write(home, b))
		require.Equal(t, hashes[i+1:], append([]iavlsync.Hash{}, missing()...), "%d", i)
	}
	path := filepath.Join(home, "wasm", "wasm", "state", "wasm", hashes[0].String())
	require.NoError(t, os.WriteFile(path, []byte("damaged"), 0o600))
	require.Equal(t, hashes[:1], missing())

	// A newer VM reads the name with an extension first.
	for _, dir := range []string{from, home} {
		plain := filepath.Join(dir, "wasm", "wasm", "state", "wasm", hashes[1].String())
		require.NoError(t, os.Rename(plain, plain+".wasm"))
	}
	require.Equal(t, hashes[:1], missing())
	b, err := codefiles.Fetch(context.Background(), conn, hashes[1])
	require.NoError(t, err)
	require.Equal(t, large, b)
	extended := filepath.Join(home, "wasm", "wasm", "state", "wasm", hashes[1].String()+".wasm")
	require.NoError(t, os.WriteFile(extended, []byte("damaged"), 0o600))
	require.Equal(t, hashes, missing())
	require.NoError(t, m.Write(home, large))
	require.NoFileExists(t, strings.TrimSuffix(extended, ".wasm"))
	require.Equal(t, hashes[:1], missing())

	_, err = codefiles.Fetch(context.Background(), conn, iavlsync.Hash{7})
	require.ErrorIs(t, err, transport.ErrGone)
	require.NoError(t, os.WriteFile(filepath.Join(from, "wasm", "wasm", "state", "wasm", hashes[0].String()), []byte("another"), 0o600))
	_, err = codefiles.Fetch(context.Background(), conn, hashes[0])
	require.ErrorIs(t, err, codefiles.ErrOtherFile)
	_, err = mux.Serve(context.Background(), transport.Request{Method: iavlsync.MethodFile, Body: []byte("rubbish")})
	require.ErrorIs(t, err, transport.ErrRefused)
}

// TestFolders: the folder that the home has is used, whichever of the known ones that is.
func TestFolders(t *testing.T) {
	for i := range codefiles.Modules {
		m := &codefiles.Modules[i]
		for _, folder := range m.Folders {
			home := t.TempDir()
			require.Equal(t, filepath.Join(home, m.Folders[0]), m.Folder(home))
			require.NoError(t, os.MkdirAll(filepath.Join(home, folder, "state", "wasm"), 0o700))
			require.Equal(t, filepath.Join(home, folder), m.Folder(home))
		}
	}
}
