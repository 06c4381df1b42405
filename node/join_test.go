package node

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/home"
	"github.com/starling-kv/starling/node/internal/nodetest"
	"github.com/starling-kv/starling/node/join"
	"github.com/starling-kv/starling/statesync/restore"
	"github.com/starling-kv/starling/statesync/snapshot"
)

// fastNetwork is a validator with n keys, and snapshots at every fourth height.
func fastNetwork(t *testing.T, keys int) (dir string, n *Node, first home.InitResult) {
	t.Helper()
	dir, first = nodetest.Home(t, func(o *home.InitOptions) {
		o.App = app.Genesis{Open: true, ChunkBytes: 512, SnapshotInterval: 4}
		edit := o.Edit
		o.Edit = func(c *cfg.Config, a *config.App) {
			edit(c, a)
			// nobody can follow more than about seven blocks per second by gossip
			c.Consensus.TimeoutCommit, c.Consensus.CreateEmptyBlocksInterval = 350*time.Millisecond, 0
		}
	})
	n = start(t, dir, log.NewNopLogger())
	writeKeys(t, dir, 0, keys)
	return dir, n, first
}

func writeKeys(t *testing.T, home string, from, to int) {
	t.Helper()
	client := nodetest.RPC(t, home)
	for i := from; i < to-1; i++ {
		_, err := client.BroadcastTxSync(t.Context(), fmt.Appendf(nil, "key-%02d=%064d", i, i))
		require.NoError(t, err)
	}
	nodetest.Put(t, client, fmt.Sprintf("key-%02d", to-1), fmt.Sprintf("%064d", to-1))
}

// fastJoiner is a home that joins the network over the transport, with no RPC server.
func fastJoiner(t *testing.T, dir string, n *Node, first home.InitResult, more func(*cfg.Config, *config.App)) string {
	t.Helper()
	trusted := n.Comet().BlockStore().LoadBlockMeta(1)
	joiner, _ := nodetest.Home(t, func(o *home.InitOptions) {
		o.GenesisFile = filepath.Join(dir, "config", "genesis.json")
		edit := o.Edit
		o.Edit = func(c *cfg.Config, a *config.App) {
			edit(c, a)
			c.P2P.PersistentPeers = fmt.Sprintf("%s@%s", first.NodeID, nodetest.Load(t, dir).CometBFT.P2P.ListenAddress[len("tcp://"):])
			c.StateSync.Enable, c.StateSync.TrustHeight, c.StateSync.TrustHash = true, 1, trusted.BlockID.Hash.String()
			a.Join.Peers = fmt.Sprintf("%s@%s", first.NodeID, n.server.Load().Addr())
			if more != nil {
				more(c, a)
			}
		}
	})
	return joiner
}

// follows waits until a node has reached the network's current height, and takes part in consensus.
func follows(t *testing.T, j, n *Node) {
	t.Helper()
	head := n.Comet().BlockStore().Height()
	nodetest.Until(t, "the joiner at the head", func() bool {
		return !j.Comet().ConsensusReactor().WaitSync() && j.Application().Height() >= head
	})
	nodetest.SameHashes(t, j.Application(), j.Comet)
}

