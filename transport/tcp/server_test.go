package tcp

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/cometbft/cometbft/p2p"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/spectest"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/transporttest"
)

// TestID compares with CometBFT.
func TestID(t *testing.T) {
	for n := range 5 {
		require.Equal(t, string(p2p.PubKeyToID(ed25519.PrivKey(keyOf(n)).PubKey())), string(transporttest.ID(n)))
	}
}

// TestSpecExample exchanges, with a server, the bytes in docs/spec/transport.md.
func TestSpecExample(t *testing.T) {
	status := protocol.Status{Base: 1, Height: 1205, Snapshots: []int64{1200}}
	s := newServer(t, 1, Options{Handler: transport.HandlerFunc(func(context.Context, transport.Request) ([]byte, error) {
		return status.Encode(), nil
	})})
	c := rawDial(t, connect(t, s), nil)
	var both bytes.Buffer
	to, from := io.MultiWriter(&both, c), io.TeeReader(c, &both)
	_, err := to.Write(helloHere)
	require.NoError(t, err)
	_, err = readHello(from)
	require.NoError(t, err)
	_, err = to.Write(append(appendHeader(nil, frameRequest, 1, 1), byte(protocol.MethodStatus)))
	require.NoError(t, err)
	br := bufio.NewReader(from)
	h, err := readHeader(br)
	require.NoError(t, err)
	_, err = io.CopyN(io.Discard, br, int64(h.n))
	require.NoError(t, err)
	spectest.Require(t, "transport.md", both.Bytes())
}

func TestOptions(t *testing.T) {
	_, err := Listen("127.0.0.1:0", Options{Key: keyOf(1), Handler: echo})
	require.ErrorContains(t, err, "chain id")
	_, err = Listen("127.0.0.1:0", Options{Key: keyOf(1)[:10], ChainID: chain, Handler: echo})
	require.ErrorContains(t, err, "key")
	_, err = Listen("127.0.0.1:0", Options{Key: keyOf(1), ChainID: chain + string(make([]byte, 50)), Handler: echo})
	require.ErrorContains(t, err, "longer than 50")
	_, err = NewDialer(Options{}).Dial(context.Background(), transport.Address{HostPort: "127.0.0.1:1"})
	require.ErrorContains(t, err, "key")
}

// TestIdle keeps a connection open for hours without calls.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		s := serve(t, p, 1, Options{})
		c := p.dial(t, 2, "10.0.0.1")
		<-time.After(5 * time.Hour)
		got, err := ask(c, "still there?")
		require.NoError(t, err)
		require.Equal(t, "still there?", got)
		s.Close()
		<-c.Done()
	})
}

// TestRates measures the caps: a burst is sent at once, the rest at the rate.
func TestRates(t *testing.T) {
	const rate, size = 1 << 20, 4 << 20
	for _, test := range []struct {
		name    string
		o       Options
		second  string // host of node 3, which fetches concurrently with node 2 on 10.0.0.2
		seconds int    // time for 8 MiB
	}{
		{"of all", Options{Rate: rate}, "10.0.0.3", 8},
		{"per host", Options{RatePerPeer: rate}, "10.0.0.3", 4},
		{"per host, two nodes", Options{RatePerPeer: rate}, "10.0.0.2", 8},
		{"both", Options{Rate: 2 * rate, RatePerPeer: rate}, "10.0.0.3", 4},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPipes()
				test.o.Handler = transport.HandlerFunc(func(context.Context, transport.Request) ([]byte, error) { return make([]byte, size), nil })
				s := serve(t, p, 1, test.o)
				began := time.Now()
				var wg sync.WaitGroup
				for i, host := range []string{"10.0.0.2", test.second} {
					c := p.dial(t, 2+i, host)
					wg.Go(func() {
						if _, err := ask(c, ""); err != nil {
							t.Error(err)
						}
					})
				}
				wg.Wait()
				burst := 300 * time.Millisecond
				require.InDelta(t, (time.Duration(test.seconds)*time.Second - burst/2).Seconds(), time.Since(began).Seconds(), burst.Seconds())
				s.Close()
			})
		})
	}
}

// TestWorkers lets many connections send requests at once: no more handlers run than there are
// workers.
func TestWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const workers = 3
		var running, most atomic.Int64
		release := make(chan struct{})
		p := newPipes()
		s := serve(t, p, 1, Options{Workers: workers, Handler: transport.HandlerFunc(func(context.Context, transport.Request) ([]byte, error) {
			if now := running.Add(1); now > most.Load() {
				most.Store(now)
			}
			defer running.Add(-1)
			<-release
			return nil, nil
		})})
		var wg sync.WaitGroup
		for n := range 5 {
			c := p.dial(t, 2+n, "10.0.0.1")
			for range 4 {
				wg.Go(func() {
					if _, err := ask(c, ""); err != nil {
						t.Error(err)
					}
				})
			}
		}
		synctest.Wait()
		require.Equal(t, int64(workers), running.Load())
		close(release)
		wg.Wait()
		require.Equal(t, int64(workers), most.Load())
		s.Close()
	})
}

