package app

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app/evm"
	"github.com/starling-kv/starling/app/program"
	"github.com/starling-kv/starling/app/program/programtest"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	storage "github.com/starling-kv/starling/dsm/client"
	"github.com/starling-kv/starling/dsm/client/ask"
	"github.com/starling-kv/starling/dsm/server"
	"github.com/starling-kv/starling/internal/bubble"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/storage/rangestore"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/transporttest"
	"github.com/starling-kv/starling/tx"
)

// storyBlock is one block of a story: its transactions, and the results in full-state mode.
type storyBlock struct {
	last abci.CommitInfo
	txs  [][]byte
	want *abci.ResponseFinalizeBlock
}

// shardedConfig is a configuration for executing a story on storage nodes.
type shardedConfig struct {
	depth, window    int
	shards, replicas int
	lag              int64 // number of blocks by which storage nodes are behind
	wants            int   // maximum number of wants in a request, to get several multiproofs
	restarts         bool  // restart with the upper tree of a state that all storage nodes have
}

// TestShardedMetamorphic runs a random list of blocks, with all operations, in full-state mode and
// then under many configurations of a sharded validator. Its storage nodes are real ones, on a
// network in memory, and begin with the genesis state. They answer from the updates that this
// validator made of its own blocks, on a tree in which most of the state is missing. Results and
// app hashes must be those of full-state mode:
//
//	              ┌ r         levels of the tree that stay
//	              ├ window    blocks for which fetched nodes stay
//	blocks ─────▶ ├ shards    ranges, which begin anywhere, also among system keys ──▶ results, app hashes
//	              ├ lag       multiproofs are of older states, and revised
//	              ├ wants     multiproofs of several ranges and requests are merged
//	              └ restarts  with only the upper tree, some blocks back
func TestShardedMetamorphic(t *testing.T) {
	rnd := seeds.Rand(t)
	blocks, configs := 30, 24
	if testing.Short() {
		blocks, configs = 12, 6
	}
	story := tellStory(t, rnd, blocks)
	for range configs {
		c := shardedConfig{
			depth: []int{0, 1, 2, 4, 8}[rnd.IntN(5)], window: rnd.IntN(5), shards: 1 + rnd.IntN(6), replicas: 1 + rnd.IntN(2),
			lag: 1 + rnd.Int64N(3), wants: []int{1, 3, 20, 1000}[rnd.IntN(4)], restarts: rnd.IntN(2) == 0,
		}
		world := rnd.Uint64()
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { retell(t, rand.New(rand.NewPCG(world, 9)), c, story) })
		})
	}
}

// tellStory runs random blocks in full-state mode.
func tellStory(t *testing.T, rnd *rand.Rand, blocks int) (story []storyBlock) {
	local := newTestAppWith(t, &memoryStore{}, evm.New())
	_, err := local.InitChain(ctx, initRequest(witnessedState))
	require.NoError(t, err)
	m := &model{state: map[string]string{}, open: true}
	g := &generator{Rand: rnd, t: t, names: []string{"alice", "bob", "carol", "root"}}
	p := &callers{t: t, rnd: rnd, m: m}
	for i := range blocks {
		b := storyBlock{txs: append(prefill(t), sign(t, "root", 0, upgradeOp(p.version(), 2)))}
		g.numbers = p.version() > 1
		switch {
		case i == 1: // the last one of version 1
			b.txs = nil
		case i == 2: // root grants before it can lose its rights
			b.txs = p.grants()
		case i > 2:
			b.last, b.txs = g.lastCommit(), nil
			for waiting := map[string]uint64{}; len(b.txs) < 12; {
				b.txs = append(b.txs, g.transaction(m, waiting))
			}
			if rnd.IntN(4) == 0 {
				b.txs = append(b.txs, deletion(t, g, m))
			}
			b.txs = append(p.transactions(), b.txs...)
		}
		b.want = runBlockAfter(t, local, b.last, b.txs...)
		p.note(b)
		story = append(story, b)
		_, v := local.Latest()
		clear(m.state)
		for _, kv := range entries(t, v) {
			m.state[string(kv.Key)] = string(kv.Value)
		}
		v.Release()
	}
	require.True(t, p.logged > 0 || p.version() == 1, "no program was called")
	return story
}

