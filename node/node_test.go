package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"
	cometnode "github.com/cometbft/cometbft/node"
	"github.com/cometbft/cometbft/store"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/node/comet"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/home"
	"github.com/starling-kv/starling/node/internal/nodetest"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/blocks"
)

func TestRestartKeepsTheState(t *testing.T) {
	home, _ := nodetest.Home(t, nil)
	logs := new(nodetest.LogBuffer)
	n := start(t, home, logs.Logger(t))
	client := nodetest.RPC(t, home)
	for i := range 20 {
		nodetest.Put(t, client, fmt.Sprintf("key-%d", i), fmt.Sprint("value-", i))
	}
	require.True(t, logs.Has("Starling node started"))
	require.NoError(t, n.Stop())
	height, before := latest(t, n.Application())

	n = start(t, home, logs.Logger(t))
	require.True(t, logs.Has("Rebuilt the tree"))
	after, v := latest(t, n.Application())
	require.GreaterOrEqual(t, after, height)
	if after == height {
		require.Equal(t, before.AppHash(), v.AppHash())
	}
	client = nodetest.RPC(t, home)
	nodetest.Put(t, client, "one", "more")
	require.Equal(t, "value-7", nodetest.Get(t, client, "key-7"))
	require.Equal(t, "more", nodetest.Get(t, client, "one"))
	nodetest.SameHashes(t, n.Application(), n.Comet)
}

func TestStateThatIsBehindIsReplayed(t *testing.T) {
	home, _ := nodetest.Home(t, nil)
	n := start(t, home, log.NewNopLogger())
	nodetest.Put(t, nodetest.RPC(t, home), "a", "1")
	require.NoError(t, n.Stop())
	height, v := latest(t, n.Application())

	// The state zone is lost: everything comes back from the blocks.
	require.NoError(t, os.RemoveAll(config.StateDir(filepath.Join(home, "data"))))
	n, err := New(t.Context(), nodetest.Load(t, home), log.NewNopLogger())
	require.NoError(t, err)
	replayed, w := latest(t, n.Application())
	require.GreaterOrEqual(t, replayed, height)
	value, _, err := w.Get([]byte("a"))
	require.NoError(t, err)
	require.Equal(t, "1", string(value))
	if replayed == height {
		require.Equal(t, v.AppHash(), w.AppHash())
	}
	require.NoError(t, n.Stop())
}

// A state that came by state sync is removed where no block belongs to it: a join was interrupted.
// One that blocks led to is not.
func TestStateWithoutBlocks(t *testing.T) {
	for _, restored := range []bool{true, false} {
		t.Run(fmt.Sprintf("restored: %t", restored), func(t *testing.T) {
			home, _ := nodetest.Home(t, nil)
			n := start(t, home, log.NewNopLogger())
			nodetest.Put(t, nodetest.RPC(t, home), "a", "1")
			require.NoError(t, n.Stop())
			for _, name := range []string{"blocks", "cs.wal"} {
				require.NoError(t, os.RemoveAll(filepath.Join(home, "data", name)))
			}
			if !restored {
				_, err := New(t.Context(), nodetest.Load(t, home), log.NewNopLogger())
				require.ErrorIs(t, err, ErrNoBlocks)
				require.ErrorContains(t, err, "put them back")
				return
			}
			asRestored(t, home)
			logs := new(nodetest.LogBuffer)
			n, err := New(t.Context(), nodetest.Load(t, home), logs.Logger(t))
			require.NoError(t, err)
			require.True(t, logs.Has("Removing a state that no block belongs to"))
			height := n.Application().Height()
			require.Zero(t, height)
			require.NoError(t, n.Stop())
		})
	}
}

// asRestored stores a home's state again as if it had come by state sync.
func asRestored(t *testing.T, home string) {
	t.Helper()
	state, err := storage.Open(config.StateDir(filepath.Join(home, "data")), storage.Options{})
	require.NoError(t, err)
	defer state.Close()
	meta, ok := state.Meta()
	require.True(t, ok)
	var records []byte
	for l, err := range state.Scan() {
		require.NoError(t, err)
		records = record.Append(records, l)
	}
	restore, err := state.BeginRestore(nil)
	require.NoError(t, err)
	require.NoError(t, restore.Add("all", 0, records))
	require.NoError(t, restore.Commit(meta))
}

