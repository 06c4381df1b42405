package transporttest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/starling-kv/starling/transport"
)

// defaultCalls is the default of Config.MaxCalls.
const defaultCalls = 16

// Network is an in-memory transport. Nothing is encoded, and only handlers take time, so it works
// in the virtual time of testing/synctest. The zero value is a network without nodes.
type Network struct {
	mu        sync.Mutex
	listeners map[string]*Listener
}

// Config configures a node of a Network.
type Config struct {
	ID          transport.ID
	Host        string // at a dialer: Request.Host at the server
	ChainID     string // if empty at a dialer, only OpenMethods are answered
	Handler     transport.Handler
	OpenMethods []transport.Method // answered also to dialers without a ChainID
	MaxCalls    int                // calls under way per connection that a listener accepts; 16
}

// Listener is a listening node.
type Listener struct {
	network  *Network
	hostPort string
	c        Config
	wg       sync.WaitGroup // of handlers
	mu       struct {
		sync.Mutex
		conns  map[*memConn]struct{}
		closed bool
	}
}

// Listen serves as hostPort until Close.
func (n *Network) Listen(hostPort string, c Config) (*Listener, error) {
	if c.MaxCalls == 0 {
		c.MaxCalls = defaultCalls
	}
	l := &Listener{network: n, hostPort: hostPort, c: c}
	l.mu.conns = make(map[*memConn]struct{})
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[hostPort] != nil {
		return nil, fmt.Errorf("%s: address in use", hostPort)
	}
	if n.listeners == nil {
		n.listeners = make(map[string]*Listener)
	}
	n.listeners[hostPort] = l
	return l, nil
}

// Address returns the listening address.
func (l *Listener) Address() transport.Address {
	return transport.Address{ID: l.c.ID, HostPort: l.hostPort}
}

// Close stops listening, ends all connections and waits for the handlers.
func (l *Listener) Close() {
	l.network.mu.Lock()
	if l.network.listeners[l.hostPort] == l {
		delete(l.network.listeners, l.hostPort)
	}
	l.network.mu.Unlock()
	l.mu.Lock()
	l.mu.closed = true
	l.mu.Unlock()
	l.Disconnect()
	l.wg.Wait()
}

// Disconnect ends all connections and keeps listening.
func (l *Listener) Disconnect() {
	l.mu.Lock()
	conns := make([]*memConn, 0, len(l.mu.conns))
	for c := range l.mu.conns {
		conns = append(conns, c)
	}
	l.mu.Unlock()
	for _, c := range conns {
		c.fail(errReset)
	}
}

var (
	errReset   = errors.New("connection reset by peer")
	errNobody  = errors.New("connection refused")
	errNoChain = fmt.Errorf("the method requires a chain id: %w", transport.ErrRefused)
)

// Dialer returns a dialer of the network.
func (n *Network) Dialer(c Config) transport.Dialer { return &memDialer{n, c} }

type memDialer struct {
	network *Network
	c       Config
}

// Dial implements transport.Dialer.
func (d *memDialer) Dial(ctx context.Context, a transport.Address) (transport.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("dial %s: %w", a, err)
	}
	d.network.mu.Lock()
	l := d.network.listeners[a.HostPort]
	d.network.mu.Unlock()
	var err error
	switch {
	case l == nil:
		err = errNobody
	case a.ID != "" && a.ID != l.c.ID:
		err = fmt.Errorf("%w: %s", transport.ErrWrongID, l.c.ID)
	case d.c.ChainID != "" && d.c.ChainID != l.c.ChainID:
		err = fmt.Errorf("%w: %q", transport.ErrWrongChain, l.c.ChainID)
	}
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", a, err)
	}
	c := &memConn{listener: l, dialer: d.c, slots: make(chan struct{}, l.c.MaxCalls)}
	c.ctx, c.end = context.WithCancelCause(context.Background())
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed {
		return nil, fmt.Errorf("dial %s: %w", a, errNobody)
	}
	l.mu.conns[c] = struct{}{}
	return c, nil
}

// memConn is a connection. Its context ends with it.
type memConn struct {
	listener *Listener
	dialer   Config
	slots    chan struct{} // one for each running handler
	ctx      context.Context
	end      context.CancelCauseFunc
}

func (c *memConn) Remote() transport.Address { return c.listener.Address() }
func (c *memConn) ChainID() string           { return c.listener.c.ChainID }
func (c *memConn) Done() <-chan struct{}     { return c.ctx.Done() }
func (c *memConn) Err() error                { return context.Cause(c.ctx) }

