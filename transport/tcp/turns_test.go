package tcp

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/transport"
)

const cheapMethod transport.Method = 1

// flood keeps as many calls under way on a connection as allowed, until it is closed.
func flood(c *Conn, method transport.Method, body string) {
	for range cap(c.slots) {
		go func() {
			for {
				if _, err := c.Call(context.Background(), transport.Call{Method: method, Body: []byte(body), Max: 1 << 30}); err != nil {
					return
				}
			}
		}()
	}
}

// sleeping is a handler that takes as long as the body specifies.
var sleeping = transport.HandlerFunc(func(_ context.Context, r transport.Request) ([]byte, error) {
	d, err := time.ParseDuration(string(r.Body))
	<-time.NewTimer(d).C
	return nil, err
})

// TestHostsTakeTurns lets six hosts send as many requests as they may, on as many connections. A
// host with one request waits for the running requests and one of each host, and its cheap request
// does not wait behind costly ones.
func TestHostsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		s := serve(t, p, 1, Options{Workers: 2, Handler: sleeping, Lanes: []Lane{{[]transport.Method{cheapMethod}, 1}}})
		for n := range 6 {
			for conn := range 4 {
				c := p.dial(t, 10+n, fmt.Sprintf("10.0.0.%d", n))
				method, body := someMethod, "10ms"
				if conn == 0 {
					method, body = cheapMethod, "1ms"
				}
				flood(c, method, body)
			}
		}
		<-time.After(time.Second)
		honest := p.dial(t, 2, "10.1.0.1")
		for range 50 {
			for method, most := range map[transport.Method]time.Duration{someMethod: 50 * time.Millisecond, cheapMethod: 8 * time.Millisecond} {
				body := map[transport.Method]string{someMethod: "10ms", cheapMethod: "1ms"}[method]
				ctx, cancel := context.WithTimeout(context.Background(), most)
				_, err := honest.Call(ctx, transport.Call{Method: method, Body: []byte(body)})
				cancel()
				require.NoError(t, err, "method %d", method)
			}
		}
		s.Close()
	})
}

// TestTurnsAreOfWork lets six hosts send requests a hundred times as costly as those of an honest
// host. The honest host gets its seventh of the work, which is most of the requests.
func TestTurnsAreOfWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		var served atomic.Int64
		s := serve(t, p, 1, Options{Workers: 1, Handler: transport.HandlerFunc(func(ctx context.Context, r transport.Request) ([]byte, error) {
			if r.Host == "10.1.0.1" {
				served.Add(1)
			}
			return sleeping(ctx, r)
		})})
		for n := range 6 {
			flood(p.dial(t, 10+n, fmt.Sprintf("10.0.0.%d", n)), someMethod, "300ms")
		}
		flood(p.dial(t, 2, "10.1.0.1"), someMethod, "3ms")
		<-time.After(10 * time.Second)
		before := served.Load()
		<-time.After(100 * time.Second)
		require.Greater(t, served.Load()-before, int64(3000), "4,761 requests take a seventh of 100 s")
		s.Close()
	})
}

// TestWeightIsWork lets two hosts send requests of equal duration, but the weights of one host's
// requests are so large that they use ten times as much.
func TestWeightIsWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var light, heavy atomic.Int64
		mux := new(transport.Mux)
		mux.Handle(someMethod, transport.Weighed(transport.HandlerFunc(func(_ context.Context, r transport.Request) ([]byte, error) {
			if <-time.After(time.Millisecond); len(r.Body) > 0 {
				heavy.Add(1)
			} else {
				light.Add(1)
			}
			return nil, nil
		}), func(r transport.Request) int64 { return int64(len(r.Body)) * leastWork }))
		p := newPipes()
		s := serve(t, p, 1, Options{Workers: 1, Handler: mux})
		flood(p.dial(t, 2, "10.0.0.1"), someMethod, "")
		flood(p.dial(t, 3, "10.0.0.2"), someMethod, string(make([]byte, 22)))
		<-time.After(10 * time.Second)
		require.InDelta(t, 10, float64(light.Load())/float64(heavy.Load()), 1)
		s.Close()
	})
}

// TestTurnsAreNotSavedUp lets a host run one long request while another runs many short ones. When
// it sends more, it gets no more turns than the other.
func TestTurnsAreNotSavedUp(t *testing.T) {
	turns := newTurns(2, 1)
	a, b := originOf(pipeAddr("10.0.0.1:1")), originOf(pipeAddr("10.0.0.2:1"))
	long := turns.join(a, 1)
	for range 100 {
		turns.done(turns.join(b, 2), 9)
	}
	last := turns.join(b, 2)
	var waiting []*turn // of a and b
	for range 10 {
		waiting = append(waiting, turns.join(a, 1), turns.join(b, 2))
	}
	count := [2]int{}
	for next := last; count[0]+count[1] < 10; {
		turns.done(next, 9)
		for i, r := range waiting {
			if r == nil {
				continue
			}
			select {
			case <-r.begun:
				next, waiting[i] = r, nil
				count[i%2]++
			default:
			}
		}
	}
	require.InDelta(t, count[0], count[1], 2)
	turns.done(long, 0)
}

