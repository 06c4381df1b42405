package tcp

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"fmt"
	"io"
	"math/big"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/transport"
)

func TestGarbageBeforeTheHandshake(t *testing.T) {
	var o Options
	o.acceptRate = 1000
	e := watch(&o)
	s := newServer(t, 1, o)
	for _, garbage := range [][]byte{
		[]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		bytes.Repeat([]byte{0}, 10_000),
		bytes.Repeat([]byte{0xff}, 100_000),
		{22, 3, 1, 0xff, 0xff},                                    // a record that is too long
		append([]byte{22, 3, 1, 0x40, 0}, make([]byte, 1<<14)...), // a full one without contents
		helloHere,
		{},
	} {
		c := connect(t, s)
		c.Write(garbage)
		c.(*net.TCPConn).CloseWrite()
		require.Error(t, <-e.refused)
		c.Close()
	}
	requireServes(t, s)
}

// certificateOf signs a certificate with a key of any type.
func certificateOf(t *testing.T, key any, public any, extra int) tls.Certificate {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), Subject: pkix.Name{CommonName: strings.Repeat("x", extra)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, key)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// wrongCertificates are certificates that neither side accepts.
func wrongCertificates(t *testing.T) map[string]tls.Certificate {
	t.Helper()
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	rs, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	ed := keyOf(50)
	two := certificateOf(t, ed, ed.Public(), 0)
	two.Certificate = append(two.Certificate, two.Certificate[0])
	stolen := certificateOf(t, ed, ed.Public(), 0)
	stolen.PrivateKey = keyOf(51)
	return map[string]tls.Certificate{
		"ecdsa": certificateOf(t, ec, ec.Public(), 0), "rsa": certificateOf(t, rs, rs.Public(), 0), "two": two,
		"long": certificateOf(t, ed, ed.Public(), 1000), "huge": certificateOf(t, ed, ed.Public(), 20_000), "of another's key": stolen,
	}
}

func TestWrongCertificates(t *testing.T) {
	o := Options{bounds: bounds{acceptRate: 1000}}
	e := watch(&o)
	s := newServer(t, 1, o)
	certs := wrongCertificates(t)
	certs["none"] = tls.Certificate{}
	for name, cert := range certs {
		t.Run(name, func(t *testing.T) {
			raw := connect(t, s)
			c := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{cert}})
			err := c.Handshake()
			if err == nil { // a TLS 1.3 client finishes before the server has decided
				c.Write(helloHere)
				_, err = readHello(c)
			}
			require.Error(t, err, "it was admitted")
			require.Error(t, <-e.refused)
		})
	}
	t.Run("tls 1.2", func(t *testing.T) {
		c := tls.Client(connect(t, s), &tls.Config{
			InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12,
			Certificates: []tls.Certificate{certificateOf(t, keyOf(50), keyOf(50).Public(), 0)},
		})
		require.Error(t, c.Handshake())
		require.Error(t, <-e.refused)
	})
	requireServes(t, s)
}

func TestHostileHellos(t *testing.T) {
	o := Options{bounds: bounds{acceptRate: 1000}}
	e := watch(&o)
	s := newServer(t, 1, o)
	edit := func(at int, b ...byte) []byte {
		h := bytes.Clone(helloHere)
		copy(h[at:], b)
		return h
	}
	for name, test := range map[string]struct {
		hello []byte
		err   error
	}{
		"no magic":          {edit(0, 'S'), transport.ErrProtocol},
		"huge":              {edit(10, 0xff, 0xff), transport.ErrProtocol},
		"long chain id":     {hello{chainID: strings.Repeat("x", MaxChainID+1)}.encode(), transport.ErrProtocol},
		"lying length":      {edit(15, 200), transport.ErrProtocol},
		"no body":           {edit(10, 0, 0), transport.ErrProtocol},
		"status":            {edit(12, helloBusy), transport.ErrProtocol},
		"next version":      {edit(8, 0, 2), transport.ErrWrongVersion},
		"other chain":       {hello{chainID: "other"}.encode(), transport.ErrWrongChain},
		"cut short":         {helloHere[:14], io.EOF},
		"endless handshake": {append(edit(10, 1, 0), make([]byte, 40<<10)...), errHandshakeTooLong},
	} {
		t.Run(name, func(t *testing.T) {
			c := rawDial(t, connect(t, s), nil)
			c.Write(test.hello)
			c.CloseWrite()
			hangsUp(c)
			c.Close()
			err := <-e.refused
			if test.err != io.EOF { //nolint:errorlint // it names the case
				require.ErrorIs(t, err, test.err)
			}
		})
	}
	requireServes(t, s)
}

