package fastsync

import (
	"bytes"
	"context"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/bubble"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/transporttest"
)

const testInterval = 10

// slowDisk takes its time over a chunk.
type slowDisk struct {
	*disk
	d time.Duration
}

func (s *slowDisk) Write(k uint32, c *avlstar.Chunk) error {
	pass(s.d)
	return s.disk.Write(k, c)
}

// stateOf has n keys with values of about 200 bytes.
func stateOf(t *testing.T, rng *mathrand.Rand, n int, chunkBytes uint64) *avlstar.Version {
	t.Helper()
	v, err := avlstar.Empty(chunkBytes)
	require.NoError(t, err)
	var changes []avlstar.Change
	for i := range n {
		changes = append(changes, avlstar.Change{Key: fmt.Appendf(nil, "%08x-%d", rng.Uint32(), i), Value: randomValue(rng)})
	}
	return applied(t, v, changes)
}

func randomValue(rng *mathrand.Rand) []byte {
	value := make([]byte, 100+rng.IntN(200))
	for i := range value {
		value[i] = byte(rng.Uint32())
	}
	return value
}

func applied(t *testing.T, v *avlstar.Version, changes []avlstar.Change) *avlstar.Version {
	t.Helper()
	next, err := v.Apply(changes)
	require.NoError(t, err)
	return next
}

// touched changes one leaf in so many.
func touched(t *testing.T, rng *mathrand.Rand, v *avlstar.Version, oneIn int) *avlstar.Version {
	t.Helper()
	var changes []avlstar.Change
	i, which := 0, rng.IntN(oneIn) // not each by chance: then there might be none
	for kv, err := range v.Ascend(nil, nil) {
		require.NoError(t, err)
		if i++; i%oneIn == which {
			changes = append(changes, avlstar.Change{Key: append([]byte(nil), kv.Key...), Value: randomValue(rng)})
		}
	}
	require.NotEmpty(t, changes)
	return applied(t, v, changes)
}

// chain is the truth: states by height, and how high the headers go.
type chain struct {
	mu     sync.Mutex
	states map[int64]*avlstar.Version
	newest int64
}

func newChain() *chain { return &chain{states: map[int64]*avlstar.Version{}} }

func (c *chain) set(height int64, v *avlstar.Version) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.states[height] = v
	c.newest = max(c.newest, height+2)
}

// Newest implements Headers.
func (c *chain) Newest(context.Context) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newest, nil
}

// AppHash implements Headers.
func (c *chain) AppHash(_ context.Context, height int64) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.states[height]
	if v == nil {
		return nil, fmt.Errorf("no header %d", height+1)
	}
	hash := v.AppHash()
	return hash[:], nil
}

// Conflict implements Headers.
func (c *chain) Conflict() error { return nil }

// world is a network of peers in virtual time, and the node that joins. inWorld makes and closes
// it.
type world struct {
	t      *testing.T
	rng    *mathrand.Rand
	net    transporttest.Network
	chain  *chain
	nodes  []*testNode // appended to under mu; peers are told of them
	mu     sync.Mutex
	sybils []*transporttest.Listener
	joiner []*Peers
	parts  bool // peers that are added say of what they have a part
}

// inWorld runs a test in a world of its own. Where f ends early, the world is closed as well: else
// a failure would be a deadlock.
func inWorld(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, rng: seeds.Rand(t), chain: newChain()}
		defer w.close()
		f(t, w)
	})
}

// pass lets virtual time pass.
func pass(d time.Duration) { bubble.Sleep(d) }

// state makes a new state of so many keys that of a height, or of several.
func (w *world) state(keys int, chunkBytes uint64, heights ...int64) *avlstar.Version {
	w.t.Helper()
	v := stateOf(w.t, w.rng, keys, chunkBytes)
	for _, h := range heights {
		w.chain.set(h, v)
	}
	return v
}