func TestHomeOfAnotherChain(t *testing.T) {
	home, _ := nodetest.Home(t, nil)
	n := start(t, home, log.NewNopLogger())
	nodetest.Put(t, nodetest.RPC(t, home), "a", "1")
	require.NoError(t, n.Stop())
	genesis := filepath.Join(home, "config", "genesis.json")

	nodetest.EditJSON(t, genesis, func(doc map[string]any) { doc["app_state"].(map[string]any)["open"] = false })
	_, err := New(t.Context(), nodetest.Load(t, home), log.NewNopLogger())
	require.ErrorIs(t, err, app.ErrOtherChain)
	require.ErrorContains(t, err, "is not the one that this home was started with")

	nodetest.EditJSON(t, genesis, func(doc map[string]any) { doc["chain_id"] = "other-chain" })
	for range 2 { // the first failure must not keep databases open
		_, err = New(t.Context(), nodetest.Load(t, home), log.NewNopLogger())
		require.ErrorIs(t, err, app.ErrOtherChain)
		require.ErrorContains(t, err, `"test-chain"`)
		require.ErrorContains(t, err, `"other-chain"`)
	}
}

func TestOccupiedPortNamesItsSetting(t *testing.T) {
	home, _ := nodetest.Home(t, nil)
	occupied, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer occupied.Close()
	for setting, edit := range map[string]func(*cfg.Config, *config.App){
		"rpc.laddr":       func(c *cfg.Config, _ *config.App) { c.RPC.ListenAddress = "tcp://" + occupied.Addr().String() },
		"p2p.laddr":       func(c *cfg.Config, _ *config.App) { c.P2P.ListenAddress = "tcp://" + occupied.Addr().String() },
		"rpc.pprof_laddr": func(c *cfg.Config, _ *config.App) { c.RPC.PprofListenAddress = occupied.Addr().String() },
		"grpc.laddr":      func(_ *cfg.Config, a *config.App) { a.GRPC.ListenAddress = occupied.Addr().String() },
		"instrumentation.prometheus_listen_addr": func(c *cfg.Config, _ *config.App) {
			c.Instrumentation.Prometheus, c.Instrumentation.PrometheusListenAddr = true, occupied.Addr().String()
		},
	} {
		conf := nodetest.Load(t, home)
		edit(conf.CometBFT, &conf.App)
		_, err := New(t.Context(), conf, log.NewNopLogger())
		require.ErrorIs(t, err, config.ErrAddress)
		require.ErrorContains(t, err, setting)
		require.ErrorContains(t, err, occupied.Addr().String())
	}
}

func TestSecondNodeOnOneHome(t *testing.T) {
	home, _ := nodetest.Home(t, nil)
	start(t, home, log.NewNopLogger())
	config := nodetest.Load(t, home)
	ports := nodetest.FreePorts(t, 2)
	config.CometBFT.RPC.ListenAddress = fmt.Sprintf("tcp://127.0.0.1:%d", ports[0])
	config.CometBFT.P2P.ListenAddress = fmt.Sprintf("tcp://127.0.0.1:%d", ports[1])
	_, err := New(t.Context(), config, log.NewNopLogger())
	require.ErrorIs(t, err, blocks.ErrLocked)
	require.ErrorContains(t, err, "stop the other starlingd that runs on this home")
}

func TestMissingKeysAreNamed(t *testing.T) {
	for _, name := range []string{"config/node_key.json", "config/priv_validator_key.json", "data/priv_validator_state.json", "config/genesis.json"} {
		home, _ := nodetest.Home(t, nil)
		require.NoError(t, os.Remove(filepath.Join(home, name)))
		_, err := New(t.Context(), nodetest.Load(t, home), log.NewNopLogger())
		require.ErrorContains(t, err, strconv.Quote(filepath.Join(home, name))+" is missing")
		require.NoFileExists(t, filepath.Join(home, name))
	}
	home, _ := nodetest.Home(t, nil)
	nodetest.WriteFile(t, filepath.Join(home, "data", "priv_validator_state.json"), "{")
	_, err := New(t.Context(), nodetest.Load(t, home), log.NewNopLogger())
	require.ErrorContains(t, err, "signing state")
}

