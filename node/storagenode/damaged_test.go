package storagenode

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/dsm/server"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/internal/nodetest"
)

// flip changes a byte of each file that matches a pattern.
func flip(t *testing.T, pattern string, at int) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		b[at] ^= 1
		require.NoError(t, os.WriteFile(file, b, 0o600))
	}
}

// A range whose data cannot be used is put aside and fetched again, at a start and while the node
// runs. The node and its other range continue.
func TestDamagedRangeIsFetchedAgain(t *testing.T) {
	t.Parallel() // it waits for blocks
	c := newChain(t, twoRanges()...)
	first := c.replicaHome()
	a := c.start(first, log.NewNopLogger(), fromGenesis)
	c.put(10, 30)
	c.dial(a).feedAll("the first node's blocks")
	second := c.replicaHome(a.Address())
	dir := filepath.Join(rangesDir(nodetest.Load(t, second)), folderOf(c.ranges[0]))
	b := c.start(second, log.NewNopLogger(), 0)
	nodetest.Until(t, "both ranges", func() bool { return len(b.Claims()) == 2 })

	// so that the log has several updates
	more := func(t *testing.T) int64 {
		t.Helper()
		height := c.node.Application().Height() + 3
		va, vb := c.dial(a), c.dial(b)
		nodetest.Until(t, "more blocks", func() bool {
			one, other := va.feed(height), vb.feed(height)
			return one && other
		})
		return height
	}
	t.Run("the state", func(t *testing.T) {
		height := more(t)
		tables := filepath.Join(dir, "state", "*.sst")
		nodetest.Until(t, "the fetched state in the database", func() bool {
			files, err := filepath.Glob(tables)
			return err == nil && len(files) > 0
		})
		require.NoError(t, b.Stop())
		flip(t, tables, 40)
		logs := new(nodetest.LogBuffer)
		b = c.start(second, logs.Logger(t), 0)
		require.True(t, logs.Has("The data of a range cannot be used"))
		nodetest.Until(t, "the range", func() bool { return len(b.Claims()) == 2 })
		c.requireSame(b)
		require.Equal(t, dir+damagedSuffix, b.ranges().Ranges[0].Damaged)
		require.Empty(t, b.ranges().Ranges[1].Damaged)
		kept, err := server.OpenRedoLog(server.RedoOptions{
			FS: vfs.Default, Dir: filepath.Join(dir+damagedSuffix, "log"), Label: []byte(b.genesis.ChainID),
		})
		require.NoError(t, err)
		_, newest, ok := kept.Heights(server.RangeIDOf(c.ranges[0]))
		require.True(t, ok, "its updates are kept")
		require.GreaterOrEqual(t, newest, height)
		require.NoError(t, kept.Close())
	})
	t.Run("the log", func(t *testing.T) {
		height := more(t)
		require.NoError(t, b.Stop())
		log := filepath.Join(filepath.Dir(dir), "log")
		flip(t, filepath.Join(log, "000001.seg"), 60)
		logs := new(nodetest.LogBuffer)
		b = c.start(second, logs.Logger(t), 0)
		require.True(t, logs.Has("The log of updates is damaged"))
		require.DirExists(t, log+damagedSuffix)
		require.False(t, logs.Has("The data of a range cannot be used"))
		vb := c.dial(b)
		nodetest.Until(t, "the heights that were in the log", func() bool { return vb.feed(height) })
		c.requireSame(b)
	})

	t.Run("while it runs", func(t *testing.T) {
		logs := new(nodetest.LogBuffer)
		require.NoError(t, b.Stop())
		b = c.start(second, logs.Logger(t), 0)
		require.NoError(t, os.RemoveAll(dir+damagedSuffix))
		b.mu.Lock()
		old := b.mu.places[0].replica
		b.mu.Unlock()
		b.broken(old, fmt.Errorf("a replica: %w", server.ErrDamaged))
		nodetest.Until(t, "the range", func() bool { return logs.Has("Took a range over") && len(b.Claims()) == 2 })
		require.DirExists(t, dir+damagedSuffix)
		c.requireSame(b)
		require.Empty(t, b.failed)
		b.broken(old, os.ErrPermission)
		require.ErrorIs(t, <-b.Failed(), os.ErrPermission)
	})
}

// Data that may be whole are never put aside: the node ends if the disk fails. Neither is a second
// range's data, if the ranges have changed twice.
func TestIsNotPutAside(t *testing.T) {
	t.Parallel() // it waits for blocks
	c := newChain(t, twoRanges()...)
	home := c.replicaHome()
	c.stopped(home)
	dir := filepath.Join(rangesDir(nodetest.Load(t, home)), folderOf(c.ranges[0]))
	open := func() error {
		n, err := New(t.Context(), Options{Config: nodetest.Load(t, home), Logger: log.NewNopLogger()})
		if err == nil {
			err = n.Stop()
		}
		return err
	}
	states, err := filepath.Glob(filepath.Join(dir, "state", "MANIFEST-*"))
	require.NoError(t, err)
	require.NotEmpty(t, states)
	for _, file := range states { // a folder opens, and cannot be read
		require.NoError(t, os.Rename(file, file+".kept"))
		require.NoError(t, os.Mkdir(file, 0o700))
	}
	require.Error(t, open())
	require.DirExists(t, dir)
	require.NoDirExists(t, dir+damagedSuffix)
	for _, file := range states {
		require.NoError(t, os.Remove(file))
		require.NoError(t, os.Rename(file+".kept", file))
	}
	require.NoError(t, open())

	other := filepath.Join(filepath.Dir(dir), folderOf(c.ranges[1]))
	require.NoError(t, os.RemoveAll(dir))
	require.NoError(t, os.CopyFS(dir, os.DirFS(other)))
	require.NoError(t, open(), "the data of another range are put aside")
	require.DirExists(t, dir+damagedSuffix)
	require.NoError(t, os.CopyFS(dir, os.DirFS(other)))
	require.ErrorIs(t, open(), config.ErrInvalid, "not twice")
	require.DirExists(t, dir)
}
