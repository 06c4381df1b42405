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
	"github.com/starling-kv/starling/statesync/fastsync"
)

// fastNetwork is a validator with n keys, and snapshots at every fourth height.
func fastNetwork(t *testing.T, keys int) (home string, n *Node, first InitResult) {
	t.Helper()
	home, first = testHome(t, func(o *InitOptions) {
		o.App = app.Genesis{Open: true, ChunkBytes: 512, SnapshotInterval: 4}
		edit := o.Edit
		o.Edit = func(c *cfg.Config, a *AppConfig) {
			edit(c, a)
			c.Consensus.TimeoutCommit = 350 * time.Millisecond // more than some seven blocks a second nobody can follow by gossip
		}
	})
	n = start(t, home, log.NewNopLogger())
	writeKeys(t, home, 0, keys)
	return home, n, first
}

func writeKeys(t *testing.T, home string, from, to int) {
	t.Helper()
	client := rpcOf(t, home)
	for i := from; i < to-1; i++ {
		_, err := client.BroadcastTxSync(t.Context(), fmt.Appendf(nil, "key-%02d=%064d", i, i))
		require.NoError(t, err)
	}
	put(t, client, fmt.Sprintf("key-%02d", to-1), fmt.Sprintf("%064d", to-1))
}

// fastJoiner is a home that joins the network over the transport, with no RPC server.
func fastJoiner(t *testing.T, home string, n *Node, first InitResult, more func(*cfg.Config, *AppConfig)) string {
	t.Helper()
	trusted := n.Comet().BlockStore().LoadBlockMeta(1)
	joiner, _ := testHome(t, func(o *InitOptions) {
		o.GenesisFile = filepath.Join(home, "config", "genesis.json")
		edit := o.Edit
		o.Edit = func(c *cfg.Config, a *AppConfig) {
			edit(c, a)
			c.P2P.PersistentPeers = fmt.Sprintf("%s@%s", first.NodeID, load(t, home).CometBFT.P2P.ListenAddress[len("tcp://"):])
			c.StateSync.Enable, c.StateSync.TrustHeight, c.StateSync.TrustHash = true, 1, trusted.BlockID.Hash.String()
			a.Join.Peers = fmt.Sprintf("%s@%s", first.NodeID, n.serving.server.Addr())
			if more != nil {
				more(c, a)
			}
		}
	})
	return joiner
}

// follows waits until a node is where the network is now, and takes part in consensus.
func follows(t *testing.T, j, n *Node) {
	t.Helper()
	head := n.Comet().BlockStore().Height()
	until(t, "the joiner at the head", func() bool {
		return !j.Comet().ConsensusReactor().WaitSync() && j.Application().Height() >= head
	})
	requireSameHashes(t, j)
}

// A node joins over the transport, with a trusted header and the address of one peer, and follows the head. Later it is offline for a while
// and catches up by fetching what differs.
func TestJoinOverTheTransport(t *testing.T) {
	home, n, first := fastNetwork(t, 40)
	keysAt := n.Application().Height()
	until(t, "a snapshot with all keys", func() bool {
		heights := n.application.snapshots.Heights()
		return len(heights) > 0 && heights[len(heights)-1] > keysAt && n.Comet().BlockStore().Height() > heights[len(heights)-1]+2
	})
	joiner := fastJoiner(t, home, n, first, func(_ *cfg.Config, a *AppConfig) { a.Join.CatchUpBlocks = 5 })
	logs := new(logBuffer)
	j := start(t, joiner, logs.logger(t))
	follows(t, j, n)
	require.True(t, logs.has("Joining: the state is restored"))
	base := j.Comet().BlockStore().Base()
	require.Greater(t, base, keysAt, "the blocks were replayed")
	require.Equal(t, fmt.Sprintf("%064d", 7), get(t, rpcOf(t, joiner), "key-07"))
	until(t, "the validator to know the joiner's transport", func() bool { return len(n.serving.reactor.known()) == 1 })
	known := n.serving.reactor.known()[0]
	require.Equal(t, j.ID(), string(known.ID))
	require.Equal(t, j.serving.server.Addr().String(), known.HostPort)

	// Offline.
	require.NoError(t, j.Stop())
	stopped := j.Application().Height()
	signing, err := os.ReadFile(load(t, joiner).CometBFT.PrivValidatorStateFile())
	require.NoError(t, err)
	writeKeys(t, home, 40, 43)
	until(t, "the network far ahead", func() bool { return n.Comet().BlockStore().Height() > stopped+10 })

	// Not long enough to bother.
	logs = new(logBuffer)
	j = start(t, joiner, logs.logger(t))
	require.False(t, logs.has("The chain is far ahead"))
	require.Equal(t, base, j.Comet().BlockStore().Base())
	follows(t, j, n) // a peer that stops as it connects can stay in CometBFT's list, which then refuses it for ever
	require.NoError(t, j.Stop())
	stopped = j.Application().Height()
	until(t, "the network far ahead again", func() bool { return n.Comet().BlockStore().Height() > stopped+10 })

	age, ask, newest := catchUpAge, catchUpAsk, catchUpNewest
	catchUpAge, catchUpAsk, catchUpNewest = 0, patience, patience
	defer func() { catchUpAge, catchUpAsk, catchUpNewest = age, ask, newest }()
	logs = new(logBuffer)
	j = start(t, joiner, logs.logger(t))
	require.True(t, logs.has("The chain is far ahead"))
	follows(t, j, n)
	require.Greater(t, j.Comet().BlockStore().Base(), stopped)
	require.NotNil(t, j.Comet().BlockStore().LoadBlockMeta(j.Comet().BlockStore().Base()-1), "evidence may be about it")
	require.Equal(t, fmt.Sprintf("%064d", 42), get(t, rpcOf(t, joiner), "key-42"))
	after, err := os.ReadFile(load(t, joiner).CometBFT.PrivValidatorStateFile())
	require.NoError(t, err)
	require.Equal(t, signing, after, "the signing state is nobody's business")
	require.NoFileExists(t, filepath.Join(load(t, joiner).CometBFT.DBDir(), "blocks.old"))
}