func TestGenesisTimeToCome(t *testing.T) {
	home, _ := nodetest.Home(t, nil)
	nodetest.EditJSON(t, filepath.Join(home, "config", "genesis.json"), func(doc map[string]any) {
		doc["genesis_time"] = time.Now().Add(time.Hour).UTC().Format(time.RFC3339Nano)
	})
	n, err := New(t.Context(), nodetest.Load(t, home), log.NewNopLogger())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, n.Start(ctx), context.Canceled)
	require.NoError(t, n.Stop())
}

// A state that cannot be saved must end the node: CometBFT alone would keep running
// without consensus.
func TestFailedCommitIsReported(t *testing.T) {
	home, _ := nodetest.Home(t, nil)
	n := start(t, home, log.NewNopLogger())
	nodetest.Put(t, nodetest.RPC(t, home), "a", "1")
	require.NoError(t, n.application.local.state.Close())
	require.ErrorContains(t, failure(t, n), "closed")
	require.NoError(t, n.Stop())
}

// failure waits until a node reports why it cannot continue.
func failure(t *testing.T, n *Node) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), nodetest.Patience)
	defer cancel()
	select {
	case err := <-n.Failed():
		return err
	case <-ctx.Done():
		t.Fatal("no failure was reported")
		return nil
	}
}

func TestWithApp(t *testing.T) {
	home, _ := nodetest.Home(t, nil)
	n, err := New(t.Context(), nodetest.Load(t, home), log.NewNopLogger(), WithApp(func(a abci.Application) abci.Application { return renamed{a} }))
	require.NoError(t, err)
	require.NoError(t, n.Start(t.Context()))
	info, err := nodetest.RPC(t, home).ABCIInfo(t.Context())
	require.NoError(t, err)
	require.Equal(t, "renamed", info.Response.Data)
	require.NoError(t, n.Stop())
}

type renamed struct{ abci.Application }

func (r renamed) Info(ctx context.Context, req *abci.RequestInfo) (*abci.ResponseInfo, error) {
	info, err := r.Application.Info(ctx, req)
	if err == nil {
		info.Data = "renamed"
	}
	return info, err
}

