package client_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/client"
	"github.com/starling-kv/starling/dsm/client/feed"
	"github.com/starling-kv/starling/dsm/server"
	"github.com/starling-kv/starling/storage/rangestore"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/transporttest"
)

const worldKeys = 600

// world is a chain on a full tree with storage nodes in memory, inside a synctest bubble.
type world struct {
	t       *testing.T
	rng     *rand.Rand
	network transporttest.Network
	ranges  *dsm.Ranges
	nodes   []*node
	// growing guards full and changes, since replicas check headers concurrently with the test.
	growing sync.Mutex
	full    []*avlstar.Version // by height
	changes [][]avlstar.Change // changes of each block, by height
	proved  atomic.Int64
}

// node is a storage node. If lie is set, its result replaces the node's witness answers.
type node struct {
	name     dsm.NodeID
	address  transport.Address
	listener *transporttest.Listener
	of       []avlstar.KeyRange
	replicas []*server.Replica
	serving  *server.Server
	lie      atomic.Pointer[func(ctx context.Context, r transport.Request, honest []byte) ([]byte, error)]
	asked    atomic.Int64
}

const worldChain = "world"

// newWorld builds a chain without blocks, with shards ranges and replicas nodes for each range.
func newWorld(t *testing.T, rng *rand.Rand, shards, replicas int) *world {
	w := &world{t: t, rng: rng}
	v, err := avlstar.Empty(512)
	require.NoError(t, err)
	var begin []avlstar.Change
	for i := range worldKeys {
		if rng.IntN(2) == 0 {
			begin = append(begin, avlstar.Change{Key: worldKey(i), Value: w.value()})
		}
	}
	first, err := v.Apply(begin)
	require.NoError(t, err)
	v.Release()
	w.full, w.changes = append(w.full, first), append(w.changes, nil)
	edges := rng.Perm(worldKeys)[:shards-1]
	slices.Sort(edges)
	var of []dsm.Placement
	for i := range shards {
		s := dsm.Placement{}
		if i > 0 {
			s.Range.First = worldKey(edges[i-1])
		}
		if i < len(edges) {
			s.Range.After = worldKey(edges[i])
		}
		for range replicas {
			n := w.add(s.Range)
			w.open(n, 0)
			s.Replicas = append(s.Replicas, n.name)
		}
		of = append(of, s)
	}
	w.ranges, err = dsm.NewRanges(of)
	require.NoError(t, err)
	return w
}

// add creates a node for a range. It does not run yet: see open.
func (w *world) add(r avlstar.KeyRange) *node {
	n := &node{name: dsm.NodeID(transporttest.ID(len(w.nodes))), of: []avlstar.KeyRange{r}}
	n.address = transport.Address{ID: transport.ID(n.name), HostPort: fmt.Sprintf("node%d:1", len(w.nodes))}
	w.nodes = append(w.nodes, n)
	return n
}

func worldKey(i int) []byte { return fmt.Appendf(nil, "%05d", i) }

func (w *world) value() []byte {
	b := make([]byte, 8+w.rng.IntN(40))
	for i := range b {
		b[i] = byte(w.rng.Uint32())
	}
	return b
}

