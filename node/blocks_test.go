package node

import (
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/home"
	"github.com/starling-kv/starling/node/internal/nodetest"
	"github.com/starling-kv/starling/statesync/catchup"
)

// longChain is a validator that has made blocks fast, and now makes them slowly, so that others can
// follow it by gossip.
func longChain(t *testing.T, blocks int64) (dir string, n *Node, first home.InitResult) {
	t.Helper()
	dir, first = nodetest.Home(t, func(o *home.InitOptions) { o.App = app.Genesis{Open: true} })
	n = start(t, dir, log.NewNopLogger())
	writeKeys(t, dir, 0, 30)
	nodetest.Until(t, "blocks", func() bool { return n.Comet().BlockStore().Height() >= blocks })
	require.NoError(t, n.Stop())
	conf := nodetest.Load(t, dir)
	conf.CometBFT.Consensus.TimeoutCommit, conf.CometBFT.Consensus.CreateEmptyBlocksInterval = 350*time.Millisecond, 0
	n, err := New(t.Context(), conf, log.NewNopLogger())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Stop()) })
	require.NoError(t, n.Start(t.Context()))
	return dir, n, first
}

// follower is a home that joins from the first block.
func follower(t *testing.T, dir string, n *Node, first home.InitResult) string {
	t.Helper()
	joiner, _ := nodetest.Home(t, func(o *home.InitOptions) {
		o.GenesisFile = filepath.Join(dir, "config", "genesis.json")
		edit := o.Edit
		o.Edit = func(c *cfg.Config, a *config.App) {
			edit(c, a)
			c.P2P.PersistentPeers = fmt.Sprintf("%s@%s", first.NodeID, nodetest.Load(t, dir).CometBFT.P2P.ListenAddress[len("tcp://"):])
			a.Join.Peers = fmt.Sprintf("%s@%s", first.NodeID, n.server.Load().Addr())
		}
	})
	return joiner
}

// A new node, and later an offline node, fetches blocks over the transport before CometBFT is made;
// they are indexed like others.
func TestCatchUpByBlocks(t *testing.T) {
	t.Parallel() // it waits for blocks
	dir, n, first := longChain(t, 80)
	joiner := follower(t, dir, n, first)
	var last atomic.Pointer[catchup.Progress]
	tell := WithBlocksProgress(func(p catchup.Progress) { last.Store(&p) })
	logs := new(nodetest.LogBuffer)
	j := start(t, joiner, logs.Logger(t), eager, tell)
	require.True(t, logs.Has("Caught up by blocks over the transport"))
	p := last.Load()
	require.Equal(t, catchup.Normal, p.State)
	require.GreaterOrEqual(t, p.Blocks, int64(79))
	require.Equal(t, 1, p.Peers)
	follows(t, j, n)
	require.Equal(t, int64(1), j.Comet().BlockStore().Base())
	require.Equal(t, fmt.Sprintf("%064d", 7), nodetest.Get(t, nodetest.RPC(t, joiner), "key-07"))
	for h := int64(1); h <= p.Height; h++ {
		require.Equal(t, n.Comet().BlockStore().LoadBlockMeta(h), j.Comet().BlockStore().LoadBlockMeta(h))
	}
	client := nodetest.RPC(t, joiner)
	found, err := client.TxSearch(t.Context(), fmt.Sprintf("tx.height <= %d", p.Height), false, nil, nil, "")
	require.NoError(t, err)
	require.Equal(t, 30, found.TotalCount)
	indexed, err := client.BlockSearch(t.Context(), fmt.Sprintf("block.height = %d", p.Height), nil, nil, "")
	require.NoError(t, err)
	require.Equal(t, 1, indexed.TotalCount)

	// Offline for a while.
	require.NoError(t, j.Stop())
	stopped := j.Application().Height()
	writeKeys(t, dir, 30, 33)
	nodetest.Until(t, "the network ahead", func() bool { return n.Comet().BlockStore().Height() > stopped+8 })
	j = start(t, joiner, log.NewNopLogger(), eager, tell)
	require.GreaterOrEqual(t, last.Load().Blocks, int64(7))
	require.Greater(t, last.Load().Height, stopped+6)
	follows(t, j, n)
	require.Equal(t, fmt.Sprintf("%064d", 31), nodetest.Get(t, nodetest.RPC(t, joiner), "key-31"))
}

// halt_height ends the catch-up at that block, as it ends block sync.
func TestCatchUpHalts(t *testing.T) {
	t.Parallel() // it waits for blocks
	dir, n, first := longChain(t, 50)
	conf := nodetest.Load(t, follower(t, dir, n, first))
	conf.App.HaltHeight = 41
	j, err := New(t.Context(), conf, log.NewNopLogger(), eager)
	require.NoError(t, err)
	require.ErrorContains(t, j.Start(t.Context()), "halted at height 41")
	require.NoError(t, j.Stop())
	require.Equal(t, int64(41), j.Application().Height())
	conf.App.HaltHeight = 0
	j, err = New(t.Context(), conf, log.NewNopLogger(), eager)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, j.Stop()) })
	require.NoError(t, j.Start(t.Context()))
	follows(t, j, n)
}