// TestVersionAndChain: the refusal arrives, in the hello.
func TestVersionAndChain(t *testing.T) {
	s := newServer(t, 1, Options{})
	for at, test := range map[int]struct {
		b    byte
		want hello
	}{
		9: {7, hello{version: version, status: helloWrongVersion, window: 16, chainID: chain}},
		// the last letter of the chain id
		len(helloHere) - 1: {'x', hello{version: version, status: helloWrongChain, window: 16, chainID: chain}},
	} {
		c := rawDial(t, connect(t, s), nil)
		h := bytes.Clone(helloHere)
		h[at] = test.b
		c.Write(h)
		got, err := readHello(c)
		require.NoError(t, err)
		require.Equal(t, test.want, got)
	}
}

func TestHostileFrames(t *testing.T) {
	const window = 4
	hang := transport.HandlerFunc(func(ctx context.Context, _ transport.Request) ([]byte, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	o := Options{bounds: bounds{acceptRate: 1000, maxCalls: window}, Handler: hang}
	e := watch(&o)
	s := newServer(t, 1, o)
	frame := func(kind byte, id uint64, claimed int) []byte { return appendHeader(nil, kind, id, claimed) }
	join := func(frames ...[]byte) []byte { return bytes.Join(frames, nil) }
	var flood, requests []byte
	for range 3 * idleFrames {
		flood = append(flood, frame(framePing, 0, 0)...)
	}
	for id := range uint64(window + 1) {
		requests = append(requests, requestFrame(1+id, "x")...)
	}
	var cancels []byte
	for range 3 * idleFrames {
		cancels = append(cancels, frame(frameCancel, 1, 0)...)
	}
	for name, bytes := range map[string][]byte{
		"type 0":                  frame(0, 0, 0),
		"type 8":                  frame(8, 0, 0),
		"type 255":                frame(255, 1<<63, 1<<31),
		"answer":                  join(frame(frameAnswer, 1, 8), make([]byte, 8)),
		"more":                    join(frame(frameMore, 1, 8), make([]byte, 8)),
		"error":                   join(frame(frameError, 1, 1), []byte{1}),
		"pong":                    frame(framePong, 0, 0),
		"request of nothing":      frame(frameRequest, 1, 0),
		"request too long":        frame(frameRequest, 1, transport.MaxBody+2),
		"request of 4 GiB":        frame(frameRequest, 1, 1<<32-1),
		"request 0":               requestFrame(0, "x"),
		"request twice":           join(requestFrame(1, "x"), requestFrame(1, "x")),
		"descending ids":          join(requestFrame(5, "x"), requestFrame(4, "x")),
		"cancel of what comes":    join(requestFrame(1, "x"), frame(frameCancel, 2, 0)),
		"cancel with a payload":   join(requestFrame(1, "x"), frame(frameCancel, 1, 1), []byte{0}),
		"more calls than allowed": requests,
		"flood of pings":          flood,
		"flood of cancels":        join(requestFrame(1, "x"), cancels),
	} {
		t.Run(name, func(t *testing.T) {
			c := rawDial(t, connect(t, s), helloHere)
			go func() {
				c.Write(bytes)
				c.CloseWrite() // a server that takes them for a beginning has nothing to wait for
			}()
			require.ErrorIs(t, <-e.closed, transport.ErrProtocol)
			require.Zero(t, s.unsent.held())
			require.Zero(t, s.bodies.held())
		})
	}
}

// TestThousandConnects opens connections that never send anything.
func TestThousandConnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const connects, pending = 1000, 10
		o := Options{bounds: bounds{acceptRate: 1e6, maxPending: pending}}
		e := watch(&o)
		p := newPipes()
		s := serve(t, p, 1, o)
		var conns []net.Conn
		for range connects {
			conns = append(conns, p.raw(t, "10.0.0.1"))
		}
		synctest.Wait()
		require.Len(t, e.refused, connects-pending/2, "half of the room is left for other hosts")
		for range connects - pending/2 {
			require.ErrorIs(t, <-e.refused, ErrTooManyPending)
		}
		for _, c := range conns {
			c.Close()
		}
		synctest.Wait()
		require.Len(t, e.refused, pending/2)
		_, err := ask(p.dial(t, 2, "10.0.0.1"), "x")
		require.NoError(t, err)
		s.Close()
	})
}