// TestNetworksTakeTurns lets an IPv6 /48 flood a server from many hosts: they count as one part.
func TestNetworksTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var served, honest atomic.Int64
		p := newPipes()
		s := serve(t, p, 1, Options{Workers: 1, Handler: transport.HandlerFunc(func(_ context.Context, r transport.Request) ([]byte, error) {
			if served.Add(1); r.Host == "10.1.0.1" {
				honest.Add(1)
			}
			<-time.After(time.Millisecond)
			return nil, nil
		})})
		for n := range 60 {
			flood(p.dial(t, 10+n, fmt.Sprintf("2001:db8:0:%x::1", n)), someMethod, "")
		}
		flood(p.dial(t, 2, "10.1.0.1"), someMethod, "")
		<-time.After(time.Second)
		before := honest.Load()
		<-time.After(10 * time.Second)
		require.InDelta(t, 5000, honest.Load()-before, 100)
		s.Close()
	})
}

// TestSendingTakesTurns lets five hosts fetch on many connections under a cap: each gets its share.
func TestSendingTakesTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rate, size = 6 << 20, 1 << 20
		p := newPipes()
		s := serve(t, p, 1, Options{Rate: rate, Handler: transport.HandlerFunc(func(context.Context, transport.Request) ([]byte, error) {
			return make([]byte, size), nil
		})})
		for n := range 5 {
			for range 8 {
				flood(p.dial(t, 10+n, fmt.Sprintf("10.0.0.%d", n)), someMethod, "")
			}
		}
		honest := p.dial(t, 2, "10.1.0.1")
		var got atomic.Int64
		for range 2 {
			go func() {
				for {
					if _, err := honest.Call(context.Background(), transport.Call{Method: someMethod, Max: size, Received: &got}); err != nil {
						return
					}
				}
			}()
		}
		<-time.After(10 * time.Second)
		before := got.Load()
		<-time.After(20 * time.Second)
		require.InDelta(t, 20*rate/6, got.Load()-before, 4*size)
		s.Close()
	})
}

// TestTurnsAtRandom adds, completes and abandons requests of some networks in any order: no place
// is lost or given twice, and no state remains.
func TestTurnsAtRandom(t *testing.T) {
	seed := seeds.New(t)
	synctest.Test(t, func(t *testing.T) {
		const places = 3
		turns := newTurns(places, 1)
		var running atomic.Int64
		var wg sync.WaitGroup
		for worker := range 20 {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(seed, uint64(worker))) //nolint:gosec // must be reproducible
				for range 200 {
					from := originOf(pipeAddr(fmt.Sprintf("[2001:db8:%x:%x::1]:1", rnd.IntN(3), rnd.IntN(3))))
					ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rnd.IntN(100))*time.Millisecond)
					turn, err := turns.wait(ctx, from, rnd.IntN(2))
					cancel()
					if err != nil {
						continue
					}
					if running.Add(1) > places {
						t.Error("too many run")
					}
					<-time.After(time.Duration(rnd.IntN(20)) * time.Millisecond)
					running.Add(-1)
					turns.done(turn, int64(rnd.IntN(1000)))
				}
			})
		}
		wg.Wait()
		require.Equal(t, places, turns.mu.free)
		require.Equal(t, line{parts: turns.mu.all.parts}, turns.mu.all)
		require.Empty(t, turns.mu.all.parts)
	})
}

// TestDebtsAreRemembered lets a host send one costly request at a time, so that it never waits
// while it pays.
func TestDebtsAreRemembered(t *testing.T) {
	turns := newTurns(1, 1)
	a, b := originOf(pipeAddr("10.0.0.1:1")), originOf(pipeAddr("10.0.0.2:1"))
	costly := turns.join(a, 1)
	var others []*turn
	for range 50 {
		others = append(others, turns.join(b, 2))
	}
	turns.done(costly, 499)
	again := turns.join(a, 1)
	for n, r := range others {
		select {
		case <-again.begun:
			require.Fail(t, "too early", "after %d", n)
		case <-r.begun:
		}
		turns.done(r, 9)
	}
	<-again.begun
	turns.done(again, 0)
	require.Empty(t, turns.mu.all.parts)
}
