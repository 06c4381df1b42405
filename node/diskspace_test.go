package node

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

	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"
)

func TestIsDiskFull(t *testing.T) {
	for _, err := range []error{
		ErrDiskFull, fmt.Errorf("write: %w", syscall.ENOSPC), &os.PathError{Op: "write", Path: "x", Err: syscall.EDQUOT},
		errors.Join(io.EOF, fmt.Errorf("block 7: %w", ErrDiskFull)),
	} {
		require.True(t, IsDiskFull(err), "%v", err)
	}
	require.False(t, IsDiskFull(nil))
	require.False(t, IsDiskFull(fmt.Errorf("read: %w", syscall.EIO)))
}

func TestDiskWatchSaysOnceThatSpaceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var free atomic.Uint64 // of b
		free.Store(1 << 30)
		w := newDiskWatch(64<<20, "/b", "/none", "/a", "/b")
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
		require.NoError(t, w.check())
		var said []error
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go w.run(ctx, func(err error) { said = append(said, err) })
		<-time.After(10 * diskPoll) // of the bubble's clock
		synctest.Wait()
		require.Empty(t, said)
		free.Store(12 << 20)
		<-time.After(10 * diskPoll)
		synctest.Wait()
		require.Len(t, said, 1)
		require.ErrorIs(t, said[0], ErrDiskFull)
		require.ErrorContains(t, said[0], "12.0 MiB are free in /b, and [storage] min_free_bytes of app.toml asks for 64.0 MiB")
	})
}

func TestDiskWatchIsOff(t *testing.T) {
	w := newDiskWatch(0, t.TempDir())
	w.free = func(string) (uint64, error) { t.Fatal("it looked"); return 0, nil }
	require.NoError(t, w.check())
	w.run(t.Context(), nil) // returns
}

func TestFreeBytes(t *testing.T) {
	free, err := freeBytes(t.TempDir())
	require.NoError(t, err)
	require.Positive(t, free)
}

func TestNodeDoesNotStartOnAFullDisk(t *testing.T) {
	home, _ := testHome(t, func(o *InitOptions) { o.Edit = nil })
	config := load(t, home)
	config.App.Storage.MinFreeBytes = 1 << 60
	_, err := New(t.Context(), config, log.NewNopLogger())
	require.ErrorIs(t, err, ErrDiskFull)
	require.ErrorContains(t, err, config.CometBFT.DBDir())
	require.NoDirExists(t, StateDir(config.CometBFT.DBDir()))
}

func TestABCIServerDoesNotStartOnAFullDisk(t *testing.T) {
	config := DefaultAppConfig()
	config.Storage.MinFreeBytes = 1 << 60
	home := t.TempDir()
	_, err := NewABCIServer(t.Context(), ABCIOptions{
		Address: "unix:///does/not/matter", Transport: "socket", Home: home, Config: config, Logger: log.NewNopLogger(),
	})
	require.ErrorIs(t, err, ErrDiskFull)
	require.ErrorContains(t, err, home)
}

// consensus/state.go panics with texts, the write-ahead log's own functions with errors.
func TestConsensusThatEndsOnAFullDiskIsHeard(t *testing.T) {
	for _, c := range []struct {
		message string
		cause   any
		full    bool
	}{
		{consensusEnded, fmt.Sprintf("failed to write {} msg to consensus WAL due to %v; check your file system and restart the node", syscall.ENOSPC), true},
		{consensusEnded, &os.PathError{Op: "write", Path: "wal", Err: syscall.EDQUOT}, true},
		{consensusEnded, "conflicting votes", false},
		{"cannot write", syscall.ENOSPC, false},
	} {
		var heard []error
		logger := consensusLog{log.NewNopLogger(), func(err error) { heard = append(heard, err) }, nil}
		logger.With("module", "consensus").Error(c.message, "err", c.cause, "stack", "…")
		if c.full {
			require.Len(t, heard, 1)
			require.ErrorIs(t, heard[0], ErrDiskFull)
		} else {
			require.Empty(t, heard)
		}
	}
}