// A node joins by state sync while blocks are made, gets those since the snapshot by block sync,
// and follows the head.
func TestJoinByStateSync(t *testing.T) {
	t.Parallel() // it waits for blocks
	dir, first := nodetest.Home(t, func(o *home.InitOptions) {
		// the one it fetches is long not among the newest then
		o.App = app.Genesis{Open: true, ChunkBytes: 512, SnapshotInterval: 1}
		edit := o.Edit
		o.Edit = func(c *cfg.Config, a *config.App) {
			edit(c, a)
			// nobody can follow more than about seven blocks per second by gossip
			c.Consensus.TimeoutCommit, c.Consensus.CreateEmptyBlocksInterval = 200*time.Millisecond, 0
		}
	})
	n := start(t, dir, log.NewNopLogger())
	client := nodetest.RPC(t, dir)
	for i := range 60 {
		_, err := client.BroadcastTxSync(t.Context(), fmt.Appendf(nil, "key-%02d=%064d", i, i))
		require.NoError(t, err)
	}
	nodetest.Until(t, "all keys", func() bool {
		_, v := n.Application().Latest()
		if v == nil {
			return false
		}
		defer v.Release()
		ok, err := v.Has([]byte("key-59"))
		return ok && err == nil
	})
	keysAt := n.Application().Height()
	nodetest.Until(t, "a snapshot with all keys", func() bool {
		list, err := n.Application().ListSnapshots(t.Context(), nil)
		return err == nil && len(list.Snapshots) > 0 && int64(list.Snapshots[0].Height) > keysAt && list.Snapshots[0].Chunks > 5
	})
	listed, err := client.ABCIQuery(t.Context(), "/snapshots", nil)
	require.NoError(t, err)
	require.Regexp(t, `^\[\{"height":\d+,"format":1,"chunks":\d+,"hash":"[0-9a-f]{64}"\},`, string(listed.Response.Value))
	trusted := n.Comet().BlockStore().LoadBlockMeta(1)

	joiner, _ := nodetest.Home(t, func(o *home.InitOptions) {
		o.GenesisFile = filepath.Join(dir, "config", "genesis.json")
		edit := o.Edit
		o.Edit = func(c *cfg.Config, a *config.App) {
			edit(c, a)
			c.P2P.PersistentPeers = fmt.Sprintf("%s@%s", first.NodeID, nodetest.Load(t, dir).CometBFT.P2P.ListenAddress[len("tcp://"):])
			c.StateSync.Enable, a.Join.Mode = true, config.JoinCometBFT
			c.StateSync.RPCServers = []string{config.RPCAddress(dir), config.RPCAddress(dir)}
			c.StateSync.TrustHeight, c.StateSync.TrustHash = 1, trusted.BlockID.Hash.String()
		}
	})
	logs := new(nodetest.LogBuffer)
	j := start(t, joiner, logs.Logger(t))
	// its connection stays open: it must not go on being answered by the CometBFT that joined
	kept := nodetest.RPC(t, joiner)
	status, err := kept.Status(t.Context())
	require.NoError(t, err)
	require.Zero(t, status.SyncInfo.LatestBlockHeight)
	require.True(t, status.SyncInfo.CatchingUp)
	_, err = kept.BroadcastTxSync(t.Context(), []byte("too=early"))
	require.ErrorContains(t, err, "not found")
	nodetest.Until(t, "the joiner's RPC at the head", func() bool {
		status, err := kept.Status(t.Context())
		return err == nil && !status.SyncInfo.CatchingUp && status.SyncInfo.LatestBlockHeight > keysAt
	})
	nodetest.Until(t, "the joiner at the head", func() bool {
		height := j.Application().Height()
		return !j.Comet().ConsensusReactor().WaitSync() && height >= n.Comet().BlockStore().Height()-2
	})
	require.True(t, logs.Has("restored the state"))
	restored, err := strconv.ParseInt(logs.Find(t, `restored the state +module=app height=(\d+)`), 10, 64)
	require.NoError(t, err)
	switched, err := strconv.ParseInt(logs.Find(t, `Time to switch to consensus mode! +module=blocksync height=(\d+)`), 10, 64)
	require.NoError(t, err)
	require.Greater(t, switched, restored+2, "the blocks since the snapshot did not come by block sync")
	base := j.Comet().BlockStore().Base()
	require.Greater(t, base, keysAt, "the blocks were replayed, no snapshot was taken")
	require.Equal(t, fmt.Sprintf("%064d", 7), nodetest.Get(t, nodetest.RPC(t, joiner), "key-07"))
	nodetest.SameHashes(t, j.Application(), j.Comet)

	// The second start finds a state, and continues from it.
	require.NoError(t, j.Stop())
	stopped := j.Application().Height()
	j = start(t, joiner, log.NewNopLogger())
	nodetest.Until(t, "the joiner at the head again", func() bool {
		height := j.Application().Height()
		return height > stopped && height >= n.Comet().BlockStore().Height()-2
	})
	require.Equal(t, base, j.Comet().BlockStore().Base())
	nodetest.SameHashes(t, j.Application(), j.Comet)
}

