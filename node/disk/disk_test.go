package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestIsDiskFull(t *testing.T) {
	for _, err := range []error{
		ErrFull, fmt.Errorf("write: %w", syscall.ENOSPC), &os.PathError{Op: "write", Path: "x", Err: syscall.EDQUOT},
		errors.Join(io.EOF, fmt.Errorf("block 7: %w", ErrFull)),
	} {
		require.True(t, IsFull(err), "%v", err)
	}
	require.False(t, IsFull(nil))
	require.False(t, IsFull(fmt.Errorf("read: %w", syscall.EIO)))
}

func TestDiskWatchSaysOnceThatSpaceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var free atomic.Uint64 // free bytes of b
		free.Store(1 << 30)
		w := NewWatch(64<<20, "/b", "/none", "/a", "/b")
		require.Len(t, w.folders, 3)
		w.free = func(folder string) (uint64, error) {
			switch folder {
			case "/a":
				return 1 << 30, nil
			case "/b":
				return free.Load(), nil
			}
			return 0, os.ErrNotExist
		}
		require.NoError(t, w.Check())
		var said []error
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go w.Run(ctx, func(err error) { said = append(said, err) })
		<-time.After(10 * poll) // of the bubble's clock
		synctest.Wait()
		require.Empty(t, said)
		free.Store(12 << 20)
		<-time.After(10 * poll)
		synctest.Wait()
		require.Len(t, said, 1)
		require.ErrorIs(t, said[0], ErrFull)
		require.ErrorContains(t, said[0], "12 MiB are free in \"/b\", below the 64 MiB of [disk] min_free_bytes in app.toml")
	})
}

func TestDiskWatchIsOff(t *testing.T) {
	w := NewWatch(0, t.TempDir())
	w.free = func(string) (uint64, error) { t.Fatal("it looked"); return 0, nil }
	require.NoError(t, w.Check())
	w.Run(t.Context(), nil) // returns
}

func TestFreeBytes(t *testing.T) {
	free, err := freeBytes(t.TempDir())
	require.NoError(t, err)
	require.Positive(t, free)
}

func TestRemoveUnfinished(t *testing.T) {
	folder, other := t.TempDir(), t.TempDir()
	outside := filepath.Join(other, "file")
	for _, path := range []string{
		outside, filepath.Join(other, "write-file-atomic-7"),
		filepath.Join(folder, "write-file-atomic-05577006791947779410"), filepath.Join(folder, "write-file-atomic-1"),
		filepath.Join(folder, "write-file-atomic-"), filepath.Join(folder, "write-file-atomic-1.bak"), filepath.Join(folder, "priv_validator_state.json"),
	} {
		require.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
	}
	require.NoError(t, os.Mkdir(filepath.Join(folder, "write-file-atomic-2"), 0o700))
	require.NoError(t, os.Symlink(outside, filepath.Join(folder, "write-file-atomic-3")))
	removed, err := RemoveUnfinished(folder, folder, other, filepath.Join(folder, "none"))
	require.NoError(t, err)
	require.Equal(t, 3, removed)
	var left []string
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	for _, e := range entries {
		left = append(left, e.Name())
	}
	require.Equal(t, []string{"priv_validator_state.json", "write-file-atomic-", "write-file-atomic-1.bak", "write-file-atomic-2", "write-file-atomic-3"}, left)
	require.FileExists(t, outside)
}