// fetchOnly joins up to the point where the state is whole and CometBFT does not know of it.
func fetchOnly(t *testing.T, joiner string) (height int64) {
	t.Helper()
	j, err := New(t.Context(), load(t, joiner), log.NewNopLogger())
	require.NoError(t, err)
	addresses, err := joinAddresses(j.config)
	require.NoError(t, err)
	way := &fastJoin{n: j, log: log.NewNopLogger()}
	require.NoError(t, way.connect(addresses))
	o := fastsync.Options{
		Logger: log.NewNopLogger(), Peers: way.peers, Headers: way.verifier, Target: j.application.target, Interval: j.application.interval,
	}
	if at, v := latest(t, j.application); v != nil {
		o.Local, o.LocalHeight = v, at
		j.application.restoring.replace()
	}
	result, err := fastsync.Join(t.Context(), o)
	require.NoError(t, err)
	result.Version.Release()
	way.close()
	require.NoError(t, j.Stop())
	return result.Height
}

// A join is killed when the state is whole and CometBFT does not know of it: only the rest is done. So is one that catches up.
func TestJoinKilledBeforeTheBootstrap(t *testing.T) {
	home, n, first := fastNetwork(t, 20)
	until(t, "a snapshot", func() bool { return n.Comet().BlockStore().Height() > 8 })
	joiner := fastJoiner(t, home, n, first, nil)
	height := fetchOnly(t, joiner)
	logs := new(logBuffer)
	j := start(t, joiner, logs.logger(t))
	require.False(t, logs.has("Joining: restoring a snapshot"))
	follows(t, j, n)
	require.Equal(t, height+1, j.Comet().BlockStore().Base())

	require.NoError(t, j.Stop())
	stopped := j.Application().Height()
	until(t, "the network ahead", func() bool { return n.Comet().BlockStore().Height() > stopped+8 })
	height = fetchOnly(t, joiner)
	require.Greater(t, height, stopped)
	config := load(t, joiner)
	config.CometBFT.StateSync.Enable = false
	_, err := New(t.Context(), config, log.NewNopLogger())
	require.Error(t, err, "the blocks do not lead to this state")
	logs = new(logBuffer)
	j = start(t, joiner, logs.logger(t))
	require.True(t, logs.has("Removed the blocks from before"))
	require.False(t, logs.has("Joining: restoring a snapshot"))
	follows(t, j, n)
	require.Equal(t, height+1, j.Comet().BlockStore().Base())
}

