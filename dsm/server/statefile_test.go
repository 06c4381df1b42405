package server_test

import (
	"bytes"
	"fmt"
	"io"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm/server"
	"github.com/starling-kv/starling/dsm/server/disktest"
	"github.com/starling-kv/starling/internal/seeds"
)

func openFiles(fsys vfs.FS, dir string, label []byte) (server.Disk, error) {
	return server.OpenFiles(fsys, dir, label)
}

func TestFiles(t *testing.T) { disktest.Run(t, openFiles) }

// Every byte of a file is checked: a changed byte or a truncated file is damage, reported with
// file and offset.
func TestFilesDamaged(t *testing.T) {
	rng := seeds.Rand(t)
	fsys := vfs.NewMem()
	d, err := openFiles(fsys, "range", []byte("label"))
	require.NoError(t, err)
	w, err := d.Begin(server.StateInfo{Height: 7, Boundary: []byte("boundary proof"), Commitment: avlstar.Commitment{ChunkBytes: 9, Chunks: 1}})
	require.NoError(t, err)
	for i := range 20 {
		require.NoError(t, w.Write(avlstar.Leaf{Key: fmt.Appendf(nil, "%04d", i), Value: []byte("value"), Height: 3}))
	}
	require.NoError(t, w.Keep())
	require.NoError(t, w.Close())
	const path = "range/00000000000000000007.state"
	whole := readFile(t, fsys, path)
	leaves := func() (n int, err error) {
		stored, err := d.Open(7)
		if err != nil {
			return 0, err
		}
		defer stored.Close()
		for _, err := range stored.Leaves() {
			if err != nil {
				return n, err
			}
			n++
		}
		return n, nil
	}
	n, err := leaves()
	require.NoError(t, err)
	require.Equal(t, 20, n)
	for at := range whole {
		b := bytes.Clone(whole)
		b[at] ^= 1 << rng.IntN(8)
		writeFile(t, fsys, path, b)
		_, err := leaves()
		require.ErrorIs(t, err, server.ErrDamaged, "byte %d", at)
		require.ErrorContains(t, err, path)
		require.ErrorContains(t, err, "at offset ")
		writeFile(t, fsys, path, whole[:at])
		_, err = leaves()
		require.ErrorIs(t, err, server.ErrDamaged, "%d bytes", at)
	}
	require.NoError(t, fsys.Rename(path, "range/00000000000000000008.state"))
	_, err = d.Open(8)
	require.ErrorIs(t, err, server.ErrDamaged)
}

func readFile(t testing.TB, fsys vfs.FS, path string) []byte {
	t.Helper()
	file, err := fsys.Open(path)
	require.NoError(t, err)
	defer file.Close()
	b, err := io.ReadAll(file)
	require.NoError(t, err)
	return b
}

func writeFile(t testing.TB, fsys vfs.FS, path string, b []byte) {
	t.Helper()
	file, err := fsys.Create(path, vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	_, err = file.Write(bytes.Clone(b)) // it may modify them
	require.NoError(t, err)
	require.NoError(t, file.Close())
}
