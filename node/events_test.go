package node

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/internal/nodetest"
	"github.com/starling-kv/starling/storage/events"
)

// hearing watches all events at the node of a home from a height on, until the event of a key's
// last write.
func hearing(t *testing.T, home string, from int64, last string) (heard []client.Event, err error) {
	t.Helper()
	c, err := client.Dial(t.Context(), []string{config.RPCAddress(home)})
	require.NoError(t, err)
	w, err := c.Watch(t.Context(), nil, client.WatchFromHeight(from))
	for err == nil {
		var e client.Event
		if e, err = w.Next(t.Context()); err == nil {
			heard = append(heard, e)
			if string(e.Key) == last {
				return heard, nil
			}
		}
	}
	return heard, err
}

// requireCompacted expects that a watcher from height 1 is told that the events are compacted, and
// that a watcher from the least height receives the previous events and then the keys, without a
// gap.
func requireCompacted(t *testing.T, n *Node, home string, before []client.Event, keys ...string) {
	t.Helper()
	last := string(before[len(before)-1].Key)
	if len(keys) > 0 {
		last = keys[len(keys)-1]
	}
	var compacted *client.CompactedError
	heard, err := hearing(t, home, 1, last)
	require.ErrorAs(t, err, &compacted)
	require.Empty(t, heard)
	least := n.application.events.Stats().Least
	require.Equal(t, least, compacted.Least)
	require.Greater(t, least, int64(1))
	heard, err = hearing(t, home, least, last)
	require.NoError(t, err)
	for _, e := range before {
		if e.Height >= least {
			require.NotEmpty(t, heard)
			require.Equal(t, e, heard[0])
			heard = heard[1:]
		}
	}
	var after []string
	for _, e := range heard {
		after = append(after, string(e.Key))
	}
	require.Equal(t, keys, after)
}

// A missing or damaged event log is replaced by one that starts with the blocks that the restart
// executes; the log of a joined node starts with its first block. Watchers of older heights get an
// error instead of silently missing events.
func TestEventLogIsReplaced(t *testing.T) {
	t.Parallel() // it waits for blocks
	dir, n, first := fastNetwork(t, 10)
	keysAt := n.Application().Height()
	nodetest.Until(t, "a snapshot with all keys", func() bool {
		heights := n.application.snapshots.Heights()
		return len(heights) > 0 && heights[len(heights)-1] > keysAt && n.Comet().BlockStore().Height() > heights[len(heights)-1]+2
	})
	write := func(home, name string) (keys []string) {
		for i := range 6 {
			keys = append(keys, fmt.Sprint(name, "-", i))
			nodetest.Put(t, nodetest.RPC(t, home), keys[i], "v")
		}
		return keys
	}

	joiner := fastJoiner(t, dir, n, first, nil)
	j := start(t, joiner, log.NewNopLogger())
	follows(t, j, n)
	write(dir, "joined")
	said, err := hearing(t, dir, 1, "joined-5")
	require.NoError(t, err)
	requireCompacted(t, j, joiner, said)
	require.NoError(t, j.Stop())

	folder := config.EventsDir(nodetest.Load(t, dir).CometBFT.DBDir())
	for name, spoil := range map[string]func() error{
		"deleted": func() error { return os.RemoveAll(folder) },
		"damaged": func() error { return spoilTables(folder) },
	} {
		require.NoError(t, n.Stop())
		// Then its events are in tables, and no longer in the database's own log.
		l, err := events.Open(folder, events.Options{})
		require.NoError(t, err)
		require.NoError(t, l.Close())
		require.NoError(t, spoil(), name)
		n = start(t, dir, log.NewNopLogger())
		requireCompacted(t, n, dir, said, write(dir, name)...)
		said, err = hearing(t, dir, n.application.events.Stats().Least, name+"-5")
		require.NoError(t, err)
	}
}

// The event log of a sharded validator is synced with each block. If it is missing, it begins with
// the blocks that the start executes on the storage nodes' state.
func TestShardedEventLogIsReplaced(t *testing.T) {
	t.Parallel() // it waits for blocks
	w := newShardedNetwork(t, nil, [][]int{{0}})
	w.start(0)
	n := start(t, w.validator, log.NewNopLogger())
	for i := range 3 {
		nodetest.Put(t, nodetest.RPC(t, w.validator), fmt.Sprint("before-", i), "v")
	}
	said, err := hearing(t, w.validator, 1, "before-2")
	require.NoError(t, err)
	durable := said[len(said)-1].Height // otherwise the start may execute the first blocks again
	nodetest.Until(t, "the storage node has the blocks", func() bool { return n.application.backing.(*sharded).store.Durable() > durable })
	require.NoError(t, n.Stop())
	require.NoError(t, os.RemoveAll(config.EventsDir(nodetest.Load(t, w.validator).CometBFT.DBDir())))
	n = start(t, w.validator, log.NewNopLogger())
	nodetest.Put(t, nodetest.RPC(t, w.validator), "after", "v")
	requireCompacted(t, n, w.validator, said, "after")
}

// spoilTables damages all tables of a database, except their last bytes.
func spoilTables(folder string) error {
	tables, err := filepath.Glob(filepath.Join(folder, "*.sst"))
	if err != nil {
		return err
	}
	if len(tables) == 0 {
		return errors.New("there are no tables")
	}
	for _, path := range tables {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rubbish := bytes.Repeat([]byte("rubbish!"), len(b)/8)
		copy(b[:max(0, len(b)-200)], rubbish)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			return err
		}
	}
	return nil
}
