package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
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
		var free atomic.Uint64 // of b
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
		require.ErrorContains(t, said[0], "12 MiB are free in \"/b\", and [storage] min_free_bytes of app.toml asks for 64 MiB")
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
