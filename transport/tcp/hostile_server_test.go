package tcp

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/transport"
)

// play serves one connection on loopback with a script, and returns the address.
func play(t *testing.T, cert *tls.Certificate, script func(c *tls.Conn)) transport.Address {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan struct{})
	t.Cleanup(func() {
		l.Close()
		<-ended
	})
	cfg := tlsOf(t, 50)
	if cert != nil {
		cfg.Certificates = []tls.Certificate{*cert}
	}
	go func() {
		defer close(ended)
		raw, err := l.Accept()
		if err != nil {
			return
		}
		defer raw.Close()
		if c := tls.Server(raw, cfg); c.Handshake() == nil {
			script(c)
		}
	}()
	return transport.Address{HostPort: l.Addr().String()}
}

func TestWrongServers(t *testing.T) {
	d := newDialer(2, Options{ChainID: chain})
	for name, cert := range wrongCertificates(t) {
		t.Run(name, func(t *testing.T) {
			_, err := d.Dial(context.Background(), play(t, &cert, func(*tls.Conn) {}))
			require.Error(t, err)
		})
	}
	good := hello{window: 1, chainID: chain}
	with := func(edit func(*hello)) []byte {
		h := good
		edit(&h)
		return h.encode()
	}
	raw := func(at int, b ...byte) []byte {
		h := good.encode()
		copy(h[at:], b)
		return h
	}
	for name, test := range map[string]struct {
		hello []byte
		err   error
	}{
		"nothing":       {nil, io.EOF},
		"cut short":     {good.encode()[:10], io.ErrUnexpectedEOF},
		"no magic":      {raw(0, 'S'), transport.ErrProtocol},
		"endless":       {append(raw(10, 0xff, 0xff), make([]byte, 1<<20)...), errHandshakeTooLong},
		"version":       {raw(8, 9, 9), transport.ErrWrongVersion},
		"wrong version": {with(func(h *hello) { h.status = helloWrongVersion }), transport.ErrWrongVersion},
		"wrong chain":   {with(func(h *hello) { h.status = helloWrongChain }), transport.ErrWrongChain},
		"another chain": {with(func(h *hello) { h.chainID = "other" }), transport.ErrWrongChain},
		"no chain":      {with(func(h *hello) { h.chainID = "" }), transport.ErrWrongChain},
		"busy":          {with(func(h *hello) { h.status = helloBusy }), transport.ErrBusy},
		"status":        {with(func(h *hello) { h.status = 9 }), transport.ErrProtocol},
		"no window":     {with(func(h *hello) { h.window = 0 }), transport.ErrProtocol},
		"wide window":   {with(func(h *hello) { h.window = maxWindow + 1 }), transport.ErrProtocol},
		"long chain":    {with(func(h *hello) { h.chainID = strings.Repeat("x", MaxChainID+1) }), transport.ErrProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := d.Dial(context.Background(), play(t, nil, func(c *tls.Conn) {
				readHello(c)
				c.Write(test.hello)
				c.CloseWrite()
				hangsUp(c)
			}))
			require.ErrorIs(t, err, test.err)
		})
	}
}

// answering dials a server that greets, waits for one request and then calls play_.
func answering(t *testing.T, play_ func(c *tls.Conn)) *Conn {
	t.Helper()
	a := play(t, nil, func(c *tls.Conn) {
		readHello(c)
		c.Write(hello{window: 4, chainID: chain}.encode())
		if _, err := io.ReadFull(c, make([]byte, frameHeader+1)); err == nil {
			play_(c)
		}
		hangsUp(c)
	})
	c, err := newDialer(2, Options{ChainID: chain}).Dial(context.Background(), a)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c.(*Conn)
}

func start(id uint64, total, n int) []byte {
	return append(appendStart(nil, id, total, n), make([]byte, n)...)
}

func more(id uint64, n int) []byte {
	return append(appendHeader(nil, frameMore, id, n), make([]byte, n)...)
}

func fail(id uint64, code byte) []byte { return append(appendHeader(nil, frameError, id, 1), code) }