// callers deploy and call programs.
type callers struct {
	t        *testing.T
	rnd      *rand.Rand
	m        *model
	programs [][]byte // addresses
	deployed []int    // positions of deployments in the last block
	called   []int    // positions of calls in the last block
	logged   int      // number of calls that logged something
}

// version is the app version of the story: 1 in a build without programs.
func (p *callers) version() uint64 { return NewestVersion(evm.New() != nil) }

// grants returns the transactions that give dave rights.
func (p *callers) grants() [][]byte {
	if p.version() == 1 {
		return nil
	}
	return [][]byte{sign(p.t, "root", 1, grantOp(account("dave"), string(program.Prefix(nil)), 0), grantOp(account("dave"), "d", 0))}
}

// transactions returns those at the beginning of a block of version 2.
func (p *callers) transactions() (txs [][]byte) {
	p.deployed, p.called = nil, nil
	if p.version() == 1 {
		return nil
	}
	nonce := p.m.u64(NonceKey(account("dave")))
	for k := range uint64(3) {
		operation := tx.NewBoundedAdd(fmt.Appendf(nil, "d%d", p.rnd.IntN(5)), p.rnd.Int64N(9)-3, -20, 40)
		switch {
		case len(p.programs) == 0 || p.rnd.IntN(8) == 0:
			operation = tx.NewDeploy(programtest.InitCode(p.rnd), nil, 1_500_000, 40)
			p.deployed = append(p.deployed, len(txs))
		case p.rnd.IntN(4) > 0:
			var touch [][]byte
			to := p.programs[p.rnd.IntN(len(p.programs))]
			if p.rnd.IntN(2) == 0 {
				touch = [][]byte{program.CodeKey(to)}
			}
			p.called = append(p.called, len(txs))
			operation = tx.NewCall(to, programtest.Input(p.rnd), 150_000, 8, 6, touch...)
		}
		txs = append(txs, sign(p.t, "dave", nonce+k, operation))
	}
	return txs
}

// note takes the addresses of new programs from the results of a block.
func (p *callers) note(b storyBlock) {
	for _, at := range p.deployed {
		require.Zero(p.t, b.want.TxResults[at].Code, b.want.TxResults[at].Log)
		result := must(tx.DecodeResult(b.want.TxResults[at].Data))
		require.NotEmpty(p.t, result.Results[0].Value)
		p.programs = append(p.programs, result.Results[0].Value)
	}
	for _, at := range p.called {
		require.Zero(p.t, b.want.TxResults[at].Code, b.want.TxResults[at].Log)
		if slices.ContainsFunc(b.want.TxResults[at].Events, func(e abci.Event) bool { return e.Type == EventTypeProgram }) {
			p.logged++
		}
	}
}

// retelling is a sharded validator, and its storage nodes.
type retelling struct {
	t         *testing.T
	c         shardedConfig
	story     []storyBlock
	network   transporttest.Network
	ranges    *dsm.Ranges
	addresses map[dsm.NodeID]transport.Address
	nodes     []*server.Server
	proved    atomic.Int64 // height of the last state that storage nodes may adopt

	source  *storage.Client
	app     *App
	last    atomic.Int64 // height of the last committed block
	fetches atomic.Int64
	starts  int
}

// counted counts fetches.
type counted struct {
	*storage.Client
	fetches *atomic.Int64
}

func (s counted) Fetch(ctx context.Context, height int64, wants []avlstar.Want, below avlstar.Below) ([]*avlstar.Multiproof, error) {
	s.fetches.Add(1)
	return s.Client.Fetch(ctx, height, wants, below)
}