// open creates the replicas of a node with the state of a height, and starts its listener.
func (w *world) open(n *node, height int64) {
	fsys := vfs.NewMem()
	log, err := server.OpenRedoLog(server.RedoOptions{FS: fsys, Dir: "/node/log", Label: []byte(worldChain)})
	require.NoError(w.t, err)
	w.t.Cleanup(func() { require.NoError(w.t, log.Close()) })
	memory := rangestore.NewMemory(1 << 20)
	for i, r := range n.of {
		store, err := rangestore.Open(rangestore.Options{
			Dir: path.Join("/node", fmt.Sprint("range-", i)), FS: fsys, Keys: r, ChainID: worldChain, Memory: memory,
		})
		require.NoError(w.t, err)
		o := server.Options{Range: r, Store: store, Log: log, Headers: w, ServeHeights: 8}
		boundary, err := w.full[height].Boundary(o.Range)
		require.NoError(w.t, err)
		leaves := func(yield func(avlstar.Leaf, error) bool) {
			for l, err := range w.full[height].Leaves() {
				if (err != nil || o.Range.Contains(l.Key)) && !yield(l, err) {
					return
				}
			}
		}
		require.NoError(w.t, store.Create(height, w.full[height].Commitment(), boundary, leaves))
		replica, err := server.Open(w.t.Context(), o)
		require.NoError(w.t, err)
		n.replicas = append(n.replicas, replica)
	}
	n.serving, err = server.NewServer(server.ServerOptions{Making: make(chan struct{}, 4)}, n.replicas...)
	require.NoError(w.t, err)
	mux := new(transport.Mux)
	n.serving.Register(mux)
	handler := transport.HandlerFunc(func(ctx context.Context, r transport.Request) ([]byte, error) {
		b, err := mux.Serve(ctx, r)
		if r.Method == dsm.MethodWitness {
			n.asked.Add(1)
			if lie := n.lie.Load(); lie != nil && err == nil {
				return (*lie)(ctx, r, b)
			}
		}
		return b, err
	})
	n.listener, err = w.network.Listen(n.address.HostPort, transporttest.Config{ID: transport.ID(n.name), ChainID: worldChain, Handler: handler})
	require.NoError(w.t, err)
}

// AppHash implements server.Headers.
func (w *world) AppHash(height int64) (avlstar.Hash, bool) {
	if height > w.proved.Load() {
		return avlstar.Hash{}, false
	}
	w.growing.Lock()
	defer w.growing.Unlock()
	return w.full[height].AppHash(), true
}

func (w *world) height() int64 { return int64(len(w.full)) - 1 }

// block adds a block with changes and returns them.
func (w *world) block(changes []avlstar.Change) []avlstar.Change {
	next, err := w.full[w.height()].Apply(changes)
	require.NoError(w.t, err)
	w.growing.Lock()
	defer w.growing.Unlock()
	w.full, w.changes = append(w.full, next), append(w.changes, changes)
	return changes
}

// draw returns random changes: new values, insertions, deletions, sometimes of many adjacent keys
// or of recently deleted ones.
func (w *world) draw() []avlstar.Change {
	by := map[int][]byte{}
	switch w.rng.IntN(8) {
	case 0:
	case 1:
		from := w.rng.IntN(worldKeys)
		for i := from; i < min(worldKeys, from+w.rng.IntN(60)); i++ {
			by[i] = nil
		}
	default:
		for range 1 + w.rng.IntN(30) {
			i := w.rng.IntN(worldKeys)
			if by[i] = nil; w.rng.IntN(3) > 0 {
				by[i] = w.value()
			}
		}
	}
	var changes []avlstar.Change
	for i := range worldKeys {
		if value, is := by[i]; is {
			changes = append(changes, avlstar.Change{Key: worldKey(i), Value: value})
		}
	}
	return changes
}

// feed delivers the updates up to a height to all replicas, without a Client.
func (w *world) feed(height int64) {
	for h := w.proved.Load() + 1; h <= height; h++ {
		w.proved.Store(h)
		for _, n := range w.nodes {
			for k, replica := range n.replicas {
				r := n.of[k]
				u, err := w.full[h].UpdateOf(w.full[h-1], r, w.changes[h])
				require.NoError(w.t, err)
				b := u.Encode()
				_, err = replica.Receive("feeder", "", dsm.PartOf(h, r, b, sumOf(b), 0))
				require.NoError(w.t, err)
				_, err = replica.Advance()
				require.NoError(w.t, err)
			}
		}
	}
}

// claimed makes a block, feeds it to all nodes, and returns a Client that has their claims.
func (w *world) claimed() *client.Client {
	w.t.Helper()
	w.block(w.draw())
	w.feed(1)
	s := w.source(nil)
	_, err := s.Claims(context.Background())
	require.NoError(w.t, err)
	return s
}

// source returns a Client connected to all nodes.
func (w *world) source(change func(*client.Options)) *client.Client {
	o := client.Options{
		Map:    client.Map{Ranges: w.ranges, Addresses: map[dsm.NodeID]transport.Address{}},
		Dialer: w.network.Dialer(transporttest.Config{ID: transporttest.ID(1000), Host: "validator", ChainID: worldChain}),
	}
	for _, n := range w.nodes {
		o.Map.Addresses[n.name] = n.address
	}
	if change != nil {
		change(&o)
	}
	s, err := client.New(o)
	require.NoError(w.t, err)
	return s
}