// TestHooks counts the calls of hooks.
func TestHooks(t *testing.T) {
	var sent, received, served atomic.Int64
	o := Options{Hooks: Hooks{
		Sent:     func(n int) { sent.Add(int64(n)) },
		Received: func(n int) { received.Add(int64(n)) },
		Served: func(r transport.Request, n int, _ time.Duration, err error) {
			if r.Peer == transporttest.ID(2) && r.Method == someMethod && n == len(r.Body) && err == nil {
				served.Add(int64(n))
			}
		},
	}}
	s := newServer(t, 1, o)
	c := dial(t, newDialer(2, Options{ChainID: chain}), s)
	for range 10 {
		_, err := ask(c, fmt.Sprintf("%10000d", 1))
		require.NoError(t, err)
	}
	require.NoError(t, s.Close())
	require.Equal(t, int64(100_000), served.Load())
	require.Greater(t, sent.Load(), int64(100_000))
	require.Greater(t, received.Load(), int64(100_000))
	require.Less(t, sent.Load(), int64(110_000), "framing costs little")
}

func TestGate(t *testing.T) {
	o, err := Options{Key: keyOf(1), bounds: bounds{acceptRate: 2, maxPending: 100}}.withDefaults()
	require.NoError(t, err)
	a := newAdmission(&o)
	now := time.Now()
	knock := func(host string) error {
		k, err := a.knock(originOf(pipeAddr(host)), now, func() {})
		if err == nil {
			a.settled(k)
		}
		return err
	}
	for range 2*burstSeconds + 1 {
		require.NoError(t, knock("a"))
	}
	require.ErrorIs(t, knock("a"), ErrAcceptRate)
	require.NoError(t, knock("b"), "another host")
	now = now.Add(500 * time.Millisecond)
	require.NoError(t, knock("a"))
	require.ErrorIs(t, knock("a"), ErrAcceptRate)

	for i := range 2 * maxNets { // an attacker may use any number of hosts
		err := knock(fmt.Sprint(i))
		require.True(t, err == nil || i >= maxNets-2, i)
	}
	require.LessOrEqual(t, len(a.mu.nets), maxNets)
	now = now.Add(time.Hour)
	require.NoError(t, knock("new"))
	require.Less(t, len(a.mu.nets), 3, "hosts within their rates are forgotten")
}

// TestRateIsRemembered lets a host disconnect when it has used up its rate, and reconnect.
func TestRateIsRemembered(t *testing.T) {
	o, err := Options{Key: keyOf(1), RatePerPeer: 1 << 20}.withDefaults()
	require.NoError(t, err)
	a := newAdmission(&o)
	now := time.Now()
	come := func() *guest {
		k, err := a.knock(originOf(pipeAddr("10.0.0.1:1")), now, func() {})
		require.NoError(t, err)
		defer a.settled(k)
		g, err := a.pass(k, transporttest.ID(2), now, func() {})
		require.NoError(t, err)
		return g
	}
	g := come()
	g.sent.ReserveN(now, g.sent.Burst())
	a.leave(g)
	now = now.Add(time.Second / 16) // it may open as many connections again, but not send as much
	a.sweep(now)
	g = come()
	require.Less(t, g.sent.TokensAt(now), float64(g.sent.Burst()))
	a.leave(g)
	a.sweep(now.Add(time.Second))
	require.Empty(t, a.mu.nets)
}

func TestOrigin(t *testing.T) {
	for addr, want := range map[string]origin{
		"10.1.2.3:5":          {"10.1.2.3", []string{"10.1.2.3"}},
		"[::ffff:10.1.2.3]:5": {"10.1.2.3", []string{"10.1.2.3"}},
		"[2001:db8:1:2345:3:4:5:6]:77": {
			"2001:db8:1:2345:3:4:5:6", []string{"2001:db8:1::/48", "2001:db8:1:2300::/56", "2001:db8:1:2345::/64"},
		},
		"[fe80::1%eth0]:7": {"fe80::1%eth0", []string{"fe80::/48", "fe80::/56", "fe80::/64"}},
		"pipe":             {"pipe", []string{"pipe"}},
	} {
		require.Equal(t, want, originOf(pipeAddr(addr)))
	}
}

// TestOvertake sends a small answer while a large one is being sent: it waits only for the pieces
// already buffered.
func TestOvertake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		s := serve(t, p, 1, Options{Handler: transport.HandlerFunc(func(_ context.Context, r transport.Request) ([]byte, error) {
			if len(r.Body) == 0 {
				return make([]byte, 10<<20), nil
			}
			return r.Body, nil
		})})
		c := rawDial(t, p.raw(t, "10.0.0.1"), helloHere)
		c.Write(requestFrame(1, ""))
		synctest.Wait() // nobody reads, so the server is blocked by the first pieces
		c.Write(requestFrame(2, "small"))
		synctest.Wait()
		br := bufio.NewReader(c)
		for before := 0; ; {
			h, err := readHeader(br)
			require.NoError(t, err)
			if h.id == 2 {
				require.Equal(t, 8+len("small"), h.n) // total and answer
				require.LessOrEqual(t, before, 2*largeBuffer+maxPiece)
				break
			}
			before += h.n
			require.NoError(t, pass(br, h.n, nil))
		}
		s.Close()
	})
}