// A node joins over the transport, with a trusted header and the address of one peer, and follows
// the head. Later it is offline for a while and catches up by fetching the parts of the state that
// differ.
func TestJoinOverTheTransport(t *testing.T) {
	t.Parallel() // it waits for blocks
	home, n, first := fastNetwork(t, 40)
	keysAt := n.Application().Height()
	nodetest.Until(t, "a snapshot with all keys", func() bool {
		heights := n.application.snapshots.Heights()
		return len(heights) > 0 && heights[len(heights)-1] > keysAt && n.Comet().BlockStore().Height() > heights[len(heights)-1]+2
	})
	joiner := fastJoiner(t, home, n, first, func(_ *cfg.Config, a *config.App) { a.CatchUp.StateThresholdBlocks = 5 })
	logs := new(nodetest.LogBuffer)
	j := start(t, joiner, logs.Logger(t))
	follows(t, j, n)
	require.True(t, logs.Has("Joining: the state is restored"))
	base := j.Comet().BlockStore().Base()
	require.Greater(t, base, keysAt, "the blocks were replayed")
	require.Equal(t, fmt.Sprintf("%064d", 7), nodetest.Get(t, nodetest.RPC(t, joiner), "key-07"))
	nodetest.Until(t, "the validator to know the joiner's transport", func() bool { return len(n.serving.reactor.Known()) == 1 })
	known := n.serving.reactor.Known()[0]
	require.Equal(t, j.ID(), string(known.ID))
	require.Equal(t, j.server.Load().Addr().String(), known.HostPort)

	// Offline.
	require.NoError(t, j.Stop())
	stopped := j.Application().Height()
	signing, err := os.ReadFile(nodetest.Load(t, joiner).CometBFT.PrivValidatorStateFile())
	require.NoError(t, err)
	writeKeys(t, home, 40, 43)
	nodetest.Until(t, "the network far ahead", func() bool { return n.Comet().BlockStore().Height() > stopped+10 })

	// Too short to fetch the state.
	logs = new(nodetest.LogBuffer)
	j = start(t, joiner, logs.Logger(t))
	require.False(t, logs.Has("The chain is far ahead"))
	require.Equal(t, base, j.Comet().BlockStore().Base())
	// a peer that stops while it connects can stay in CometBFT's list, which then refuses it
	// forever
	follows(t, j, n)
	require.NoError(t, j.Stop())
	stopped = j.Application().Height()
	nodetest.Until(t, "the network far ahead again", func() bool { return n.Comet().BlockStore().Height() > stopped+10 })

	logs = new(nodetest.LogBuffer)
	j = start(t, joiner, logs.Logger(t), eager)
	require.True(t, logs.Has("The chain is far ahead"))
	follows(t, j, n)
	require.Greater(t, j.Comet().BlockStore().Base(), stopped)
	require.NotNil(t, j.Comet().BlockStore().LoadBlockMeta(j.Comet().BlockStore().Base()-1), "evidence may be about it")
	require.Equal(t, fmt.Sprintf("%064d", 42), nodetest.Get(t, nodetest.RPC(t, joiner), "key-42"))
	after, err := os.ReadFile(nodetest.Load(t, joiner).CometBFT.PrivValidatorStateFile())
	require.NoError(t, err)
	require.Equal(t, signing, after, "the signing state is nobody's business")
	require.NoFileExists(t, filepath.Join(nodetest.Load(t, joiner).CometBFT.DBDir(), "blocks.old"))
}

// eager makes a node ask peers for their height regardless of the age of its last block, and wait
// for the answer.
func eager(o *options) {
	o.joinTimes = join.Times{Age: time.Nanosecond, Ask: nodetest.Patience, Newest: nodetest.Patience, Stall: nodetest.Patience}
}

// fetchOnly joins up to the point where the state is complete but not recorded for CometBFT.
func fetchOnly(t *testing.T, joiner string) (height int64) {
	t.Helper()
	j, err := New(t.Context(), nodetest.Load(t, joiner), log.NewNopLogger(), eager)
	require.NoError(t, err)
	o := join.NetworkOptions{Config: j.config, Logger: log.NewNopLogger(), Genesis: j.genesis, NodeKey: j.nodeKey}
	o.Addresses, err = config.JoinAddresses(j.config)
	require.NoError(t, err)
	if j.way != join.New {
		o.Own = j.databases
	}
	network, err := join.Connect(o)
	require.NoError(t, err)
	fetch := restore.Options{
		Logger: log.NewNopLogger(), Peers: network.Peers(), Headers: network.Verifier(), Target: j.application.local.target, Interval: j.application.interval,
	}
	if at, v := latest(t, j.application); v != nil {
		whole, err := j.application.local.store.Whole(t.Context(), v)
		require.NoError(t, err)
		defer whole.Release()
		fetch.Local, fetch.LocalHeight = whole, at
		j.application.local.target.Replace()
	}
	result, err := restore.Run(t.Context(), fetch)
	require.NoError(t, err)
	result.Version.Release()
	network.Close()
	require.NoError(t, j.Stop())
	return result.Height
}