// TestHalfOpen lets a host keep its connections half open: this affects only that host, and only
// for a time.
func TestHalfOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := Options{bounds: bounds{maxPending: 4}}
		e := watch(&o)
		p := newPipes()
		s := serve(t, p, 1, o)
		for range 10 {
			p.raw(t, "10.0.0.1")
		}
		synctest.Wait()
		require.Len(t, e.refused, 8)
		p.dial(t, 2, "10.0.0.2") // another host gets in
		began := time.Now()
		for range 8 {
			<-e.refused
		}
		for range 2 {
			require.Error(t, <-e.refused)
		}
		require.Equal(t, s.o.firstTimeout, time.Since(began))
		p.dial(t, 2, "10.0.0.1")
		s.Close()
	})
}

// TestSlowHello: a peer authenticates and then sends nothing, or sends byte by byte.
func TestSlowHello(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o Options
		e := watch(&o)
		p := newPipes()
		s := serve(t, p, 1, o)
		c := rawDial(t, p.raw(t, "10.0.0.1"), nil)
		began := time.Now()
		written := make(chan struct{})
		go func() {
			defer close(written)
			for _, b := range helloHere {
				<-time.After(time.Second)
				c.Write([]byte{b})
			}
		}()
		require.Error(t, <-e.refused)
		require.Equal(t, s.o.handshakeTimeout, time.Since(began))
		s.Close()
		<-written
	})
}

// TestSilence: peers stop sending, or stop in the middle of a frame.
func TestSilence(t *testing.T) {
	for _, sent := range [][]byte{nil, {frameRequest}, requestFrame(1, "hello")[:15]} {
		synctest.Test(t, func(t *testing.T) {
			var o Options
			e := watch(&o)
			p := newPipes()
			s := serve(t, p, 1, o)
			c := rawDial(t, p.raw(t, "10.0.0.1"), helloHere)
			began := time.Now()
			c.Write(sent)
			require.Error(t, <-e.closed)
			require.Equal(t, s.o.idleTimeout, time.Since(began))
			s.Close()
		})
	}
}

// TestWithoutReading: a peer requests as much as it may and reads nothing.
func TestWithoutReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const window = 4
		var served atomic.Int64
		answer := make([]byte, 1<<20)
		o := Options{bounds: bounds{maxCalls: window}, Handler: transport.HandlerFunc(func(context.Context, transport.Request) ([]byte, error) {
			served.Add(1)
			return answer, nil
		})}
		e := watch(&o)
		p := newPipes()
		s := serve(t, p, 1, o)
		c := rawDial(t, p.raw(t, "10.0.0.1"), helloHere)
		began := time.Now()
		for id := range uint64(window) {
			c.Write(requestFrame(1+id, ""))
		}
		synctest.Wait()
		require.Equal(t, int64(window), served.Load())
		require.Greater(t, s.unsent.held(), int64(window-1)<<20)
		require.Error(t, <-e.closed)
		require.Equal(t, s.o.stallTimeout, time.Since(began))
		require.Zero(t, s.unsent.held())
		s.Close()
	})
}

// TestUnreadIsNotMade: for a peer that requests long answers and reads none, two answers are made,
// not as many as it may request.
func TestUnreadIsNotMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const window, length = 16, 1 << 20
		var served atomic.Int64
		answers := transport.HandlerFunc(func(context.Context, transport.Request) ([]byte, error) {
			served.Add(1)
			return make([]byte, length), nil
		})
		p := newPipes()
		s := serve(t, p, 1, Options{bounds: bounds{maxCalls: window}, Handler: transport.Weighed(answers, func(transport.Request) int64 { return length })})
		c := rawDial(t, p.raw(t, "10.0.0.1"), helloHere)
		for id := range uint64(window) {
			c.Write(requestFrame(1+id, ""))
		}
		synctest.Wait()
		require.EqualValues(t, maxBacklog/length, served.Swap(0))

		honest := p.dial(t, 3, "10.0.0.2")
		var calls sync.WaitGroup
		for range window {
			calls.Go(func() {
				got, err := ask(honest, "")
				require.NoError(t, err)
				require.Len(t, got, length)
			})
		}
		calls.Wait()
		require.EqualValues(t, window, served.Load())
		s.Close()
	})
}

