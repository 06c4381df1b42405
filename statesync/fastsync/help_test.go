package fastsync

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/transporttest"
)

const testInterval = 10

// newRNG returns randomness whose seed a failing test prints; STARLING_SEED repeats a run.
func newRNG(t *testing.T) *mathrand.Rand {
	t.Helper()
	var b [8]byte
	_, err := rand.Read(b[:])
	require.NoError(t, err)
	seed := binary.BigEndian.Uint64(b[:])
	if s := os.Getenv("STARLING_SEED"); s != "" {
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("to repeat: STARLING_SEED=%d go test ./statesync/fastsync -run '^%s$'", seed, t.Name())
		}
	})
	return mathrand.New(mathrand.NewPCG(seed, 0))
}

// stateOf has n keys with values of some 200 bytes.
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
	for key := range v.Ascend(nil, nil) {
		if i++; i%oneIn == which {
			changes = append(changes, avlstar.Change{Key: append([]byte(nil), key...), Value: randomValue(rng)})
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

// world is a network of peers.
type world struct {
	t     *testing.T
	net   transporttest.Network
	chain *chain
	nodes []*testNode
}

type testNode struct {
	w        *world
	manager  *statesync.Manager
	listener *transporttest.Listener
	mu       sync.Mutex
	asked    map[transport.Method]int
	bytes    int // of chunk answers
}

// handler damages answers, if it is not nil.
type meddler func(n *testNode, r transport.Request, answer []byte, err error) ([]byte, error)

func newWorld(t *testing.T) *world { return &world{t: t, chain: newChain()} }

func hostOf(i int) string { return fmt.Sprintf("node-%d:1", i) }

// add makes a node that serves the states of the chain at some heights. Nodes know each other.
func (w *world) add(meddle meddler, heights ...int64) *testNode {
	w.t.Helper()
	n := &testNode{w: w, manager: statesync.NewManager(statesync.Options{Interval: testInterval, Keep: 1}), asked: map[transport.Method]int{}}
	for _, h := range heights {
		n.manager.Committed(h, w.chain.states[h])
	}
	mux := new(transport.Mux)
	i := len(w.nodes)
	NewServer(ServerOptions{
		Snapshots: n.manager, Blocks: func() (int64, int64) {
			newest, _ := w.chain.Newest(context.Background())
			return 1, newest
		}, Genesis: []byte("{}"),
		Peers: func() []transport.Address {
			var list []transport.Address
			for j := range w.nodes {
				list = append(list, transport.Address{ID: transporttest.ID(j), HostPort: hostOf(j)})
			}
			return list
		},
	}).Register(mux)
	listener, err := w.net.Listen(hostOf(i), transporttest.Config{
		ID: transporttest.ID(i), Host: "host", ChainID: "chain",
		Handler: transport.HandlerFunc(func(ctx context.Context, r transport.Request) ([]byte, error) {
			answer, err := mux.Serve(ctx, r)
			if meddle != nil {
				answer, err = meddle(n, r, answer, err)
			}
			n.mu.Lock()
			defer n.mu.Unlock()
			n.asked[r.Method]++
			if r.Method == transport.MethodChunk {
				n.bytes += len(answer)
			}
			return answer, err
		}),
	})
	require.NoError(w.t, err)
	n.listener = listener
	w.nodes = append(w.nodes, n)
	return n
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

func (w *world) close() {
	for _, n := range w.nodes {
		n.listener.Close()
		require.NoError(w.t, n.manager.Close())
	}
}

// peers dials the first node only: the others are told.
func (w *world) peers(dialers ...transport.Dialer) *Peers {
	dialer := w.net.Dialer(transporttest.Config{ID: transporttest.ID(9999), Host: "joiner", ChainID: "chain"})
	if len(dialers) > 0 {
		dialer = dialers[0]
	}
	return NewPeers(PeersOptions{
		Logger: log.NewNopLogger(), Dialer: dialer, Self: transporttest.ID(9999),
		Addresses: []transport.Address{{ID: transporttest.ID(0), HostPort: hostOf(0)}},
	})
}

// disk is a Target that outlives a join.
type disk struct {
	mu       sync.Mutex
	height   int64
	manifest *avlstar.Manifest
	runs     map[string][]byte
	state    *avlstar.Version // committed
	at       int64
	writes   int
}

func newDisk() *disk { return &disk{runs: map[string][]byte{}} }

func runName(e *avlstar.Entry) string { return fmt.Sprintf("%s-%d", e.Root.Hash, e.BoundaryHeight) }

func (d *disk) Begin(height int64, m *avlstar.Manifest) error {
	d.mu.Lock()
	clear(d.runs)
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
	return append([]byte(nil), d.runs[runName(&d.manifest.Entries[k])]...)
}

func (d *disk) Write(k uint32, c *avlstar.Chunk) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.runs[runName(&d.manifest.Entries[k])] = append([]byte(nil), c.Bytes()...)
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

// join joins and checks the result.
func (w *world) join(ctx context.Context, o Options, want int64) *Result {
	w.t.Helper()
	result, err := Join(ctx, o)
	require.NoError(w.t, err)
	require.Equal(w.t, want, result.Height)
	require.Equal(w.t, w.chain.states[want].AppHash(), result.Version.AppHash())
	d := o.Target.(*disk)
	require.Equal(w.t, want, d.at)
	require.Equal(w.t, w.chain.states[want].Root(), d.state.Root())
	result.Version.Release()
	return result
}

// eventually is a deadline in virtual time.
func eventually(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}