func (c *memConn) Close() error {
	c.fail(nil)
	return nil
}

func (c *memConn) fail(cause error) {
	err := transport.ErrClosed
	if cause != nil {
		err = fmt.Errorf("%w: %w", transport.ErrClosed, cause)
	}
	c.end(err)
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	delete(c.listener.mu.conns, c)
}

type memAnswer struct {
	bytes []byte
	err   error
}

// Call implements transport.Conn. The caller and the handler never share memory.
func (c *memConn) Call(ctx context.Context, call transport.Call) ([]byte, error) {
	if len(call.Body) > transport.MaxBody {
		return nil, fmt.Errorf("request of %d bytes exceeds the limit of %d", len(call.Body), transport.MaxBody)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case c.slots <- struct{}{}:
	case <-c.ctx.Done():
		return nil, c.Err()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if c.ctx.Err() != nil { // select picks any ready case
		return nil, c.Err()
	}
	handlerCtx, cancel := context.WithCancel(c.ctx)
	answer := make(chan memAnswer, 1)
	request := transport.Request{Peer: c.dialer.ID, Host: c.dialer.Host, Method: call.Method, Body: append([]byte(nil), call.Body...)}
	if !c.listener.enter() {
		cancel()
		c.fail(errReset)
		return nil, c.Err()
	}
	go func() {
		defer c.listener.wg.Done()
		bytes, err := c.serve(handlerCtx, request)
		<-c.slots
		answer <- memAnswer{bytes, err}
	}()
	defer cancel()
	select {
	case a := <-answer:
		switch { // a handler whose context ends fails, and select picks any ready case
		case a.err != nil && c.ctx.Err() != nil:
			return nil, c.Err()
		case a.err != nil && ctx.Err() != nil:
			return nil, ctx.Err()
		}
		return land(call, a)
	case <-c.ctx.Done():
		return nil, c.Err()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// enter registers a handler, unless the listener is closed.
func (l *Listener) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed {
		return false
	}
	l.wg.Add(1)
	return true
}

func (c *memConn) serve(ctx context.Context, r transport.Request) ([]byte, error) {
	if c.dialer.ChainID == "" && !slices.Contains(c.listener.c.OpenMethods, r.Method) {
		return nil, errNoChain
	}
	return c.listener.c.Handler.Serve(ctx, r)
}

// land copies an answer into the caller's buffer.
func land(call transport.Call, a memAnswer) ([]byte, error) {
	if a.err != nil {
		for _, err := range []error{transport.ErrGone, transport.ErrBusy, transport.ErrRefused} {
			if errors.Is(a.err, err) {
				return nil, err
			}
		}
		return nil, transport.ErrFailed
	}
	into, limit := call.Into, len(call.Into)
	if into == nil {
		limit = max(call.Max, 0)
	}
	if len(a.bytes) > limit {
		return nil, fmt.Errorf("%w: %d bytes, the limit is %d", transport.ErrTooLong, len(a.bytes), limit)
	}
	if into == nil {
		into = make([]byte, len(a.bytes))
	}
	n := copy(into, a.bytes)
	if call.Received != nil {
		call.Received.Add(int64(n))
	}
	return into[:n], nil
}

// InMemory returns a Network as a Transport for Run and other tests.
func InMemory() Transport { return &memTransport{} }

type memTransport struct {
	Network
	ports struct {
		sync.Mutex
		last int
	}
}

func (m *memTransport) config(o Options) Config {
	return Config{ID: ID(o.Node), Host: "127.0.0.1", ChainID: o.ChainID, Handler: o.Handler, OpenMethods: o.OpenMethods, MaxCalls: o.MaxCalls}
}

// Listen implements Transport.
func (m *memTransport) Listen(tb testing.TB, o Options) Node {
	tb.Helper()
	m.ports.Lock()
	m.ports.last++
	hostPort := net.JoinHostPort("127.0.0.1", fmt.Sprint(m.ports.last))
	m.ports.Unlock()
	l, err := m.Network.Listen(hostPort, m.config(o))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(l.Close)
	return Node{l.Address(), l.Close}
}

// Dialer implements Transport.
func (m *memTransport) Dialer(_ testing.TB, o Options) transport.Dialer {
	return m.Network.Dialer(m.config(o))
}