// A join is killed when the state is complete but not recorded for CometBFT: only the remaining
// steps are done. The same for a catch-up.
func TestJoinKilledBeforeTheBootstrap(t *testing.T) {
	t.Parallel() // it waits for blocks
	home, n, first := fastNetwork(t, 20)
	nodetest.Until(t, "a snapshot", func() bool { return n.Comet().BlockStore().Height() > 8 })
	joiner := fastJoiner(t, home, n, first, nil)
	height := fetchOnly(t, joiner)
	logs := new(nodetest.LogBuffer)
	j := start(t, joiner, logs.Logger(t))
	require.False(t, logs.Has("Joining: restoring a snapshot"))
	follows(t, j, n)
	require.Equal(t, height+1, j.Comet().BlockStore().Base())

	require.NoError(t, j.Stop())
	stopped := j.Application().Height()
	nodetest.Until(t, "the network ahead", func() bool { return n.Comet().BlockStore().Height() > stopped+8 })
	height = fetchOnly(t, joiner)
	require.Greater(t, height, stopped)
	config := nodetest.Load(t, joiner)
	config.CometBFT.StateSync.Enable = false
	_, err := New(t.Context(), config, log.NewNopLogger())
	require.Error(t, err, "the blocks do not lead to this state")
	logs = new(nodetest.LogBuffer)
	j = start(t, joiner, logs.Logger(t))
	require.True(t, logs.Has("Removed the old blocks"))
	require.False(t, logs.Has("Joining: restoring a snapshot"))
	follows(t, j, n)
	require.Equal(t, height+1, j.Comet().BlockStore().Base())
}

// A catch-up is killed in the middle: the next start resumes it, or reports what it needs for that.
func TestCatchUpKilled(t *testing.T) {
	t.Parallel() // it waits for blocks
	dir, n, first := fastNetwork(t, 20)
	nodetest.Until(t, "a snapshot", func() bool { return n.Comet().BlockStore().Height() > 8 })
	joiner := fastJoiner(t, dir, n, first, nil)
	j := start(t, joiner, log.NewNopLogger())
	follows(t, j, n)
	require.NoError(t, j.Stop())
	stopped := j.Application().Height()
	nodetest.Until(t, "the network ahead", func() bool { return n.Comet().BlockStore().Height() > stopped+8 })

	_, v := latest(t, n.application)
	j, err := New(t.Context(), nodetest.Load(t, joiner), log.NewNopLogger(), eager)
	require.NoError(t, err)
	j.application.local.target.Replace()
	require.NoError(t, j.application.local.target.Continue(4, v.Manifest()))
	require.NoError(t, j.Stop())

	config := nodetest.Load(t, joiner)
	found, err := home.Inspect(t.Context(), config, false, nil)
	require.NoError(t, err)
	require.EqualValues(t, 4, found.State.Joining)
	require.Zero(t, found.State.Height)
	config.CometBFT.StateSync.Enable = false
	_, err = New(t.Context(), config, log.NewNopLogger())
	require.ErrorContains(t, err, "start it with --statesync.enable")
	j = start(t, joiner, log.NewNopLogger())
	follows(t, j, n)
	require.Greater(t, j.Comet().BlockStore().Base(), stopped)
}

// Without a reachable transport, the node joins in-band if there are RPC servers.
func TestJoinFallsBack(t *testing.T) {
	t.Parallel() // it waits for blocks
	home, n, first := fastNetwork(t, 10)
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer nobody.Close() // a listener that never answers
	address := nobody.Addr().String()
	unreachable := func(c *cfg.Config, a *config.App) {
		a.Join.Peers, a.Join.ReachTimeout = address, 50*time.Millisecond
		c.P2P.PersistentPeers = ""
	}
	joiner := fastJoiner(t, home, n, first, unreachable)
	j, err := New(t.Context(), nodetest.Load(t, joiner), log.NewNopLogger())
	require.NoError(t, err)
	err = j.Start(t.Context())
	require.ErrorIs(t, err, join.ErrNoTransport)
	require.ErrorContains(t, err, "statesync.rpc_servers")
	require.NoError(t, j.Stop())

	none := fastJoiner(t, home, n, first, func(c *cfg.Config, a *config.App) { a.Join.Peers, c.P2P.PersistentPeers = "", "" })
	j, err = New(t.Context(), nodetest.Load(t, none), log.NewNopLogger())
	require.NoError(t, err)
	require.ErrorContains(t, j.Start(t.Context()), "p2p.persistent_peers, p2p.seeds or join.peers")
	require.NoError(t, j.Stop())

	joiner = fastJoiner(t, home, n, first, func(c *cfg.Config, a *config.App) {
		a.Join.Peers, a.Join.ReachTimeout = address, 50*time.Millisecond
		c.StateSync.RPCServers = []string{config.RPCAddress(home), config.RPCAddress(home)}
	})
	logs := new(nodetest.LogBuffer)
	j = start(t, joiner, logs.Logger(t))
	require.True(t, logs.Has("falling back to CometBFT's own state sync"))
	nodetest.Until(t, "the joiner at the head", func() bool {
		return j.Application().Height() > 0 && !j.Comet().ConsensusReactor().WaitSync()
	})
}

