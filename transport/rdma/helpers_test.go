package rdma

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/rdma/internal/verbs"
	"github.com/starling-kv/starling/transport/rdma/internal/verbs/verbstest"
	"github.com/starling-kv/starling/transport/tcp"
	"github.com/starling-kv/starling/transport/transporttest"
)

const (
	chain = "chain"
	// patience ends a test that hangs. It does not decide the outcome of any test.
	patience = 5 * time.Minute

	someMethod transport.Method = 4
)

var everybody = func(transport.ID, netip.Addr) bool { return true }

// loopback is package tcp with paths over an in-memory fabric.
type loopback struct {
	memory   *verbstest.Fabric
	ends     [2]string     // addresses of dialer and server; 127.0.0.1
	retry    time.Duration // delay until another path is proposed
	proposed bool          // dials return at once; otherwise when the path is up
	options  func(*Options)
	made     func(*Fabric)
}

// fabric returns a fabric for a node, which is closed at the end of the test.
func (l loopback) fabric(tb testing.TB) (*Fabric, chan transport.ID) {
	tb.Helper()
	up := make(chan transport.ID, 1000)
	o := Options{Allowed: everybody, Hooks: Hooks{
		Up:     func(peer transport.ID, _ Way) { up <- peer },
		Leaked: func(err error) { tb.Error(err) },
	}}
	if o.open = verbs.Open; l.memory != nil {
		o.open = l.memory.Open
	}
	o.units, o.retryLeast, o.retryMost, o.stall = 32, l.retry, l.retry, patience
	if l.options != nil {
		l.options(&o)
	}
	f := New(o)
	tb.Cleanup(func() { require.NoError(tb, f.Close()) })
	if l.made != nil {
		l.made(f)
	}
	return f, up
}

// Listen implements transporttest.Transport.
func (l loopback) Listen(tb testing.TB, o transporttest.Options) transporttest.Node {
	f, _ := l.fabric(tb)
	s, err := tcp.Listen(net.JoinHostPort(cmp.Or(l.ends[1], "127.0.0.1"), "0"), tcp.ForTests(tcp.Options{
		Key: transporttest.Key(o.Node), ChainID: o.ChainID, Handler: o.Handler, OpenMethods: o.OpenMethods, Workers: 64, Sides: f,
	}, o.MaxCalls))
	require.NoError(tb, err)
	tb.Cleanup(func() { s.Close() })
	address := transport.Address{ID: transporttest.ID(o.Node), HostPort: s.Addr().String()}
	return transporttest.Node{Address: address, Close: func() { s.Close() }}
}

// Dialer implements transporttest.Transport.
func (l loopback) Dialer(tb testing.TB, o transporttest.Options) transport.Dialer {
	f, up := l.fabric(tb)
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(cmp.Or(l.ends[0], "127.0.0.1"))}}
	d := tcp.NewDialer(tcp.ForTests(tcp.Options{
		Key: transporttest.Key(o.Node), ChainID: o.ChainID, Sides: f, Connect: func(ctx context.Context, hostPort string) (net.Conn, error) {
			return from.DialContext(ctx, "tcp", hostPort)
		},
	}, 0))
	if l.proposed || o.ChainID == "" { // a path without a chain id is refused
		return d
	}
	return waiting{d, up}
}

// waiting is a dialer that returns connections when their paths are up.
type waiting struct {
	transport.Dialer
	up chan transport.ID
}

func (w waiting) Dial(ctx context.Context, a transport.Address) (transport.Conn, error) {
	c, err := w.Dialer.Dial(ctx, a)
	if err != nil {
		return nil, err
	}
	select {
	case <-w.up:
	case <-c.Done():
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return c, nil
}

// couple is an in-memory device under control of the test, and a path at its other end.
type couple struct {
	memory *verbstest.Fabric
	fabric *Fabric
	path   *path
	peer   verbs.Queue
	device verbs.Device
	nonce  nonce // the peer's, as exchanged over TLS
}

var addrs = [2]netip.Addr{netip.MustParseAddr("10.7.0.1"), netip.MustParseAddr("10.7.0.2")}

type addr netip.Addr

func (a addr) Network() string { return "memory" }
func (a addr) String() string  { return netip.Addr(a).String() }

func memoryAddr(a net.Addr) (netip.Addr, error) {
	if a, is := a.(addr); is {
		return netip.Addr(a), nil
	}
	of, err := netip.ParseAddrPort(a.String())
	return of.Addr(), err
}

// newLending returns a lending. The test acts as its server.
func newLending(t *testing.T) (*lending, *couple) {
	t.Helper()
	c := newCouple(t)
	s := &lending{lender: &lender{fabric: c.fabric}}
	s.mu.places, s.mu.slots = newPlaces(c.fabric.o.units), make(map[int]*slot)
	s.lender.mu.lent, s.lender.mu.up = s, true
	c.join(t, s, verbs.Sizes{Lent: c.fabric.o.units * unit, Writes: 1, Receives: c.fabric.o.units + 1}, true)
	return s, c
}

func newCouple(t *testing.T) *couple {
	t.Helper()
	c := &couple{memory: &verbstest.Fabric{Retry: time.Millisecond}}
	o := Options{Allowed: everybody, Hooks: Hooks{Leaked: func(err error) { t.Error(err) }}}
	o.open, o.addr, o.units, o.stall = c.memory.Open, memoryAddr, 8, patience
	c.fabric = New(o)
	t.Cleanup(func() {
		require.NoError(t, c.fabric.Close())
		require.NoError(t, c.peer.Close())
		require.NoError(t, c.device.Close())
		require.Zero(t, c.memory.Queues(), "nothing leaks")
	})
	var err error
	c.device, err = c.memory.Open(addrs[1], 1000)
	require.NoError(t, err)
	c.peer, err = c.device.NewQueue(verbs.Sizes{Own: 4 << 20, Lent: 4 << 20, Writes: 64, Receives: 64})
	require.NoError(t, err)
	require.NoError(t, c.peer.Receive(32))
	c.nonce = newNonce()
	return c
}

// join connects the path to the test's queue pair. The greetings are not exchanged yet.
func (c *couple) join(t *testing.T, s side, sizes verbs.Sizes, dialler bool) {
	t.Helper()
	d, err := c.fabric.device(addr(addrs[0]))
	require.NoError(t, err)
	c.path, err = c.fabric.newPath(d, transporttest.ID(1), s, sizes)
	require.NoError(t, err)
	require.NoError(t, c.peer.Connect(c.path.queue.Local()))
	require.NoError(t, c.path.connect(proposal{c.peer.Local(), c.nonce}, dialler))
}

// greet sends the test's greeting.
func (c *couple) greet(t *testing.T) {
	t.Helper()
	memory, address, key := c.peer.Lent()
	require.NoError(t, c.peer.Send(greeting{c.nonce, region{address, key, len(memory) / unit}}.encode(), 0))
}

// write writes to the memory that the path has lent.
func (c *couple) write(t *testing.T, at, n int, immediate uint32) {
	t.Helper()
	_, address, key := c.path.queue.Lent()
	require.NoError(t, c.peer.Write([]verbs.Write{{Length: n, To: address + uint64(at), Key: key, Immediate: immediate}}))
}

// endsWith requires that the path ends with why.
func (c *couple) endsWith(t *testing.T, why error) {
	t.Helper()
	<-c.path.told
	require.ErrorIs(t, c.path.why(), why)
	<-c.path.released
}
