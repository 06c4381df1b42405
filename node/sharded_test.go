package node

import (
	"fmt"
	"path/filepath"
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
	"github.com/starling-kv/starling/node/storagenode"
)

// shardedNetwork is a validator in sharded mode, and its storage nodes.
type shardedNetwork struct {
	t         *testing.T
	validator string // home
	id        string // of the validator's node
	transport string // its address
	storage   []string
	names     []string               // ID@address of each storage node
	ranges    string                 // the file
	nodes     []*storagenode.Process // nil: it does not run
}

// newShardedNetwork creates the homes. The keys are divided at edges; keeps assigns ranges to
// storage nodes.
func newShardedNetwork(t *testing.T, edges []string, keeps [][]int) *shardedNetwork {
	t.Helper()
	return newShardedNetworkOf(t, app.Genesis{Open: true}, edges, keeps)
}

// newShardedNetworkOf is newShardedNetwork with another genesis state.
func newShardedNetworkOf(t *testing.T, genesis app.Genesis, edges []string, keeps [][]int) *shardedNetwork {
	t.Helper()
	w := &shardedNetwork{t: t}
	of := 0
	for _, replicas := range keeps {
		for _, n := range replicas {
			of = max(of, n+1)
		}
	}
	ports := nodetest.FreePorts(t, of+1)
	w.transport = fmt.Sprint("127.0.0.1:", ports[of])
	var made home.InitResult
	w.validator, made = nodetest.Home(t, func(o *home.InitOptions) {
		o.App = genesis
		edit := o.Edit
		o.Edit = func(c *cfg.Config, a *config.App) {
			edit(c, a)
			a.Transport.ListenAddress = w.transport
			a.State.Mode, a.State.RetainDepth, a.State.Window, a.State.MinAcks = config.ModeSharded, 3, 8, 1
			// nobody can follow more than about seven blocks per second by gossip
			c.Consensus.TimeoutCommit, c.Consensus.CreateEmptyBlocksInterval = 350*time.Millisecond, 0
			a.Status.ListenAddress = fmt.Sprint("127.0.0.1:", nodetest.FreePorts(t, 1)[0])
		}
	})
	w.id = made.NodeID
	var names []string
	for i := range of {
		dir, made := nodetest.Home(t, func(o *home.InitOptions) {
			o.GenesisFile, o.NoValidator = w.genesis(), true
			edit := o.Edit
			o.Edit = func(c *cfg.Config, a *config.App) {
				edit(c, a)
				a.Transport.ListenAddress = fmt.Sprint("127.0.0.1:", ports[i])
				a.Join.Peers = fmt.Sprintf("%s@%s", w.id, w.transport)
			}
		})
		w.storage, names, w.nodes = append(w.storage, dir), append(names, fmt.Sprintf("%s@127.0.0.1:%d", made.NodeID, ports[i])), append(w.nodes, nil)
	}
	w.names = names
	var text strings.Builder
	for i, first := range append([]string{""}, edges...) {
		var replicas []string
		for _, n := range keeps[i] {
			replicas = append(replicas, fmt.Sprintf("%q", names[n]))
		}
		fmt.Fprintf(&text, "[[range]]\nfirst = %q\nnodes = [%s]\n", first, strings.Join(replicas, ", "))
	}
	w.ranges = text.String()
	for _, dir := range append(w.storage[:len(w.storage):len(w.storage)], w.validator) {
		w.giveRanges(dir)
	}
	t.Cleanup(func() {
		for i := range w.nodes {
			w.stop(i)
		}
	})
	return w
}

func (w *shardedNetwork) giveRanges(home string) {
	nodetest.WriteFile(w.t, filepath.Join(home, config.DefaultStorageNodesFile), w.ranges)
}

func (w *shardedNetwork) genesis() string {
	return filepath.Join(w.validator, "config", "genesis.json")
}

func (w *shardedNetwork) start(i int) {
	w.t.Helper()
	w.startWith(i, nodetest.Load(w.t, w.storage[i]))
}

func (w *shardedNetwork) startWith(i int, conf *config.Config) {
	w.t.Helper()
	n, err := storagenode.New(w.t.Context(), storagenode.Options{Config: conf, Logger: log.NewNopLogger()})
	require.NoError(w.t, err)
	n.Start()
	w.nodes[i] = n
}

func (w *shardedNetwork) stop(i int) {
	w.t.Helper()
	if n := w.nodes[i]; n != nil {
		w.nodes[i] = nil
		require.NoError(w.t, n.Stop())
	}
}

// A sharded validator makes blocks with data from storage nodes, answers queries, and continues
// after a restart of itself, and of all nodes at once. A full-state node has the same app hashes.
func TestShardedValidator(t *testing.T) {
	t.Parallel() // it waits for blocks
	w := newShardedNetwork(t, []string{"key-10", "key-20"}, [][]int{{0}, {0, 1}, {1}})
	w.start(0)
	w.start(1)
	logs := new(nodetest.LogBuffer)
	n := start(t, w.validator, logs.Logger(t))
	client := nodetest.RPC(t, w.validator)
	for i := range 30 {
		nodetest.Put(t, client, fmt.Sprintf("key-%02d", i), fmt.Sprint("value ", i))
	}
	requireState := func() {
		t.Helper()
		for i := range 30 {
			require.Equal(t, fmt.Sprint("value ", i), nodetest.Get(t, client, fmt.Sprintf("key-%02d", i)))
		}
		nodetest.SameHashes(t, n.Application(), n.Comet)
	}
	requireState()
	nodetest.Until(t, "the storage nodes have what was written", func() bool { return n.Application().backing.(*sharded).store.Durable() > 10 })
	require.True(t, n.Health().Ready, n.Health().Line(false))

	// A full-state node executes the same blocks.
	full, _ := nodetest.Home(t, func(o *home.InitOptions) {
		o.GenesisFile = w.genesis()
		edit := o.Edit
		o.Edit = func(c *cfg.Config, a *config.App) {
			edit(c, a)
			c.P2P.PersistentPeers = fmt.Sprintf("%s@%s", w.id, nodetest.Load(t, w.validator).CometBFT.P2P.ListenAddress[len("tcp://"):])
		}
	})
	local := start(t, full, log.NewNopLogger())
	height := n.Application().Height()
	nodetest.Until(t, "the node in local mode follows", func() bool { return local.Application().Height() > height })
	nodetest.SameHashes(t, local.Application(), local.Comet)
	require.NoError(t, local.Stop())

	// The validator alone.
	require.NoError(t, n.Stop())
	logs = new(nodetest.LogBuffer)
	n = start(t, w.validator, logs.Logger(t))
	client = nodetest.RPC(t, w.validator) // the old client is connected to the stopped node
	require.True(t, logs.Has("Fetched the upper tree from the storage nodes"))
	requireState()
	nodetest.Put(t, client, "one", "more")
	nodetest.Put(t, client, "key-15", "value 15")
	requireState()

	// All at once.
	for range 2 {
		require.NoError(t, n.Stop())
		w.stop(0)
		w.stop(1)
		w.start(1)
		w.start(0)
		n = start(t, w.validator, log.NewNopLogger())
		client = nodetest.RPC(t, w.validator)
		requireState()
		require.Equal(t, "more", nodetest.Get(t, client, "one"))
		nodetest.Put(t, client, "key-25", "value 25")
	}
}
