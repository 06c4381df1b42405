package onvfs

import (
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"
)

func read(t *testing.T, fs vfs.FS, path string) string {
	t.Helper()
	file, err := fs.Open(path)
	require.NoError(t, err)
	defer file.Close()
	b, err := io.ReadAll(file)
	require.NoError(t, err)
	return string(b)
}

// After a crash before any change of the file system, the file has the content of the last Write
// that returned, or that of the one in progress.
func TestWriteCrash(t *testing.T) {
	for at := 1; ; at++ {
		mem := vfs.NewCrashableMem()
		rng := rand.New(rand.NewPCG(1, uint64(at)))
		var left *vfs.MemFS
		changes, written, confirmed := 0, 0, 0
		fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
				if changes++; changes == at {
					left = mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
					confirmed = written
				}
			}
			return nil
		}))
		require.NoError(t, MakeDir(fs, "a/b"))
		for i := range 3 {
			require.NoError(t, Write(fs, "a/b/file", fmt.Append(nil, "content ", i)))
			written++
		}
		if left == nil {
			require.Greater(t, at, 15)
			return
		}
		if confirmed > 0 {
			require.Contains(t, []string{fmt.Sprint("content ", confirmed-1), fmt.Sprint("content ", confirmed)}, read(t, left, "a/b/file"))
		}
	}
}

// An error at any change is returned and leaves either the old content or the new one.
func TestWriteFails(t *testing.T) {
	for at := 1; ; at++ {
		mem := vfs.NewMem()
		require.NoError(t, Write(mem, "file", []byte("old")))
		changes := 0
		err := Write(errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && op.Kind != errorfs.OpFileClose {
				if changes++; changes == at {
					return errorfs.ErrInjected
				}
			}
			return nil
		})), "file", []byte("new"))
		if changes < at {
			require.NoError(t, err)
			require.Greater(t, at, 4)
			return
		}
		require.ErrorIs(t, err, errorfs.ErrInjected)
		require.Contains(t, []string{"old", "new"}, read(t, mem, "file"))
		require.NoError(t, Write(mem, "file", []byte("newer")))
		require.Equal(t, "newer", read(t, mem, "file"))
	}
}