// testNode is a peer. Its handler counts what it was asked and what it answered.
type testNode struct {
	manager  *statesync.Manager
	listener *transporttest.Listener

	mu     sync.Mutex
	asked  map[transport.Method]int
	bytes  int // of chunk answers
	lies   int // answers about chunks that are not the truth
	truths int // those that are
}

// meddler changes what a peer answers; nil: it is honest.
type meddler func(n *testNode, r transport.Request, answer []byte, err error) ([]byte, error)

func hostOf(i int) string { return fmt.Sprintf("node-%d:1", i) }

// addressOf is where node i listens.
func addressOf(i int) transport.Address {
	return transport.Address{ID: transporttest.ID(i), HostPort: hostOf(i)}
}

// add makes a peer that serves the states of the chain at some heights. Peers know each other.
func (w *world) add(meddle meddler, heights ...int64) *testNode {
	w.t.Helper()
	return w.addAt(hostOf(len(w.nodes)), meddle, heights...)
}

// addAt is add for a peer that listens elsewhere.
func (w *world) addAt(hostPort string, meddle meddler, heights ...int64) *testNode {
	w.t.Helper()
	n := &testNode{manager: statesync.NewManager(statesync.Options{Interval: testInterval, Keep: 1}), asked: map[transport.Method]int{}}
	for _, h := range heights {
		n.manager.Committed(h, w.chain.states[h])
	}
	mux := new(transport.Mux)
	i := len(w.nodes)
	NewServer(ServerOptions{
		Snapshots: n.manager, Blocks: func() (int64, int64) {
			newest, _ := w.chain.Newest(context.Background())
			return 1, newest
		}, Genesis: []byte("{}"), Parts: w.parts,
		Peers: func() []transport.Address {
			w.mu.Lock()
			defer w.mu.Unlock()
			var list []transport.Address
			for _, x := range w.nodes {
				list = append(list, x.listener.Address())
			}
			return list
		},
	}).Register(mux)
	listener, err := w.net.Listen(hostPort, transporttest.Config{
		ID: transporttest.ID(i), Host: "host", ChainID: "chain",
		Handler: transport.HandlerFunc(func(ctx context.Context, r transport.Request) ([]byte, error) {
			truth, err := mux.Serve(ctx, r)
			answer := truth
			if meddle != nil {
				answer, err = meddle(n, r, answer, err)
			}
			n.note(r.Method, truth, answer, err)
			return answer, err
		}),
	})
	require.NoError(w.t, err)
	n.listener = listener
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nodes = append(w.nodes, n)
	return n
}

func (n *testNode) note(m transport.Method, truth, answer []byte, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked[m]++
	if m == MethodChunk {
		n.bytes += len(answer)
	}
	switch {
	case err != nil || m != MethodChunk && m != MethodSubManifest:
	case bytes.Equal(truth, answer):
		n.truths++
	default:
		n.lies++
	}
}

func (n *testNode) count(m transport.Method) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.asked[m]
}

func (w *world) chunkBytesServed() (total int) {
	for _, n := range w.nodes {
		n.mu.Lock()
		total += n.bytes
		n.mu.Unlock()
	}
	return total
}

// close ends everything, and holds the promise of every join: a peer that lies costs one chunk. One
// that has told the truth before costs what it was asked for at a time.
func (w *world) close() {
	for _, p := range w.joiner {
		p.Close()
	}
	synctest.Wait() // handlers of calls that were cancelled
	for _, s := range w.sybils {
		s.Close()
	}
	for i, n := range w.nodes {
		n.listener.Close()
		require.NoError(w.t, n.manager.Close())
		limit := 1
		if n.truths > 0 {
			limit = 16
		}
		require.LessOrEqual(w.t, n.lies, limit, "lies of node %d, which has told the truth %d times", i, n.truths)
	}
}

// dialer is the joining node's.
func (w *world) dialer() transport.Dialer {
	return w.net.Dialer(transporttest.Config{ID: transporttest.ID(9999), Host: "joiner", ChainID: "chain"})
}