func TestHostileAnswers(t *testing.T) {
	join := func(frames ...[]byte) []byte { return bytes.Join(frames, nil) }
	huge := appendHeader(nil, frameAnswer, 1, 8)
	for name, answer := range map[string][]byte{
		"unasked":               start(2, 1, 1),
		"unasked error":         fail(7, codeGone),
		"more first":            more(1, 1),
		"two starts":            join(start(1, 10, 5), start(1, 10, 5)),
		"another total":         join(start(1, 10, 5), start(1, 11, 5)),
		"more than the total":   join(start(1, 10, 5), more(1, 6)),
		"more at the start":     start(1, 10, 11),
		"after the end":         join(start(1, 10, 10), more(1, 1)),
		"two errors":            join(fail(1, codeGone), fail(1, codeGone)),
		"total of 2^63":         binary.BigEndian.AppendUint64(huge, 1<<63),
		"unknown error":         fail(1, 77),
		"error 0":               fail(1, 0),
		"cancelled by itself":   fail(1, codeCancelled),
		"error in an answer":    join(start(1, 10, 5), fail(1, codeGone)),
		"piece too long":        appendHeader(nil, frameMore, 1, maxPiece+1),
		"first piece too long":  appendHeader(nil, frameAnswer, 1, 8+maxPiece+1),
		"piece without a total": appendHeader(nil, frameAnswer, 1, 7),
		"piece of nothing":      join(start(1, 10, 5), more(1, 0)),
		"request":               requestFrame(1, "x"),
		"ping":                  appendHeader(nil, framePing, 0, 0),
		"cancel":                appendHeader(nil, frameCancel, 1, 0),
		"unknown type":          appendHeader(nil, 99, 1, 0),
		"pong without a ping":   appendHeader(nil, framePong, 0, 0),
		"pong with a payload":   append(appendHeader(nil, framePong, 0, 1), 0),
		"zeros":                 make([]byte, 100),
		"written, and no slot":  written(1, 10),
		"lost, and no path":     appendHeader(nil, frameLost, 0, 0),
	} {
		t.Run(name, func(t *testing.T) {
			c := answering(t, func(c *tls.Conn) {
				c.Write(answer)
				c.CloseWrite() // so that a client does not wait for the rest of a frame
			})
			into := make([]byte, 10)
			got, err := c.Call(context.Background(), transport.Call{Method: someMethod, Into: into})
			if name == "after the end" || name == "two errors" {
				require.True(t, err != nil || len(got) == len(into))
			} else {
				require.ErrorIs(t, err, transport.ErrProtocol)
				require.ErrorIs(t, err, transport.ErrClosed)
			}
			<-c.Done()
			require.ErrorIs(t, c.Err(), transport.ErrProtocol)
		})
	}
}

// TestCutOff lets the network fail in the middle: this is not a protocol violation.
func TestCutOff(t *testing.T) {
	whole := append(start(1, 10, 5), more(1, 5)...)
	for n := range len(whole) {
		c := answering(t, func(c *tls.Conn) {
			c.Write(whole[:n])
			c.Close()
		})
		_, err := c.Call(context.Background(), transport.Call{Method: someMethod, Into: make([]byte, 10)})
		require.ErrorIs(t, err, transport.ErrClosed)
		require.NotErrorIs(t, err, transport.ErrProtocol)
	}
}

// TestEndlessAnswer: a server does not end an oversized answer although the call is canceled.
func TestEndlessAnswer(t *testing.T) {
	sent := make(chan int, 1)
	c := answering(t, func(c *tls.Conn) {
		n := 0
		_, err := c.Write(start(1, 1<<62, maxPiece))
		for piece := more(1, maxPiece); err == nil; n++ {
			_, err = c.Write(piece)
		}
		sent <- n
	})
	_, err := c.Call(context.Background(), transport.Call{Method: someMethod, Max: 100})
	require.ErrorIs(t, err, transport.ErrTooLong)
	require.NotErrorIs(t, err, transport.ErrClosed)
	<-c.Done()
	require.ErrorIs(t, c.Err(), transport.ErrProtocol)
	require.GreaterOrEqual(t, <-sent, maxSkip/maxPiece-1)
}

// TestLateAnswers: answers to canceled calls still arrive. They are skipped, and settle their ids.
func TestLateAnswers(t *testing.T) {
	requested, cancelled := make(chan struct{}), make(chan struct{})
	c := answering(t, func(c *tls.Conn) {
		close(requested)
		var head [frameHeader]byte
		io.ReadFull(c, head[:])
		if head[0] != frameCancel {
			return
		}
		close(cancelled)
		c.Write(append(start(1, 1<<20, 100), more(1, maxPiece)...))
		c.Write(fail(1, codeCancelled))
		io.ReadFull(c, make([]byte, frameHeader+1)) // the next call
		c.Write(start(2, 3, 3))
	})
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error)
	into := bytes.Repeat([]byte{1}, 1<<20)
	go func() {
		_, err := c.Call(ctx, transport.Call{Method: someMethod, Into: into})
		result <- err
	}()
	<-requested
	cancel()
	require.ErrorIs(t, <-result, context.Canceled)
	<-cancelled
	got, err := ask(c, "")
	require.NoError(t, err)
	require.Len(t, got, 3)
	require.Equal(t, bytes.Repeat([]byte{1}, 1<<20), into)
	require.Empty(t, c.mu.answers)
	require.Empty(t, c.slots)
}