// TestTooMuchUnsent lets one peer fill the memory for answers: others are still served, one answer
// at a time.
func TestTooMuchUnsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make([]byte, 1<<20)
		p := newPipes()
		s := serve(t, p, 1, Options{bounds: bounds{maxUnsent: 1 << 19}, Handler: transport.HandlerFunc(func(context.Context, transport.Request) ([]byte, error) {
			return answer, nil
		})})
		c := rawDial(t, p.raw(t, "10.0.0.1"), helloHere)
		c.Write(requestFrame(1, ""))
		synctest.Wait() // the answer is ready
		c.Write(requestFrame(2, ""))
		got, err := ask(p.dial(t, 3, "10.0.0.2"), "")
		require.NoError(t, err)
		require.Len(t, got, len(answer))
		synctest.Wait()
		codes := make(map[uint64]byte)
		for len(codes) < 1 {
			var head [frameHeader]byte
			_, err := io.ReadFull(c, head[:])
			require.NoError(t, err)
			payload := make([]byte, binary.BigEndian.Uint32(head[9:]))
			_, err = io.ReadFull(c, payload)
			require.NoError(t, err)
			if head[0] == frameError {
				codes[binary.BigEndian.Uint64(head[1:])] = payload[0]
			}
		}
		require.Equal(t, map[uint64]byte{2: codeBusy}, codes)
		s.Close()
	})
}

// TestTooManyBodies lets a host send bodies above its share, which is a fifth while it is alone.
func TestTooManyBodies(t *testing.T) {
	s := newServer(t, 1, Options{bounds: bounds{maxBodies: 500_000}})
	c := dial(t, newDialer(2, Options{ChainID: chain}), s)
	for range 3 {
		_, err := ask(c, strings.Repeat("x", 100_001))
		require.ErrorIs(t, err, transport.ErrBusy)
		for _, n := range []int{100_000, 0, shortBody, shortBody + 1} {
			got, err := ask(c, strings.Repeat("x", n))
			require.NoError(t, err)
			require.Len(t, got, n)
		}
	}
}

func TestTooManyConns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := Options{MaxConns: 3, MaxConnsPerHost: 2}
		e := watch(&o)
		p := newPipes()
		s := serve(t, p, 1, o)
		refused := func(host string) {
			t.Helper()
			_, err := newDialer(9, Options{ChainID: chain, Connect: p.from(host)}).Dial(context.Background(), transport.Address{HostPort: "pipe:1"})
			require.ErrorIs(t, err, transport.ErrBusy)
			require.ErrorIs(t, <-e.refused, ErrTooManyConns)
		}
		first := p.dial(t, 2, "10.0.0.1")
		p.dial(t, 3, "10.0.0.1")
		refused("10.0.0.1")
		synctest.Wait() // otherwise the server may still be about to admit it
		first.Close()
		synctest.Wait()
		p.dial(t, 4, "10.0.0.1")
		p.dial(t, 2, "10.0.0.2")
		refused("10.0.0.2") // 10.0.0.1 has only one more, not two
		s.Close()
	})
}

// TestCrowding lets one host take all slots: its connections are closed one by one to make room for
// others, until all hosts have equally many.
func TestCrowding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		s := serve(t, p, 1, Options{MaxConns: 4})
		var greedy []*Conn
		for n := range 4 {
			greedy = append(greedy, p.dial(t, 10+n, "10.0.0.1"))
		}
		var honest []*Conn
		for n := range 3 {
			honest = append(honest, p.dial(t, 20+n, fmt.Sprintf("10.0.1.%d", n)))
			synctest.Wait()
			require.ErrorIs(t, greedy[3-n].Err(), transport.ErrClosed, "the newest is closed")
			require.NoError(t, greedy[2-n].Err())
			require.Len(t, s.admission.mu.guests.in, 4)
		}
		_, err := newDialer(9, Options{ChainID: chain, Connect: p.from("10.0.2.1")}).Dial(context.Background(), transport.Address{HostPort: "pipe:1"})
		require.ErrorIs(t, err, transport.ErrBusy)
		for _, c := range honest {
			_, err := ask(c, "x")
			require.NoError(t, err)
		}
		s.Close()
		require.Empty(t, s.admission.mu.guests.in)
		require.Empty(t, s.admission.mu.guests.of)
	})
}
