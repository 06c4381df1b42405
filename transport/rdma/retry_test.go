package rdma

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/bubble"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/rdma/internal/verbs"
	"github.com/starling-kv/starling/transport/rdma/internal/verbs/verbstest"
	"github.com/starling-kv/starling/transport/tcp"
	"github.com/starling-kv/starling/transport/transporttest"
)

// pipes is a listener without sockets, as required by testing/synctest.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	close(p.closed)
	return nil
}

func (p *pipes) Addr() net.Addr { return addr(addrs[1]) }

// pipeConn is an end of a pipe, with addresses.
type pipeConn struct {
	net.Conn
	addrs [2]netip.Addr // local, remote
}

func (c pipeConn) LocalAddr() net.Addr  { return addr(c.addrs[0]) }
func (c pipeConn) RemoteAddr() net.Addr { return hostPort(c.addrs[1].String() + ":1") }

type hostPort string

func (hostPort) Network() string  { return "pipe" }
func (h hostPort) String() string { return string(h) }

// virtual runs a test with a connection in virtual time.
func virtual(t *testing.T, options func(*Options), test func(*testing.T, transport.Conn, *verbstest.Fabric)) {
	synctest.Test(t, func(t *testing.T) {
		memory := new(verbstest.Fabric)
		fabric := func() *Fabric {
			o := Options{Allowed: everybody}
			o.open, o.addr, o.units = memory.Open, memoryAddr, 8
			if options != nil {
				options(&o)
			}
			f := New(o)
			t.Cleanup(func() { require.NoError(t, f.Close()) })
			return f
		}
		p := &pipes{make(chan net.Conn), make(chan struct{})}
		s, err := tcp.Serve(p, tcp.Options{
			Key: transporttest.Key(1), ChainID: chain, Handler: transport.HandlerFunc(echo), Sides: fabric(),
		})
		require.NoError(t, err)
		t.Cleanup(func() { s.Close() })
		conn, err := tcp.NewDialer(tcp.Options{
			Key: transporttest.Key(2), ChainID: chain, Sides: fabric(), Connect: func(context.Context, string) (net.Conn, error) {
				here, there := net.Pipe()
				p.conns <- pipeConn{there, [2]netip.Addr{addrs[1], addrs[0]}}
				return pipeConn{here, addrs}, nil
			},
		}).Dial(t.Context(), transport.Address{HostPort: "pipe:1"})
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		synctest.Wait()
		test(t, conn, memory)
	})
}

// TestRetries: a path is proposed again after one minute, then after two, and later at least every
// hour.
func TestRetries(t *testing.T) {
	var tries atomic.Int64
	virtual(t, func(o *Options) {
		o.open = func(netip.Addr, int) (verbs.Device, error) {
			tries.Add(1)
			return nil, verbs.ErrNoDevice
		}
	}, func(t *testing.T, conn transport.Conn, _ *verbstest.Fabric) {
		require.Equal(t, int64(1), tries.Load())
		wait := time.Minute
		for n := int64(1); n < 10; n++ {
			bubble.Sleep(wait - time.Second)
			synctest.Wait()
			require.Equal(t, n, tries.Load())
			bubble.Sleep(time.Second)
			synctest.Wait()
			require.Equal(t, n+1, tries.Load())
			wait = min(2*wait, time.Hour)
		}
		require.NoError(t, conn.Err())
	})
}

// TestPathReturns: after a cut, calls continue over TLS; after a minute they bypass it again.
func TestPathReturns(t *testing.T) {
	var received atomic.Int64
	virtual(t, func(o *Options) {
		o.Hooks.Received = func(_ transport.ID, n int) { received.Add(int64(n)) }
	}, func(t *testing.T, conn transport.Conn, memory *verbstest.Fabric) {
		requireAnswers(t, conn, 100_000)
		synctest.Wait() // a hook may run after the answer has arrived
		require.Equal(t, int64(200_000), received.Load(), "body and answer")
		memory.Cut(true)
		began := time.Now()
		requireAnswers(t, conn, 100_000)
		require.Less(t, time.Since(began), 2*time.Second, "the device gives up after half a second")
		memory.Cut(false)
		requireAnswers(t, conn, 100_000)
		synctest.Wait()
		require.Equal(t, int64(200_000), received.Load(), "body and answer")
		bubble.Sleep(61 * time.Second)
		synctest.Wait()
		requireAnswers(t, conn, 100_000)
		synctest.Wait()
		require.Equal(t, int64(400_000), received.Load())
	})
}

// TestServerOfPathStalls: nobody receives any more. The server's device gives up.
func TestServerOfPathStalls(t *testing.T) {
	virtual(t, func(o *Options) { o.stall = 100 * time.Millisecond }, func(t *testing.T, conn transport.Conn, memory *verbstest.Fabric) {
		memory.Fail(verbstest.Faults{Delay: time.Hour})
		began := time.Now()
		requireAnswers(t, conn, 100_000)
		require.Less(t, time.Since(began), time.Second)
	})
}