// TestGrowth: the transport allocates memory as bytes arrive, regardless of the announced length.
func TestGrowth(t *testing.T) {
	a := newAnswer(transport.Call{Max: 1 << 40})
	require.False(t, a.start(1<<40))
	for got := 0; got < 1<<20; {
		a.take(make([]byte, 1000))
		got += 1000
		require.LessOrEqual(t, cap(a.mu.into), max(2*got, 16<<10))
	}
}

// TestAbandonedBuffers: a server settles no call, not even canceled ones. No memory of the callers
// stays in use.
func TestAbandonedBuffers(t *testing.T) {
	c := answering(t, func(c *tls.Conn) { c.Write(start(1, 100, 50)) })
	for id := range uint64(4) {
		ctx, cancel := context.WithCancel(context.Background())
		call := transport.Call{Method: someMethod, Into: make([]byte, 1<<20), Received: new(atomic.Int64)}
		if id%2 == 1 {
			call.Into, call.Max = nil, 1<<20
		}
		result := make(chan error)
		go func() {
			_, err := c.Call(ctx, call)
			result <- err
		}()
		require.Eventually(t, func() bool { return c.open(1+id) != nil }, patience, time.Millisecond)
		if id == 0 {
			require.Eventually(t, func() bool { return call.Received.Load() == 50 }, patience, time.Millisecond)
		}
		cancel()
		require.ErrorIs(t, <-result, context.Canceled)
		a := c.open(1 + id)
		a.mu.Lock()
		into := a.mu.into
		a.mu.Unlock()
		require.Nil(t, into)
	}
}

// TestPongs: a server answers a ping twice.
func TestPongs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for pongs := range 3 {
			here, there := net.Pipe()
			go func() {
				defer there.Close()
				c := tls.Server(there, tlsOf(t, 50))
				c.Handshake()
				readHello(c)
				c.Write(hello{window: 1, chainID: chain}.encode())
				if _, err := io.ReadFull(c, make([]byte, frameHeader)); err != nil {
					t.Error(err)
				}
				for range pongs {
					c.Write(appendHeader(nil, framePong, 0, 0))
				}
			}()
			d := newDialer(2, Options{ChainID: chain, Connect: func(context.Context, string) (net.Conn, error) { return here, nil }})
			c, err := d.Dial(context.Background(), transport.Address{HostPort: "pipe:1"})
			require.NoError(t, err)
			<-c.Done()
			require.Equal(t, pongs == 2, errors.Is(c.Err(), transport.ErrProtocol), c.Err())
		}
	})
}

// TestSilentServer: a server stops sending. Pings detect it.
func TestSilentServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		greeted := make(chan error, 1)
		go func() {
			c := tls.Server(there, tlsOf(t, 50))
			c.Handshake()
			readHello(c)
			_, err := c.Write(hello{window: 1, chainID: chain}.encode())
			greeted <- err
			hangsUp(c)
		}()
		d := newDialer(2, Options{ChainID: chain, Connect: func(context.Context, string) (net.Conn, error) { return here, nil }})
		c, err := d.Dial(context.Background(), transport.Address{HostPort: "pipe:1"})
		require.NoError(t, err)
		require.NoError(t, <-greeted)
		began := time.Now()
		_, err = ask(c, "x")
		require.ErrorIs(t, err, transport.ErrClosed)
		require.Equal(t, time.Minute, time.Since(began))
	})
}

// TestSlowServer: a server is slow to authenticate.
func TestSlowServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		defer there.Close()
		go hangsUp(there)
		d := newDialer(2, Options{ChainID: chain, Connect: func(context.Context, string) (net.Conn, error) { return here, nil }})
		began := time.Now()
		_, err := d.Dial(context.Background(), transport.Address{HostPort: "pipe:1"})
		require.True(t, errors.Is(err, context.DeadlineExceeded), err)
		require.Equal(t, 10*time.Second, time.Since(began))
	})
}
