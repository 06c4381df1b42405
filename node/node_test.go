package node

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/store"
	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/blocks"
)

func TestRestartKeepsTheState(t *testing.T) {
	home, _ := testHome(t, nil)
	logs := new(logBuffer)
	n := start(t, home, logs.logger(t))
	client := rpcOf(t, home)
	for i := range 20 {
		put(t, client, fmt.Sprintf("key-%d", i), fmt.Sprint("value-", i))
	}
	require.True(t, logs.has("Starling node started"))
	require.NoError(t, n.Stop())
	height, before := latest(t, n.Application())

	n = start(t, home, logs.logger(t))
	require.True(t, logs.has("Rebuilt the tree"))
	after, v := latest(t, n.Application())
	require.GreaterOrEqual(t, after, height)
	if after == height {
		require.Equal(t, before.AppHash(), v.AppHash())
	}
	client = rpcOf(t, home)
	put(t, client, "one", "more")
	require.Equal(t, "value-7", get(t, client, "key-7"))
	require.Equal(t, "more", get(t, client, "one"))
	requireSameHashes(t, n)
}

// requireSameHashes compares the application's states with the headers: header H+1 has the app hash after block H.
func requireSameHashes(t *testing.T, n *Node) {
	t.Helper()
	height, v := latest(t, n.Application())
	until(t, "the block after the state", func() bool { return n.Comet().BlockStore().Height() > height })
	hash := v.AppHash()
	require.Equal(t, hash[:], n.Comet().BlockStore().LoadBlockMeta(height+1).Header.AppHash.Bytes())
}

func TestStateThatIsBehindIsReplayed(t *testing.T) {
	home, _ := testHome(t, nil)
	n := start(t, home, log.NewNopLogger())
	put(t, rpcOf(t, home), "a", "1")
	require.NoError(t, n.Stop())
	height, v := latest(t, n.Application())

	// The state zone is lost: everything comes back from the blocks.
	require.NoError(t, os.RemoveAll(StateDir(filepath.Join(home, "data"))))
	n, err := New(t.Context(), load(t, home), log.NewNopLogger())
	require.NoError(t, err)
	replayed, w := latest(t, n.Application())
	require.GreaterOrEqual(t, replayed, height)
	value, _ := w.Get([]byte("a"))
	require.Equal(t, "1", string(value))
	if replayed == height {
		require.Equal(t, v.AppHash(), w.AppHash())
	}
	require.NoError(t, n.Stop())
}

// A state that came by state sync is removed where no block belongs to it: a join was interrupted. One that blocks led to is not.
func TestStateWithoutBlocks(t *testing.T) {
	for _, restored := range []bool{true, false} {
		t.Run(fmt.Sprintf("restored: %t", restored), func(t *testing.T) {
			home, _ := testHome(t, nil)
			n := start(t, home, log.NewNopLogger())
			put(t, rpcOf(t, home), "a", "1")
			require.NoError(t, n.Stop())
			for _, name := range []string{"blocks", "cs.wal"} {
				require.NoError(t, os.RemoveAll(filepath.Join(home, "data", name)))
			}
			if !restored {
				_, err := New(t.Context(), load(t, home), log.NewNopLogger())
				require.ErrorIs(t, err, ErrNoBlocks)
				require.ErrorContains(t, err, "put them back")
				return
			}
			asRestored(t, home)
			logs := new(logBuffer)
			n, err := New(t.Context(), load(t, home), logs.logger(t))
			require.NoError(t, err)
			require.True(t, logs.has("Removing a state that no block belongs to"))
			height := n.Application().Height()
			require.Zero(t, height)
			require.NoError(t, n.Stop())
		})
	}
}