func retell(t *testing.T, rnd *rand.Rand, c shardedConfig, story []storyBlock) {
	w := &retelling{t: t, c: c, story: story, addresses: map[dsm.NodeID]transport.Address{}}
	defer w.startNodes(rnd)()
	w.start(0)
	for w.last.Load() < int64(len(story)) {
		b := story[w.last.Load()]
		if rnd.IntN(3) == 0 { // a proposal that is not decided
			processed(t, w.app, b.last, b.txs[:rnd.IntN(len(b.txs)+1)]...)
		}
		if rnd.IntN(2) == 0 {
			processed(t, w.app, b.last, b.txs...)
		}
		height := w.last.Load() + 1
		require.Equal(t, b.want, runBlockAfter(t, w.app, b.last, b.txs...), "block %d", height)
		require.Equal(t, height, w.last.Load())
		w.proved.Store(max(w.proved.Load(), height-c.lag))
		for _, n := range w.nodes {
			n.Proved()
		}
		bubble.Sleep(2 * time.Second)
		if durable := w.source.Durable(); c.restarts && durable > 0 && rnd.IntN(6) == 0 {
			w.stop()
			w.start(durable)
		}
	}
	w.stop()
	t.Logf("%d fetches, %d starts", w.fetches.Load(), w.starts)
	if c.depth < 8 && c.window < 4 {
		require.Positive(t, w.fetches.Load(), "no node was missing")
	}
}

// AppHash implements server.Headers.
func (w *retelling) AppHash(height int64) (avlstar.Hash, bool) {
	if height < 1 || height > w.proved.Load() {
		return avlstar.Hash{}, false
	}
	return w.hash(height), true
}

func (w *retelling) hash(height int64) avlstar.Hash {
	return avlstar.Hash(w.story[height-1].want.AppHash)
}

// startNodes starts storage nodes that have the genesis state. stop stops them.
func (w *retelling) startNodes(rnd *rand.Rand) (stop func()) {
	t := w.t
	edges := []string{"\x00", "\x00g", "\x00n", "\x00v", "\x00x\x80", "a", "a1", "a140", "ab", "ab21\x00", "abc", "b", "c", "\xff"}
	rnd.Shuffle(len(edges), func(i, j int) { edges[i], edges[j] = edges[j], edges[i] })
	firsts := append([]string{""}, slices.Sorted(slices.Values(edges[:w.c.shards-1]))...)
	var shards []dsm.Placement
	of := map[dsm.NodeID]int{}
	for i, first := range firsts {
		s := dsm.Placement{Range: avlstar.KeyRange{First: []byte(first)}}
		if i+1 < len(firsts) {
			s.Range.After = []byte(firsts[i+1])
		}
		for range w.c.replicas {
			id := dsm.NodeID(transporttest.ID(len(of)))
			of[id] = i
			s.Replicas = append(s.Replicas, id)
		}
		shards = append(shards, s)
	}
	var err error
	w.ranges, err = dsm.NewRanges(shards)
	require.NoError(t, err)
	genesis, err := GenesisState(initRequest(witnessedState))
	require.NoError(t, err)
	defer genesis.Release()
	running, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	var ends []func()
	for _, id := range w.ranges.Nodes() {
		replica := w.replica(genesis, shards[of[id]].Range)
		node, err := server.NewServer(server.ServerOptions{Making: make(chan struct{}, 4)}, replica)
		require.NoError(t, err)
		mux := new(transport.Mux)
		node.Register(mux)
		listener, err := w.network.Listen(fmt.Sprintf("%s:1", id), transporttest.Config{ID: transport.ID(id), ChainID: testChain, Handler: mux})
		require.NoError(t, err)
		w.nodes, w.addresses[id] = append(w.nodes, node), listener.Address()
		all.Go(func() { require.NoError(t, node.Run(running)) })
		ends = append(ends, func() {
			listener.Close()
			require.NoError(t, replica.Close())
		})
	}
	return func() {
		cancel()
		all.Wait()
		for _, end := range ends {
			end()
		}
	}
}

