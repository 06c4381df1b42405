package restore

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
	"github.com/starling-kv/starling/statesync/peers"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/statesync/serve"
	"github.com/starling-kv/starling/statesync/statetest"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/transporttest"
)

const testInterval = 10

// slowDisk is slow to write chunks.
type slowDisk struct {
	*disk
	d time.Duration
}

func (s *slowDisk) Write(k uint32, c *avlstar.Chunk) error {
	pass(s.d)
	return s.disk.Write(k, c)
}

// chain is the source of truth: states by height, and the height of the newest header.
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

// world is a network of peers and a joining node, in virtual time. inWorld creates and closes it.
type world struct {
	t      *testing.T
	rng    *mathrand.Rand
	net    transporttest.Network
	chain  *chain
	nodes  []*testNode // appended to under mu; advertised to peers
	mu     sync.Mutex
	sybils []*transporttest.Listener
	joiner []*peers.Peers
	parts  bool // added peers claim their parts
}

// inWorld runs a test in its own world. It closes the world even if f ends early; otherwise a
// failure would be a deadlock.
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

// state makes a new state with keys keys the state of one or more heights.
func (w *world) state(keys int, chunkBytes uint64, heights ...int64) *avlstar.Version {
	w.t.Helper()
	v := statetest.New(w.t, w.rng, keys, chunkBytes)
	for _, h := range heights {
		w.chain.set(h, v)
	}
	return v
}

// testNode is a peer. Its handler counts requests and answers.
type testNode struct {
	manager  *statesync.Manager
	listener *transporttest.Listener
	config   transporttest.Config // of listener

	mu     sync.Mutex
	asked  map[transport.Method]int
	bytes  int // of chunk answers
	lies   int // wrong answers about chunks
	truths int // right ones
}

// meddler changes a peer's answers; nil: the peer is honest.
type meddler func(n *testNode, r transport.Request, answer []byte, err error) ([]byte, error)

func hostOf(i int) string { return fmt.Sprintf("node-%d:1", i) }

// addressOf returns the address of node i.
func addressOf(i int) transport.Address {
	return transport.Address{ID: transporttest.ID(i), HostPort: hostOf(i)}
}

// add adds a peer that serves the chain's states at some heights. Peers advertise each other.
func (w *world) add(meddle meddler, heights ...int64) *testNode {
	w.t.Helper()
	return w.addAt(hostOf(len(w.nodes)), meddle, heights...)
}

// addAt is add with another address.
func (w *world) addAt(hostPort string, meddle meddler, heights ...int64) *testNode {
	w.t.Helper()
	n := &testNode{manager: statesync.NewManager(statesync.Options{Interval: testInterval, Keep: 1}), asked: map[transport.Method]int{}}
	for _, h := range heights {
		n.manager.Committed(h, w.chain.states[h])
	}
	mux := new(transport.Mux)
	i := len(w.nodes)
	serve.New(serve.Options{
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
	n.config = transporttest.Config{
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
	}
	n.listen(w, hostPort)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nodes = append(w.nodes, n)
	return n
}

func (n *testNode) listen(w *world, hostPort string) {
	listener, err := w.net.Listen(hostPort, n.config)
	require.NoError(w.t, err)
	w.mu.Lock()
	defer w.mu.Unlock()
	n.listener = listener
}

func (n *testNode) note(m transport.Method, truth, answer []byte, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked[m]++
	if m == protocol.MethodChunk {
		n.bytes += len(answer)
	}
	switch {
	case err != nil || m != protocol.MethodChunk && m != protocol.MethodSubManifest:
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

// close ends everything and checks the guarantee of every join: a faulty peer costs one chunk. A
// peer that answered correctly before costs what it was asked for at a time.
func (w *world) close() {
	for _, p := range w.joiner {
		p.Close()
	}
	synctest.Wait() // handlers of cancelled calls
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
		require.LessOrEqual(w.t, n.lies, limit, "wrong answers of node %d, after %d right ones", i, n.truths)
	}
}

// dialer returns the joining node's dialer.
func (w *world) dialer() transport.Dialer {
	return w.net.Dialer(transporttest.Config{ID: transporttest.ID(9999), Host: "joiner", ChainID: "chain"})
}

// faulty returns that dialer over a faulty network.
func (w *world) faulty(f transporttest.Faults) transport.Dialer {
	return &transporttest.Faulty{Dialer: w.dialer(), Seed: w.rng.Uint64(), Faults: func(transport.Address) transporttest.Faults { return f }}
}

// peers dials the first node only; the others are discovered.
func (w *world) peers() *peers.Peers { return w.peersOver(w.dialer(), 0) }

// peersOver dials some of the nodes.
func (w *world) peersOver(d transport.Dialer, nodes ...int) *peers.Peers {
	var addresses []transport.Address
	for _, i := range nodes {
		addresses = append(addresses, addressOf(i))
	}
	return w.peersAt(d, false, addresses...)
}

// peersAt dials these addresses first. Its draws use the seed of the world.
func (w *world) peersAt(d transport.Dialer, strict bool, addresses ...transport.Address) *peers.Peers {
	o := peers.Options{
		Logger: log.NewNopLogger(), Dialer: d, Self: transporttest.ID(9999), Addresses: addresses,
		Strict: strict, Random: mathrand.NewPCG(w.rng.Uint64(), 0),
	}
	p := peers.New(o)
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

// options returns the options of a join into d.
func (w *world) options(p *peers.Peers, d *disk) Options {
	return Options{Logger: log.NewNopLogger(), Peers: p, Headers: w.chain, Target: d, Interval: testInterval}
}

// try joins within a limit of virtual time.
func (w *world) try(limit time.Duration, o Options) (*Result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return Run(ctx, o)
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

func isBanned(p *peers.Peers, n *testNode) bool {
	_, banned := p.Addresses()
	_, is := banned[n.listener.Address().ID]
	return is
}

func diskOf(t Target) *disk {
	if slow, is := t.(*slowDisk); is {
		return slow.disk
	}
	return t.(*disk)
}
