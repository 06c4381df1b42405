package node

import (
	"fmt"
	"strings"
	"testing"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/home"
	"github.com/starling-kv/starling/node/internal/nodetest"
)

// A sharded node joins by the upper tree, follows the head, and continues after a restart.
func TestShardedJoin(t *testing.T) {
	t.Parallel() // it waits for blocks
	w := newShardedNetwork(t, []string{"key-10", "key-20"}, [][]int{{0}, {0, 1}, {1}})
	w.start(0)
	w.start(1)
	n := start(t, w.validator, log.NewNopLogger())
	client := nodetest.RPC(t, w.validator)
	for i := range 30 {
		nodetest.Put(t, client, fmt.Sprintf("key-%02d", i), fmt.Sprint("value ", i))
	}
	nodetest.Until(t, "the storage nodes have what was written", func() bool { return n.Application().backing.(*sharded).store.Durable() > 10 })
	joiner := w.shardedJoiner(n)
	before := n.Application().Height()
	nodetest.Until(t, "the storage nodes have that height", func() bool { return n.Application().backing.(*sharded).store.Durable() >= before })
	logs := new(nodetest.LogBuffer)
	began := time.Now()
	j := start(t, joiner, logs.Logger(t))
	follows(t, j, n)
	t.Logf("from the command to following the head: %v", time.Since(began))
	require.True(t, logs.Has("Joining: fetched the upper tree from the storage nodes"))
	require.Greater(t, j.Comet().BlockStore().Base(), int64(1), "blocks were replayed from the first one")
	require.GreaterOrEqual(t, j.Comet().BlockStore().Base(), before-3)
	for i := range 30 {
		require.Equal(t, fmt.Sprint("value ", i), nodetest.Get(t, nodetest.RPC(t, joiner), fmt.Sprintf("key-%02d", i)))
	}
	nodetest.Put(t, client, "key-15", "another")
	follows(t, j, n)
	require.Equal(t, "another", nodetest.Get(t, nodetest.RPC(t, joiner), "key-15"))

	require.NoError(t, j.Stop())
	nodetest.Put(t, client, "key-16", "another")
	j = start(t, joiner, log.NewNopLogger())
	follows(t, j, n)
	require.Equal(t, "another", nodetest.Get(t, nodetest.RPC(t, joiner), "key-16"))
}

// shardedJoiner creates the home of a node that joins the network of a running validator.
func (w *shardedNetwork) shardedJoiner(n *Node) string {
	w.t.Helper()
	trusted := n.Comet().BlockStore().LoadBlockMeta(1)
	joiner, _ := nodetest.Home(w.t, func(o *home.InitOptions) {
		o.GenesisFile = w.genesis()
		edit := o.Edit
		o.Edit = func(c *cfg.Config, a *config.App) {
			edit(c, a)
			c.P2P.PersistentPeers = fmt.Sprintf("%s@%s", w.id, nodetest.Load(w.t, w.validator).CometBFT.P2P.ListenAddress[len("tcp://"):])
			c.StateSync.Enable, c.StateSync.TrustHeight, c.StateSync.TrustHash = true, 1, trusted.BlockID.Hash.String()
			a.Join.Peers = fmt.Sprintf("%s@%s", w.id, w.transport)
			a.State.Mode, a.State.RetainDepth, a.State.Window, a.State.MinAcks = config.ModeSharded, 3, 8, 1
		}
	})
	w.giveRanges(joiner)
	return joiner
}

// A full-state node joins a network all of whose validators are sharded: each of four storage nodes
// has a quarter of the state, and no other node has chunks.
func TestLocalJoinFromStorageNodes(t *testing.T) {
	t.Parallel() // it waits for blocks
	genesis := app.Genesis{Open: true, ChunkBytes: 512, SnapshotInterval: 10}
	w := newShardedNetworkOf(t, genesis, []string{"key-10", "key-20", "key-30"}, [][]int{{0}, {1}, {2}, {3}})
	for i := range w.nodes {
		w.start(i)
	}
	n := start(t, w.validator, log.NewNopLogger())
	client := nodetest.RPC(t, w.validator)
	for i := range 40 {
		nodetest.Put(t, client, fmt.Sprintf("key-%02d", i), fmt.Sprint("value ", i, strings.Repeat("-", 100)))
	}
	written := n.Application().Height()
	trusted := n.Comet().BlockStore().LoadBlockMeta(1)
	joiner, _ := nodetest.Home(t, func(o *home.InitOptions) {
		o.GenesisFile = w.genesis()
		edit := o.Edit
		o.Edit = func(c *cfg.Config, a *config.App) {
			edit(c, a)
			c.P2P.PersistentPeers = fmt.Sprintf("%s@%s", w.id, nodetest.Load(t, w.validator).CometBFT.P2P.ListenAddress[len("tcp://"):])
			c.StateSync.Enable, c.StateSync.TrustHeight, c.StateSync.TrustHash = true, 1, trusted.BlockID.Hash.String()
			// headers come from the validator, which advertises the storage nodes
			a.Join.Peers = fmt.Sprintf("%s@%s", w.id, w.transport)
		}
	})
	nodetest.Until(t, "a snapshot with all keys", func() bool { return n.Application().Height() > written+12 })
	logs := new(nodetest.LogBuffer)
	j := start(t, joiner, logs.Logger(t))
	follows(t, j, n)
	require.True(t, logs.Has("Joining: the state is restored"))
	require.GreaterOrEqual(t, j.Comet().BlockStore().Base(), int64(10), "blocks were replayed from the first one")
	for i := range 40 {
		require.Contains(t, nodetest.Get(t, nodetest.RPC(t, joiner), fmt.Sprintf("key-%02d", i)), fmt.Sprint("value ", i))
	}
	nodetest.Put(t, client, "key-15", "another")
	follows(t, j, n)
	require.Equal(t, "another", nodetest.Get(t, nodetest.RPC(t, joiner), "key-15"))
}