// replica makes the replica of a range from the genesis state.
func (w *retelling) replica(genesis *avlstar.Version, r avlstar.KeyRange) *server.Replica {
	t, fsys := w.t, vfs.NewMem()
	log, err := server.OpenRedoLog(server.RedoOptions{FS: fsys, Dir: "/node/log", Label: []byte(testChain)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, log.Close()) })
	store, err := rangestore.Open(rangestore.Options{Dir: "/node/range", FS: fsys, Keys: r, ChainID: testChain, Memory: rangestore.NewMemory(1 << 20)})
	require.NoError(t, err)
	o := server.Options{Range: r, Store: store, Log: log, Headers: w, ServeHeights: 100}
	boundary, err := genesis.Boundary(o.Range)
	require.NoError(t, err)
	leaves := func(yield func(avlstar.Leaf, error) bool) {
		for l, err := range genesis.Leaves() {
			if (err != nil || o.Range.Contains(l.Key)) && !yield(l, err) {
				return
			}
		}
	}
	require.NoError(t, store.Create(0, genesis.Commitment(), boundary, leaves))
	replica, err := server.Open(t.Context(), o)
	require.NoError(t, err)
	return replica
}

// start starts the validator on the state after block height, or on genesis for 0.
func (w *retelling) start(height int64) {
	t, policy := w.t, ask.DefaultPolicy()
	policy.Wants = w.c.wants
	var err error
	w.source, err = storage.New(storage.Options{
		Map: storage.Map{Ranges: w.ranges, Addresses: w.addresses}, Ask: policy,
		Dialer: w.network.Dialer(transporttest.Config{ID: transporttest.ID(1000), Host: "validator", ChainID: testChain}),
	})
	require.NoError(t, err)
	w.source.Validators(1, 0)
	w.starts++
	w.last.Store(height)
	edges := w.source.Edges()
	w.app, err = New(Options{
		Store: retold{w}, Source: counted{w.source, &w.fetches}, KeepRecent: 4,
		ChainID: testChain, ProposalTime: time.Hour, Edges: w.source.Edges, Programs: evm.New(),
		Retention: avlstar.Retention{
			Depth: w.c.depth, Window: w.c.window,
			Least: func() int { return int(max(0, w.last.Load()-w.source.Durable())) },
			Keep: func(first, after []byte) bool { // the paths to edges, which are in each update
				i := sort.Search(len(edges), func(i int) bool { return bytes.Compare(edges[i], first) >= 0 })
				return i < len(edges) && (after == nil || bytes.Compare(edges[i], after) <= 0)
			},
		},
	})
	require.NoError(t, err)
	if height == 0 {
		_, err = w.app.InitChain(ctx, initRequest(witnessedState))
		require.NoError(t, err)
	}
}

func (w *retelling) stop() {
	w.app.Stop()
	require.NoError(w.t, w.source.Close())
}

// retold is the Store of the validator.
type retold struct{ w *retelling }

func (s retold) Load() (int64, *avlstar.Version, error) {
	w, height := s.w, s.w.last.Load()
	var v *avlstar.Version
	if height > 0 {
		limited, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		p, err := w.source.Upper(limited, height, w.hash(height), w.c.depth)
		if err != nil {
			return 0, nil, err
		}
		v = p.Version()
	}
	w.source.Begin(height)
	return height, v, nil
}

func (s retold) Commit(height int64, v, base *avlstar.Version, changes []avlstar.Change) error {
	if err := s.w.source.Committed(height, v, base, changes); err != nil {
		return err
	}
	s.w.last.Store(height)
	return s.w.source.Room(ctx)
}

func (s retold) Durable() int64 { return s.w.source.Durable() }