// asRestored stores a home's state again as if it had come by state sync.
func asRestored(t *testing.T, home string) {
	t.Helper()
	state, err := storage.Open(StateDir(filepath.Join(home, "data")), storage.Options{})
	require.NoError(t, err)
	defer state.Close()
	meta, ok := state.Meta()
	require.True(t, ok)
	var leaves []storage.Leaf
	for l, err := range state.Scan() {
		require.NoError(t, err)
		leaves = append(leaves, storage.Leaf{Key: bytes.Clone(l.Key), Value: bytes.Clone(l.Value), Height: l.Height})
	}
	restore, err := state.BeginRestore(nil)
	require.NoError(t, err)
	require.NoError(t, restore.Add("all", slices.Values(leaves)))
	require.NoError(t, restore.Commit(meta))
}

func TestHomeOfAnotherChain(t *testing.T) {
	home, _ := testHome(t, nil)
	n := start(t, home, log.NewNopLogger())
	put(t, rpcOf(t, home), "a", "1")
	require.NoError(t, n.Stop())
	genesis := filepath.Join(home, "config", "genesis.json")

	editJSON(t, genesis, func(doc map[string]any) { doc["app_state"].(map[string]any)["open"] = false })
	_, err := New(t.Context(), load(t, home), log.NewNopLogger())
	require.ErrorIs(t, err, ErrOtherChain)
	require.ErrorContains(t, err, "is not the one that this home was started with")

	editJSON(t, genesis, func(doc map[string]any) { doc["chain_id"] = "other-chain" })
	for range 2 { // the first failure must not keep databases open
		_, err = New(t.Context(), load(t, home), log.NewNopLogger())
		require.ErrorIs(t, err, ErrOtherChain)
		require.ErrorContains(t, err, `"test-chain"`)
		require.ErrorContains(t, err, `"other-chain"`)
	}
}

func TestOccupiedPortNamesItsSetting(t *testing.T) {
	home, _ := testHome(t, nil)
	occupied, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer occupied.Close()
	for setting, edit := range map[string]func(*cfg.Config){
		"rpc.laddr":       func(c *cfg.Config) { c.RPC.ListenAddress = "tcp://" + occupied.Addr().String() },
		"p2p.laddr":       func(c *cfg.Config) { c.P2P.ListenAddress = "tcp://" + occupied.Addr().String() },
		"rpc.pprof_laddr": func(c *cfg.Config) { c.RPC.PprofListenAddress = occupied.Addr().String() },
		"instrumentation.prometheus_listen_addr": func(c *cfg.Config) {
			c.Instrumentation.Prometheus, c.Instrumentation.PrometheusListenAddr = true, occupied.Addr().String()
		},
	} {
		config := load(t, home)
		edit(config.CometBFT)
		_, err := New(t.Context(), config, log.NewNopLogger())
		require.ErrorIs(t, err, ErrAddress)
		require.ErrorContains(t, err, setting)
		require.ErrorContains(t, err, occupied.Addr().String())
	}
}

func TestSecondNodeOnOneHome(t *testing.T) {
	home, _ := testHome(t, nil)
	start(t, home, log.NewNopLogger())
	config := load(t, home)
	ports := freePorts(t, 2)
	config.CometBFT.RPC.ListenAddress = fmt.Sprintf("tcp://127.0.0.1:%d", ports[0])
	config.CometBFT.P2P.ListenAddress = fmt.Sprintf("tcp://127.0.0.1:%d", ports[1])
	_, err := New(t.Context(), config, log.NewNopLogger())
	require.ErrorIs(t, err, blocks.ErrLocked)
	require.ErrorContains(t, err, "stop the other starlingd that runs on this home")
}

func TestMissingKeysAreNamed(t *testing.T) {
	for _, name := range []string{"config/node_key.json", "config/priv_validator_key.json", "data/priv_validator_state.json", "config/genesis.json"} {
		home, _ := testHome(t, nil)
		require.NoError(t, os.Remove(filepath.Join(home, name)))
		_, err := New(t.Context(), load(t, home), log.NewNopLogger())
		require.ErrorContains(t, err, filepath.Join(home, name)+" is missing")
		require.NoFileExists(t, filepath.Join(home, name))
	}
	home, _ := testHome(t, nil)
	writeFile(t, filepath.Join(home, "data", "priv_validator_state.json"), "{")
	_, err := New(t.Context(), load(t, home), log.NewNopLogger())
	require.ErrorContains(t, err, "signing state")
}

