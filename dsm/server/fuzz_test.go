package server_test

import (
	"fmt"
	"path"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm/server"
)

// Opening a log with arbitrary file contents terminates, and it yields updates in order.
func FuzzLog(f *testing.F) {
	fsys := vfs.NewMem()
	l, err := server.OpenLog(server.LogOptions{FS: fsys, Dir: "log", Label: []byte("label")})
	require.NoError(f, err)
	name := path.Join("log", "000001.seg")
	for height := int64(7); height < 10; height++ {
		require.NoError(f, l.Append(height, []byte("update")))
		f.Add(readFile(f, fsys, name))
	}
	require.NoError(f, l.Close())
	label := readFile(f, fsys, "log/LABEL")
	f.Fuzz(func(t *testing.T, b []byte) {
		fsys := vfs.NewMem()
		require.NoError(t, fsys.MkdirAll("log", 0o755))
		writeFile(t, fsys, "log/LABEL", label)
		writeFile(t, fsys, name, b)
		l, err := server.OpenLog(server.LogOptions{FS: fsys, Dir: "log", Label: []byte("label")})
		if err != nil {
			return
		}
		next := int64(7)
		for e, err := range l.Since(0) {
			require.NoError(t, err)
			require.Equal(t, next, e.Height)
			next++
		}
		require.NoError(t, l.Close())
	})
}

// Reading a stored state with arbitrary file contents terminates.
func FuzzStoredState(f *testing.F) {
	fsys := vfs.NewMem()
	d, err := server.OpenFiles(fsys, "states", []byte("label"))
	require.NoError(f, err)
	name := path.Join("states", fmt.Sprintf("%020d.state", 7))
	w, err := d.Begin(server.StateInfo{Height: 7, Boundary: []byte{1}, Commitment: avlstar.Commitment{ChunkBytes: 9, Chunks: 1}})
	require.NoError(f, err)
	for i := range 5 {
		require.NoError(f, w.Write(avlstar.Leaf{Key: fmt.Appendf(nil, "%d", i), Value: []byte("value"), Height: 1}))
	}
	require.NoError(f, w.Keep())
	require.NoError(f, w.Close())
	f.Add(readFile(f, fsys, name))
	f.Fuzz(func(t *testing.T, b []byte) {
		fsys := vfs.NewMem()
		d, err := server.OpenFiles(fsys, "states", []byte("label"))
		require.NoError(t, err)
		writeFile(t, fsys, name, b)
		stored, err := d.Open(7)
		if err != nil {
			return
		}
		for l, err := range stored.Leaves() {
			if err == nil {
				require.NotEmpty(t, l.Key)
			}
		}
		require.NoError(t, stored.Close())
	})
}