func (w *world) node(name dsm.NodeID) *node {
	return w.nodes[slices.IndexFunc(w.nodes, func(n *node) bool { return n.name == name })]
}

func (w *world) close() {
	for _, n := range w.nodes {
		n.listener.Close()
		for _, r := range n.replicas {
			require.NoError(w.t, r.Close())
		}
	}
	for _, v := range w.full {
		v.Release()
	}
}

// inWorld runs a test in a synctest bubble.
func inWorld(t *testing.T, seed uint64, shards, replicas int, do func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, rand.New(rand.NewPCG(seed, 45)), shards, replicas)
		defer w.close()
		do(w)
	})
}

// holder is a validator's tree.
type holder struct {
	*world
	s       *client.Client
	partial *avlstar.Partial
	base    *avlstar.Partial // to which the last block was applied; nil: no block yet
	height  int64
	fetches int
}

// join fetches the upper tree of the last proved height.
func (w *world) join(s *client.Client, depth, window int) *holder {
	height := w.proved.Load()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	p, err := s.Upper(ctx, height, w.full[height].AppHash(), depth)
	require.NoError(w.t, err)
	want, err := w.full[height].Upper(depth)
	require.NoError(w.t, err)
	got, err := p.Upper(depth)
	require.NoError(w.t, err)
	require.Equal(w.t, want, got)
	p.EnableRetention(avlstar.Retention{Depth: depth, Window: window})
	return &holder{world: w, s: s, partial: p, height: height}
}

// fetch retries until something was grafted.
func (h *holder) fetch(wants []avlstar.Want, held map[avlstar.Hash]avlstar.Span) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for try := 0; ; try++ {
		require.Less(h.t, try, 5, "nothing arrives")
		multiproofs, err := h.s.Fetch(ctx, h.height, wants, avlstar.Below{Depth: 1 << 20, Held: held})
		h.fetches++
		next, done, graft := h.partial.Graft(multiproofs...)
		require.NoError(h.t, graft)
		h.partial.Release()
		h.partial = next
		if done.Inner+done.Leaves > 0 {
			return
		}
		h.t.Logf("height %d: nothing arrived for %q: %v", h.height, wants[0].Key, err)
	}
}

// read fetches the wants.
func (h *holder) read(wants []avlstar.Want) {
	for rounds := 0; ; rounds++ {
		require.Less(h.t, rounds, 100)
		lacking, held := h.partial.Version().Missing(wants)
		if len(held) == 0 {
			return
		}
		h.fetch(lacking, held)
	}
}

// execute applies the next block and fetches missing nodes.
func (h *holder) execute(changes []avlstar.Change) {
	for rounds := 0; ; rounds++ {
		require.Less(h.t, rounds, 100)
		next, err := h.partial.Apply(changes)
		if err == nil {
			if h.base != nil {
				h.base.Release()
			}
			h.base, h.partial = h.partial, next
			break
		}
		var missing *avlstar.MissingNodeError
		require.ErrorAs(h.t, err, &missing)
		h.fetch(missing.Wants(changes), missing.Held())
	}
	h.height++
	require.Equal(h.t, h.full[h.height].AppHash(), h.partial.AppHash())
}

func (h *holder) shed() {
	next, err := h.partial.Shed()
	require.NoError(h.t, err)
	h.partial.Release()
	h.partial = next
}

var errTest = errors.New("injected by the test")

func testFeed() feed.Policy {
	p := feed.DefaultPolicy()
	p.MaxLagBlocks, p.KeepBlocks = 8, 20
	return p
}

// sum returns the sum of the series with these label values, or of all series if there are none.
func sum(t *testing.T, c prometheus.Collector, labels ...string) (sum float64) {
	t.Helper()
	registry := prometheus.NewRegistry()
	require.NoError(t, registry.Register(c))
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			has := func(value string) bool {
				for _, l := range m.GetLabel() {
					if l.GetValue() == value {
						return true
					}
				}
				return false
			}
			if !slices.ContainsFunc(labels, func(value string) bool { return !has(value) }) {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}