func TestGenesisTimeToCome(t *testing.T) {
	home, _ := testHome(t, nil)
	editJSON(t, filepath.Join(home, "config", "genesis.json"), func(doc map[string]any) {
		doc["genesis_time"] = time.Now().Add(time.Hour).UTC().Format(time.RFC3339Nano)
	})
	n, err := New(t.Context(), load(t, home), log.NewNopLogger())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, n.Start(ctx), context.Canceled)
	require.NoError(t, n.Stop())
}

// A state that cannot be saved must end the node: CometBFT alone would go on as a shell without consensus.
func TestFailedCommitIsReported(t *testing.T) {
	home, _ := testHome(t, nil)
	n := start(t, home, log.NewNopLogger())
	put(t, rpcOf(t, home), "a", "1")
	require.NoError(t, n.application.state.Close())
	select {
	case err := <-n.Failed():
		require.ErrorContains(t, err, "closed")
	case <-time.After(patience):
		t.Fatal("no failure was reported")
	}
	require.NoError(t, n.Stop())
}

func TestWithApp(t *testing.T) {
	home, _ := testHome(t, nil)
	n, err := New(t.Context(), load(t, home), log.NewNopLogger(), WithApp(func(a abci.Application) abci.Application { return renamed{a} }))
	require.NoError(t, err)
	require.NoError(t, n.Start(t.Context()))
	info, err := rpcOf(t, home).ABCIInfo(t.Context())
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

// A node joins by state sync while blocks go on, gets those since the snapshot by block sync, and follows the head.
func TestJoinByStateSync(t *testing.T) {
	home, first := testHome(t, func(o *InitOptions) {
		o.App = app.Genesis{Open: true, ChunkBytes: 512, SnapshotInterval: 1} // the one it fetches is long not among the newest then
		edit := o.Edit
		o.Edit = func(c *cfg.Config, a *AppConfig) {
			edit(c, a)
			c.Consensus.TimeoutCommit = 200 * time.Millisecond // more than some seven blocks a second nobody can follow by gossip
		}
	})
	n := start(t, home, log.NewNopLogger())
	client := rpcOf(t, home)
	for i := range 60 {
		_, err := client.BroadcastTxSync(t.Context(), fmt.Appendf(nil, "key-%02d=%064d", i, i))
		require.NoError(t, err)
	}
	until(t, "all keys", func() bool {
		_, v := n.Application().Latest()
		if v == nil {
			return false
		}
		defer v.Release()
		return v.Has([]byte("key-59"))
	})
	keysAt := n.Application().Height()
	until(t, "a snapshot with all keys", func() bool {
		list, err := n.Application().ListSnapshots(t.Context(), nil)
		return err == nil && len(list.Snapshots) > 0 && int64(list.Snapshots[0].Height) > keysAt && list.Snapshots[0].Chunks > 5
	})
	listed, err := client.ABCIQuery(t.Context(), "/snapshots", nil)
	require.NoError(t, err)
	require.Regexp(t, `^\[\{"height":\d+,"format":1,"chunks":\d+,"hash":"[0-9a-f]{64}"\},`, string(listed.Response.Value))
	trusted := n.Comet().BlockStore().LoadBlockMeta(1)

	joiner, _ := testHome(t, func(o *InitOptions) {
		o.GenesisFile = filepath.Join(home, "config", "genesis.json")
		edit := o.Edit
		o.Edit = func(c *cfg.Config, a *AppConfig) {
			edit(c, a)
			c.P2P.PersistentPeers = fmt.Sprintf("%s@%s", first.NodeID, load(t, home).CometBFT.P2P.ListenAddress[len("tcp://"):])
			c.StateSync.Enable, a.Join.Fast = true, false
			c.StateSync.RPCServers = []string{RPCAddress(home), RPCAddress(home)}
			c.StateSync.TrustHeight, c.StateSync.TrustHash = 1, trusted.BlockID.Hash.String()
		}
	})
	logs := new(logBuffer)
	j := start(t, joiner, logs.logger(t))
	kept := rpcOf(t, joiner) // its connection stays open: it must not go on being answered by the CometBFT that joined
	status, err := kept.Status(t.Context())
	require.NoError(t, err)
	require.Zero(t, status.SyncInfo.LatestBlockHeight)
	require.True(t, status.SyncInfo.CatchingUp)
	_, err = kept.BroadcastTxSync(t.Context(), []byte("too=early"))
	require.ErrorContains(t, err, "not found")
	until(t, "the joiner's RPC at the head", func() bool {
		status, err := kept.Status(t.Context())
		return err == nil && !status.SyncInfo.CatchingUp && status.SyncInfo.LatestBlockHeight > keysAt
	})
	until(t, "the joiner at the head", func() bool {
		height := j.Application().Height()
		return !j.Comet().ConsensusReactor().WaitSync() && height >= n.Comet().BlockStore().Height()-2
	})
	require.True(t, logs.has("restored the state"))
	restored, err := strconv.ParseInt(logs.find(t, `restored the state +module=app height=(\d+)`), 10, 64)
	require.NoError(t, err)
	switched, err := strconv.ParseInt(logs.find(t, `Time to switch to consensus mode! +module=blocksync height=(\d+)`), 10, 64)
	require.NoError(t, err)
	require.Greater(t, switched, restored+2, "the blocks since the snapshot did not come by block sync")
	base := j.Comet().BlockStore().Base()
	require.Greater(t, base, keysAt, "the blocks were replayed, no snapshot was taken")
	require.Equal(t, fmt.Sprintf("%064d", 7), get(t, rpcOf(t, joiner), "key-07"))
	requireSameHashes(t, j)

	// The second start finds a state, and goes on from it.
	require.NoError(t, j.Stop())
	stopped := j.Application().Height()
	j = start(t, joiner, log.NewNopLogger())
	until(t, "the joiner at the head again", func() bool {
		height := j.Application().Height()
		return height > stopped && height >= n.Comet().BlockStore().Height()-2
	})
	require.Equal(t, base, j.Comet().BlockStore().Base())
	requireSameHashes(t, j)
}

// A state sync that cannot succeed ends the node with what to do: CometBFT only logs it and then waits at height 0 for ever.
func TestJoinThatFails(t *testing.T) {
	home, first := testHome(t, func(o *InitOptions) { o.App.SnapshotInterval = 1 })
	start(t, home, log.NewNopLogger())
	client := rpcOf(t, home)
	put(t, client, "a", "1")
	height := int64(1)
	commit, err := client.Commit(t.Context(), &height)
	require.NoError(t, err)
	joiner := func(hash string) string {
		joiner, _ := testHome(t, func(o *InitOptions) {
			o.GenesisFile = filepath.Join(home, "config", "genesis.json")
			edit := o.Edit
			o.Edit = func(c *cfg.Config, a *AppConfig) {
				edit(c, a)
				c.P2P.PersistentPeers = fmt.Sprintf("%s@%s", first.NodeID, load(t, home).CometBFT.P2P.ListenAddress[len("tcp://"):])
				c.StateSync.Enable, a.Join.Fast = true, false
				c.StateSync.RPCServers = []string{RPCAddress(home), "http://127.0.0.1:1"} // nobody is at the second
				c.StateSync.TrustHeight, c.StateSync.TrustHash = height, hash
			}
		})
		return joiner
	}
	j, err := New(t.Context(), load(t, joiner(strings.Repeat("00", 32))), log.NewNopLogger())
	require.NoError(t, err)
	require.ErrorContains(t, j.Start(t.Context()), "statesync.rpc_servers must answer")
	require.NoError(t, j.Stop())

	j = start(t, joiner(commit.Commit.BlockID.Hash.String()), log.NewNopLogger())
	select {
	case err := <-j.Failed():
		require.ErrorIs(t, err, ErrJoin)
		require.ErrorContains(t, err, "no witnesses")
		require.ErrorContains(t, err, "statesync.rpc_servers must answer")
	case <-time.After(patience):
		t.Fatal("the node waits")
	}
	require.NoError(t, j.Stop())
}

// CometBFT is killed in the last steps of a state sync: it has the state but no block, with or without the commit of its height.
func TestCrashAtTheEndOfAStateSync(t *testing.T) {
	for _, committed := range []bool{true, false} {
		t.Run(fmt.Sprintf("commit saved: %t", committed), func(t *testing.T) {
			home, _ := testHome(t, nil)
			n := start(t, home, log.NewNopLogger())
			put(t, rpcOf(t, home), "a", "1")
			require.NoError(t, n.Stop())
			asRestored(t, home)
			height := removeBlocks(t, load(t, home).CometBFT, committed)
			logs := new(logBuffer)
			n, err := New(t.Context(), load(t, home), logs.logger(t))
			require.NoError(t, err)
			got := n.Application().Height()
			if committed {
				require.True(t, logs.has("Going on from the end"))
				require.Equal(t, height, got)
			} else {
				require.True(t, logs.has("beginning anew"))
				require.Zero(t, got)
			}
			require.NoError(t, n.Stop())
		})
	}
}

// removeBlocks empties the block store, but for the commit of CometBFT's last state.
func removeBlocks(t *testing.T, c *cfg.Config, keepCommit bool) int64 {
	t.Helper()
	d := newDatabases(c, blocks.Options{})
	defer d.closeAll()
	have, err := d.prepare(log.NewNopLogger())
	require.NoError(t, err)
	blockDB, err := d.provide(&cfg.DBContext{ID: "blockstore", Config: c})
	require.NoError(t, err)
	commit := store.NewBlockStore(blockDB).LoadSeenCommit(have.state)
	require.NoError(t, clearDatabase(blockDB))
	if keepCommit {
		require.NoError(t, store.NewBlockStore(blockDB).SaveSeenCommit(have.state, commit))
	}
	return have.state
}

func TestSameGenesisIgnoresWhiteSpace(t *testing.T) {
	home, _ := testHome(t, nil)
	path := filepath.Join(home, "config", "genesis.json")
	doc, err := LoadGenesis(path)
	require.NoError(t, err)
	editJSON(t, path, func(map[string]any) {})
	other, err := LoadGenesis(path)
	require.NoError(t, err)
	require.NoError(t, sameGenesis(doc, other))
	other.Validators = append([]cmttypes.GenesisValidator(nil), other.Validators...)
	other.Validators[0].Power++
	require.ErrorIs(t, sameGenesis(doc, other), ErrOtherChain)
}

// The only validator of a network does not state sync, whatever its configuration says, and is not restarted.
func TestStateSyncWithoutNeed(t *testing.T) {
	home, _ := testHome(t, func(o *InitOptions) {
		edit := o.Edit
		o.Edit = func(c *cfg.Config, a *AppConfig) {
			edit(c, a)
			c.StateSync.Enable, a.Join.Fast = true, false
			c.StateSync.RPCServers = []string{"http://127.0.0.1:1", "http://127.0.0.1:1"}
			c.StateSync.TrustHeight, c.StateSync.TrustHash = 1, "00"
		}
	})
	n := start(t, home, log.NewNopLogger())
	put(t, rpcOf(t, home), "a", "1")
	require.False(t, n.mu.joining)
	require.True(t, n.Comet().IsRunning())
}