// faulty is that dialer over a network with faults.
func (w *world) faulty(f transporttest.Faults) transport.Dialer {
	return &transporttest.Faulty{Dialer: w.dialer(), Seed: w.rng.Uint64(), Faults: func(transport.Address) transporttest.Faults { return f }}
}

// peers dials the first node only: the others are told.
func (w *world) peers() *Peers { return w.peersOver(w.dialer(), 0) }

// peersOver dials some of the nodes.
func (w *world) peersOver(d transport.Dialer, nodes ...int) *Peers {
	var addresses []transport.Address
	for _, i := range nodes {
		addresses = append(addresses, addressOf(i))
	}
	return w.peersAt(d, false, addresses...)
}

// peersAt dials these addresses first. It draws by the seed of the world.
func (w *world) peersAt(d transport.Dialer, strict bool, addresses ...transport.Address) *Peers {
	o := PeersOptions{
		Logger: log.NewNopLogger(), Dialer: d, Self: transporttest.ID(9999), Addresses: addresses,
		Strict: strict, Random: mathrand.NewPCG(w.rng.Uint64(), 0),
	}
	p := NewPeers(o)
	w.joiner = append(w.joiner, p)
	return p
}

// disk is a Target that outlives a join.
type disk struct {
	mu       sync.Mutex
	height   int64
	manifest *avlstar.Manifest
	chunks   map[string][]byte
	state    *avlstar.Version // committed
	at       int64
	writes   int
}

func newDisk() *disk { return &disk{chunks: map[string][]byte{}} }

func chunkName(e *avlstar.Entry) string { return fmt.Sprintf("%s-%d", e.Root.Hash, e.BoundaryHeight) }

func (d *disk) Begin(height int64, m *avlstar.Manifest) error {
	d.mu.Lock()
	clear(d.chunks)
	d.mu.Unlock()
	return d.Continue(height, m)
}

func (d *disk) Continue(height int64, m *avlstar.Manifest) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.height, d.manifest = height, m
	return nil
}

func (d *disk) Unfinished() (int64, *avlstar.Manifest, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.height, d.manifest, d.manifest != nil
}

func (d *disk) Stored(k uint32) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]byte(nil), d.chunks[chunkName(&d.manifest.Entries[k])]...)
}

func (d *disk) Forget(k uint32) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.chunks, chunkName(&d.manifest.Entries[k]))
	return nil
}

func (d *disk) Write(k uint32, c *avlstar.Chunk) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	name := chunkName(&d.manifest.Entries[k])
	if d.chunks[name] != nil {
		return fmt.Errorf("chunk %d was written before", k) // as package storage
	}
	d.chunks[name] = append([]byte(nil), c.Bytes()...)
	d.writes++
	return nil
}

func (d *disk) Commit(height int64, v *avlstar.Version) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	v.Retain()
	d.state, d.at, d.manifest = v, height, nil
	return nil
}

func (d *disk) Abort() error { panic("nothing is aborted") }

func (d *disk) written() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.writes
}

// options of a join into d.
func (w *world) options(p *Peers, d *disk) Options {
	return Options{Logger: log.NewNopLogger(), Peers: p, Headers: w.chain, Target: d, Interval: testInterval}
}

// try joins within a limit of virtual time.
func (w *world) try(limit time.Duration, o Options) (*Result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return Join(ctx, o)
}

// join joins and checks the result.
func (w *world) join(limit time.Duration, o Options, want int64) *Result {
	w.t.Helper()
	result, err := w.try(limit, o)
	require.NoError(w.t, err)
	require.Equal(w.t, want, result.Height)
	require.Equal(w.t, w.chain.states[want].AppHash(), result.Version.AppHash())
	d := diskOf(o.Target)
	require.Equal(w.t, want, d.at)
	require.Equal(w.t, w.chain.states[want].Root(), d.state.Root())
	result.Version.Release()
	return result
}

func diskOf(t Target) *disk {
	if slow, is := t.(*slowDisk); is {
		return slow.disk
	}
	return t.(*disk)
}
