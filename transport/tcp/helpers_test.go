package tcp

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/transporttest"
)

// someMethod is the method that the tests call. Its number has no meaning here.
const someMethod transport.Method = 4

const chain = "chain"

// patience replaces the timeouts over sockets, so that they decide no test. Tests of timeouts run
// in virtual time.
const patience = 5 * time.Minute

func keyOf(n int) ed25519.PrivateKey { return transporttest.Key(n) }

// newServer serves on loopback as node n until the test ends.
func newServer(tb testing.TB, n int, o Options) *Server {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	set(&o.handshakeTimeout, patience)
	set(&o.firstTimeout, patience)
	set(&o.stallTimeout, patience)
	return serve(tb, l, n, o)
}

func serve(tb testing.TB, l net.Listener, n int, o Options) *Server {
	tb.Helper()
	o.Key = keyOf(n)
	o.ChainID = chain
	if o.Handler == nil {
		o.Handler = echo
	}
	s, err := Serve(l, o)
	require.NoError(tb, err)
	tb.Cleanup(func() { s.Close() })
	return s
}

// newDialer dials as node n. Options.ChainID is used as given: see chain.
func newDialer(n int, o Options) transport.Dialer {
	o.Key = keyOf(n)
	if o.Connect == nil {
		set(&o.handshakeTimeout, patience)
	}
	return NewDialer(o)
}

// dial connects to a server until the test ends.
func dial(tb testing.TB, d transport.Dialer, s *Server) *Conn {
	tb.Helper()
	c, err := d.Dial(context.Background(), transport.Address{HostPort: s.Addr().String()})
	require.NoError(tb, err)
	tb.Cleanup(func() { c.Close() })
	return c.(*Conn)
}

// echo answers with the body of the request.
var echo = transport.HandlerFunc(func(_ context.Context, r transport.Request) ([]byte, error) { return r.Body, nil })

func ask(c transport.Conn, body string) (string, error) {
	got, err := c.Call(context.Background(), transport.Call{Method: someMethod, Body: []byte(body), Max: 1 << 30})
	return string(got), err
}

// requireServes requires that an honest node is served.
func requireServes(t *testing.T, s *Server) {
	t.Helper()
	got, err := ask(dial(t, newDialer(99, Options{ChainID: chain}), s), "hello")
	require.NoError(t, err)
	require.Equal(t, "hello", got)
}

// events collects the calls of hooks.
type events struct{ refused, closed chan error }

func watch(o *Options) events {
	e := events{make(chan error, 10_000), make(chan error, 10_000)}
	o.Hooks.Refused = func(_ string, why error) { e.refused <- why }
	o.Hooks.Closed = func(_ transport.ID, _ string, why error) { e.closed <- why }
	return e
}

// newGuest returns an admitted connection from a host.
func newGuest(host string) *guest {
	return &guest{member: member{from: originOf(pipeAddr(host))}}
}

// tlsOf returns a TLS configuration of node n that accepts every peer.
func tlsOf(tb testing.TB, n int) *tls.Config {
	tb.Helper()
	c, err := config(keyOf(n), func(transport.ID) error { return nil })
	require.NoError(tb, err)
	return c
}

// rawDial connects to a server without a Conn, and sends the hello h unless it is nil.
func rawDial(tb testing.TB, raw net.Conn, h []byte) *tls.Conn {
	tb.Helper()
	c := tls.Client(raw, tlsOf(tb, 50))
	tb.Cleanup(func() { raw.Close() })
	require.NoError(tb, c.Handshake())
	if h == nil {
		return c
	}
	_, err := c.Write(h)
	require.NoError(tb, err)
	got, err := readHello(c)
	require.NoError(tb, err)
	require.Equal(tb, byte(helloOK), got.status)
	return c
}

func connect(tb testing.TB, s *Server) net.Conn {
	tb.Helper()
	c, err := net.Dial("tcp", s.Addr().String())
	require.NoError(tb, err)
	tb.Cleanup(func() { c.Close() })
	return c
}

var helloHere = hello{chainID: chain}.encode()

// requestFrame returns a request for the echo of body.
func requestFrame(id uint64, body string) []byte {
	b := appendHeader(nil, frameRequest, id, 1+len(body))
	return append(append(b, byte(someMethod)), body...)
}

// pipes is a network without sockets, as required by testing/synctest. It does not buffer.
type pipes struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

type pipeAddr string

func (pipeAddr) Network() string  { return "pipe" }
func (a pipeAddr) String() string { return string(a) }

type pipeConn struct {
	net.Conn
	remote pipeAddr
}

func (c pipeConn) RemoteAddr() net.Addr { return c.remote }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return pipeAddr("pipe:1") }

// from returns a connect function for dialers on a host.
func (p *pipes) from(host string) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, _ string) (net.Conn, error) {
		here, there := net.Pipe()
		select {
		case p.conns <- pipeConn{there, pipeAddr(net.JoinHostPort(host, "1"))}:
			return here, nil
		case <-p.closed:
			return nil, errors.New("connection refused")
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (p *pipes) dial(tb testing.TB, n int, host string) *Conn {
	tb.Helper()
	c, err := newDialer(n, Options{ChainID: chain, Connect: p.from(host)}).Dial(context.Background(), transport.Address{HostPort: "pipe:1"})
	require.NoError(tb, err)
	tb.Cleanup(func() { c.Close() })
	return c.(*Conn)
}

func (p *pipes) raw(tb testing.TB, host string) net.Conn {
	tb.Helper()
	c, err := p.from(host)(context.Background(), "")
	require.NoError(tb, err)
	tb.Cleanup(func() { c.Close() })
	return c
}

// hangsUp reads until the other side closes.
func hangsUp(c io.Reader) error {
	n, err := io.Copy(io.Discard, c)
	return fmt.Errorf("after %d bytes: %w", n, err)
}