// A state sync that cannot succeed ends the node with what to do: CometBFT only logs it and then
// waits at height 0 for ever.
func TestJoinThatFails(t *testing.T) {
	t.Parallel() // it waits for blocks
	dir, first := nodetest.Home(t, func(o *home.InitOptions) { o.App.SnapshotInterval = 1 })
	start(t, dir, log.NewNopLogger())
	client := nodetest.RPC(t, dir)
	nodetest.Put(t, client, "a", "1")
	height := int64(1)
	commit, err := client.Commit(t.Context(), &height)
	require.NoError(t, err)
	joiner := func(hash string) string {
		joiner, _ := nodetest.Home(t, func(o *home.InitOptions) {
			o.GenesisFile = filepath.Join(dir, "config", "genesis.json")
			edit := o.Edit
			o.Edit = func(c *cfg.Config, a *config.App) {
				edit(c, a)
				c.P2P.PersistentPeers = fmt.Sprintf("%s@%s", first.NodeID, nodetest.Load(t, dir).CometBFT.P2P.ListenAddress[len("tcp://"):])
				c.StateSync.Enable, a.Join.Mode = true, config.JoinCometBFT
				// nobody is at the second
				c.StateSync.RPCServers = []string{config.RPCAddress(dir), "http://127.0.0.1:1"}
				c.StateSync.TrustHeight, c.StateSync.TrustHash = height, hash
			}
		})
		return joiner
	}
	j, err := New(t.Context(), nodetest.Load(t, joiner(strings.Repeat("00", 32))), log.NewNopLogger())
	require.NoError(t, err)
	require.ErrorContains(t, j.Start(t.Context()), "statesync.rpc_servers must answer")
	require.NoError(t, j.Stop())

	j = start(t, joiner(commit.Commit.BlockID.Hash.String()), log.NewNopLogger())
	err = failure(t, j)
	require.ErrorIs(t, err, comet.ErrStateSync)
	require.ErrorContains(t, err, "no witnesses")
	require.ErrorContains(t, err, "statesync.rpc_servers must answer")
	require.NoError(t, j.Stop())
}

// CometBFT is killed in the last steps of a state sync: it has the state but no block, with or
// without the commit of its height.
func TestCrashAtTheEndOfAStateSync(t *testing.T) {
	for _, committed := range []bool{true, false} {
		t.Run(fmt.Sprintf("commit saved: %t", committed), func(t *testing.T) {
			home, _ := nodetest.Home(t, nil)
			n := start(t, home, log.NewNopLogger())
			nodetest.Put(t, nodetest.RPC(t, home), "a", "1")
			require.NoError(t, n.Stop())
			asRestored(t, home)
			height := removeBlocks(t, nodetest.Load(t, home).CometBFT, committed)
			logs := new(nodetest.LogBuffer)
			n, err := New(t.Context(), nodetest.Load(t, home), logs.Logger(t))
			require.NoError(t, err)
			got := n.Application().Height()
			if committed {
				require.True(t, logs.Has("Continuing from the end"))
				require.Equal(t, height, got)
			} else {
				require.True(t, logs.Has("starting it again"))
				require.Zero(t, got)
			}
			require.NoError(t, n.Stop())
		})
	}
}

// removeBlocks empties the block store, except the commit of CometBFT's last state.
func removeBlocks(t *testing.T, c *cfg.Config, keepCommit bool) int64 {
	t.Helper()
	d := comet.NewDatabases(c, log.NewNopLogger(), blocks.Options{})
	defer d.Close()
	have, err := d.Open()
	require.NoError(t, err)
	blockDB, err := d.DB("blockstore")
	require.NoError(t, err)
	commit := store.NewBlockStore(blockDB).LoadSeenCommit(have.State)
	it, err := blockDB.Iterator(nil, nil)
	require.NoError(t, err)
	for ; it.Valid(); it.Next() {
		require.NoError(t, blockDB.Delete(bytes.Clone(it.Key())))
	}
	require.NoError(t, errors.Join(it.Error(), it.Close()))
	if keepCommit {
		require.NoError(t, store.NewBlockStore(blockDB).SaveSeenCommit(have.State, commit))
	}
	return have.State
}

// The only validator of a network does not state sync, whatever its configuration says, and is not
// restarted.
func TestStateSyncWithoutNeed(t *testing.T) {
	home, _ := nodetest.Home(t, func(o *home.InitOptions) {
		edit := o.Edit
		o.Edit = func(c *cfg.Config, a *config.App) {
			edit(c, a)
			c.StateSync.Enable, a.Join.Mode = true, config.JoinCometBFT
			c.StateSync.RPCServers = []string{"http://127.0.0.1:1", "http://127.0.0.1:1"}
			c.StateSync.TrustHeight, c.StateSync.TrustHash = 1, "00"
		}
	})
	n := start(t, home, log.NewNopLogger())
	nodetest.Put(t, nodetest.RPC(t, home), "a", "1")
	n.instance.Read(func(_ *cometnode.Node, syncing bool) { require.False(t, syncing) })
	require.True(t, n.Comet().IsRunning())
}