// The same if the transport has no snapshot.
func TestJoinFallsBackWithoutASnapshot(t *testing.T) {
	dir, first := nodetest.Home(t, func(o *home.InitOptions) {
		o.App = app.Genesis{Open: true, SnapshotInterval: 2}
		edit := o.Edit
		o.Edit = func(c *cfg.Config, a *config.App) {
			edit(c, a)
			a.Snapshots.Keep = 0
		}
	})
	n := start(t, dir, log.NewNopLogger())
	nodetest.Until(t, "a chain that has passed its first snapshot", func() bool { return n.Comet().BlockStore().Height() > 5 })
	joiner := fastJoiner(t, dir, n, first, func(c *cfg.Config, _ *config.App) {
		c.StateSync.RPCServers = []string{config.RPCAddress(dir), config.RPCAddress(dir)}
	})
	logs := new(nodetest.LogBuffer)
	j, err := New(t.Context(), nodetest.Load(t, joiner), logs.Logger(t))
	require.NoError(t, err)
	j.joinOptions.Times.Choose = time.Second
	require.NoError(t, j.Start(t.Context()))
	require.NoError(t, j.Stop())
	require.True(t, logs.Has("falling back to CometBFT's own state sync"))
	require.True(t, logs.Has(snapshot.ErrNothing.Error()))
}

// A node joins a chain below its first snapshot by blocks, and says so.
func TestJoinAYoungChain(t *testing.T) {
	t.Parallel() // it waits for blocks
	dir, first := nodetest.Home(t, func(o *home.InitOptions) { o.App = app.Genesis{Open: true, SnapshotInterval: 1_000_000} })
	n := start(t, dir, log.NewNopLogger())
	writeKeys(t, dir, 0, 3)
	nodetest.Until(t, "blocks to fetch", func() bool { return n.Comet().BlockStore().Height() > 2 })
	joiner := fastJoiner(t, dir, n, first, nil)
	logs := new(nodetest.LogBuffer)
	j := start(t, joiner, logs.Logger(t), eager)
	require.True(t, logs.Has("The chain has no snapshot yet: joining by blocks"))
	follows(t, j, n)
	require.Equal(t, int64(1), j.Comet().BlockStore().Base())
	require.Equal(t, fmt.Sprintf("%064d", 2), nodetest.Get(t, nodetest.RPC(t, joiner), "key-02"))
	require.NoError(t, j.Stop())

	j = start(t, joiner, log.NewNopLogger())
	follows(t, j, n)

	// Without a catch-up, by CometBFT's block sync.
	logs = new(nodetest.LogBuffer)
	j = start(t, fastJoiner(t, dir, n, first, func(_ *cfg.Config, a *config.App) { a.CatchUp.Enabled = false }), logs.Logger(t), eager)
	require.True(t, logs.Has("The chain has no snapshot yet: joining by blocks"))
	follows(t, j, n)
}

// A stop during the join ends it at once.
func TestJoinIsStopped(t *testing.T) {
	home, n, first := fastNetwork(t, 10)
	joiner := fastJoiner(t, home, n, first, func(_ *cfg.Config, a *config.App) { a.Join.ReachTimeout = time.Hour; a.Join.Peers = "127.0.0.1:1" })
	config := nodetest.Load(t, joiner)
	config.CometBFT.P2P.PersistentPeers = ""
	j, err := New(t.Context(), config, log.NewNopLogger())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, j.Start(ctx), context.Canceled)
	require.NoError(t, j.Stop())
}