// A catch-up is killed in the middle: it goes on, and says what is needed for that.
func TestCatchUpKilled(t *testing.T) {
	home, n, first := fastNetwork(t, 20)
	until(t, "a snapshot", func() bool { return n.Comet().BlockStore().Height() > 8 })
	joiner := fastJoiner(t, home, n, first, nil)
	j := start(t, joiner, log.NewNopLogger())
	follows(t, j, n)
	require.NoError(t, j.Stop())
	stopped := j.Application().Height()
	until(t, "the network ahead", func() bool { return n.Comet().BlockStore().Height() > stopped+8 })

	_, v := latest(t, n.application)
	j, err := New(t.Context(), load(t, joiner), log.NewNopLogger())
	require.NoError(t, err)
	j.application.restoring.replace()
	require.NoError(t, j.application.target.Continue(4, v.Manifest())) // a height that is gone
	require.NoError(t, j.Stop())

	config := load(t, joiner)
	found, err := Inspect(t.Context(), config, false, nil)
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

// Without a transport the in-band way is taken where there are RPC servers.
func TestJoinFallsBack(t *testing.T) {
	home, n, first := fastNetwork(t, 10)
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer nobody.Close() // somebody listens, and says nothing
	address := nobody.Addr().String()
	unreachable := func(c *cfg.Config, a *AppConfig) {
		a.Join.Peers, a.Join.ReachTimeout = address, 50*time.Millisecond
		c.P2P.PersistentPeers = ""
	}
	joiner := fastJoiner(t, home, n, first, unreachable)
	j, err := New(t.Context(), load(t, joiner), log.NewNopLogger())
	require.NoError(t, err)
	err = j.Start(t.Context())
	require.ErrorIs(t, err, errNoTransport)
	require.ErrorContains(t, err, "statesync.rpc_servers")
	require.NoError(t, j.Stop())

	none := fastJoiner(t, home, n, first, func(c *cfg.Config, a *AppConfig) { a.Join.Peers, c.P2P.PersistentPeers = "", "" })
	j, err = New(t.Context(), load(t, none), log.NewNopLogger())
	require.NoError(t, err)
	require.ErrorContains(t, j.Start(t.Context()), "p2p.persistent_peers, p2p.seeds or join.peers")
	require.NoError(t, j.Stop())

	joiner = fastJoiner(t, home, n, first, func(c *cfg.Config, a *AppConfig) {
		a.Join.Peers, a.Join.ReachTimeout = address, 50*time.Millisecond
		c.StateSync.RPCServers = []string{RPCAddress(home), RPCAddress(home)}
	})
	logs := new(logBuffer)
	j = start(t, joiner, logs.logger(t))
	require.True(t, logs.has("falling back to CometBFT's own state sync"))
	until(t, "the joiner at the head", func() bool {
		return j.Application().Height() > 0 && !j.Comet().ConsensusReactor().WaitSync()
	})
}

// A stop during the join ends it at once.
func TestJoinIsStopped(t *testing.T) {
	home, n, first := fastNetwork(t, 10)
	joiner := fastJoiner(t, home, n, first, func(_ *cfg.Config, a *AppConfig) { a.Join.ReachTimeout = time.Hour; a.Join.Peers = "127.0.0.1:1" })
	config := load(t, joiner)
	config.CometBFT.P2P.PersistentPeers = ""
	j, err := New(t.Context(), config, log.NewNopLogger())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, j.Start(ctx), context.Canceled)
	require.NoError(t, j.Stop())
}

// The home of a newcomer comes from one address, of an RPC server or of a transport.
func TestInitFrom(t *testing.T) {
	home, n, _ := fastNetwork(t, 10)
	until(t, "a snapshot", func() bool { return n.Comet().BlockStore().Height() > 6 })
	trusted := n.Comet().BlockStore().LoadBlockMeta(2)
	for name, from := range map[string]string{"rpc": RPCAddress(home), "transport": n.serving.server.Addr().String()} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "newcomer")
			ports := freePorts(t, 2)
			o := NewcomerOptions{Home: dir, Moniker: "newcomer", From: from, Edit: func(c *cfg.Config, a *AppConfig) {
				c.RPC.ListenAddress = fmt.Sprintf("tcp://127.0.0.1:%d", ports[0])
				c.P2P.ListenAddress = fmt.Sprintf("tcp://127.0.0.1:%d", ports[1])
				c.P2P.AllowDuplicateIP, c.P2P.AddrBookStrict, c.P2P.PexReactor = true, false, false
				// The test's transport does not listen 10 above p2p.
				a.Transport.ListenAddress, a.Join.Peers = "127.0.0.1:0", n.serving.server.Addr().String()
				c.P2P.PersistentPeers = fmt.Sprintf("%s@%s", n.ID(), load(t, home).CometBFT.P2P.ListenAddress[len("tcp://"):])
			}}
			made, err := InitFrom(t.Context(), o)
			require.NoError(t, err)
			require.True(t, made.TrustsFrom)
			require.Equal(t, "test-chain", made.ChainID)
			require.Contains(t, made.Peer, n.ID()+"@127.0.0.1:")
			_, err = InitFrom(t.Context(), o)
			require.ErrorIs(t, err, ErrInitialised)
			require.ErrorContains(t, err, "starlingd start --home")

			o.Home, o.TrustHeight, o.TrustHash = filepath.Join(t.TempDir(), "other"), 2, trusted.BlockID.Hash.String()
			made, err = InitFrom(t.Context(), o)
			require.NoError(t, err)
			require.False(t, made.TrustsFrom)
			j := start(t, o.Home, log.NewNopLogger())
			follows(t, j, n)
			require.NoError(t, j.Stop())
		})
	}
	for want, o := range map[string]NewcomerOptions{
		"give --trust-height and --trust-hash": {From: RPCAddress(home), TrustHeight: 3},
		"64 hex digits":                        {From: RPCAddress(home), TrustHeight: 3, TrustHash: "xx"},
		"host:port":                            {From: "nonsense"},
		"connection refused":                   {From: "127.0.0.1:1"},
		"genesis file":                         {From: "http://127.0.0.1:1"},
	} {
		o.Home = filepath.Join(t.TempDir(), "none")
		_, err := InitFrom(t.Context(), o)
		require.ErrorContains(t, err, want)
		require.NoDirExists(t, o.Home)
	}
}
