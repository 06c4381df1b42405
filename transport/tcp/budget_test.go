package tcp

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/transport"
)

// TestBudget lets greedy hosts take as much as they can: some memory remains for the next one, and
// the limit holds.
func TestBudget(t *testing.T) {
	for greedy := 1; greedy < 10; greedy++ {
		b := budget{limit: 1000}
		for took := true; took; {
			took = false
			for host := range greedy {
				took = b.take(originOf(pipeAddr(fmt.Sprintf("10.0.0.%d:1", host))), 1) || took
			}
		}
		require.InDelta(t, 1000*greedy/(greedy+4), b.held(), float64(greedy))
		next := originOf(pipeAddr("10.0.1.1:1"))
		require.True(t, b.take(next, 1))
		require.True(t, b.take(next, int64(1000/(greedy+4)*4/5-4)))
		require.LessOrEqual(t, b.held(), b.limit)
	}
	b := budget{limit: 1000}
	for n := range 1000 { // a network has one share, regardless of the number of its hosts
		b.take(originOf(pipeAddr(fmt.Sprintf("[2001:db8:0:%x::1]:1", n%4))), 1)
	}
	require.Equal(t, int64(200), b.held())
	require.True(t, b.take(originOf(pipeAddr("[2001:db8:0:4::1]:1")), 5), "a host that holds nothing is always served")
	for n := range 4 {
		b.count(originOf(pipeAddr(fmt.Sprintf("[2001:db8:0:%x::1]:1", n))), -50)
	}
	b.count(originOf(pipeAddr("[2001:db8:0:4::1]:1")), -5)
	require.Zero(t, b.held())
	require.Empty(t, b.mu.by)
}

// TestUnreadAnswers lets connections of two hosts request as much as they may, read nothing, and
// reconnect when they are dropped. No other host is refused.
func TestUnreadAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most, size = 8 << 20, 256 << 10
		mux := new(transport.Mux)
		mux.Handle(someMethod, transport.Weighed(transport.HandlerFunc(func(context.Context, transport.Request) ([]byte, error) {
			return make([]byte, size), nil
		}), func(transport.Request) int64 { return size }))
		p := newPipes()
		o := Options{Workers: 4, Handler: mux, bounds: bounds{maxUnsent: most}}
		s := serve(t, p, 1, o)
		honest := p.dial(t, 2, "10.1.0.1")
		for range 3 { // each takes stallTimeout
			for n := range 32 {
				c := rawDial(t, p.raw(t, fmt.Sprintf("10.0.0.%d", n/16)), helloHere)
				for id := range uint64(16) {
					c.Write(requestFrame(1+id, ""))
				}
			}
			for range 14 {
				synctest.Wait()
				require.LessOrEqual(t, s.unsent.held(), int64(most))
				var wg sync.WaitGroup
				for range 4 {
					wg.Go(func() {
						got, err := ask(honest, "")
						if err != nil || len(got) != size {
							t.Error(len(got), err)
						}
					})
				}
				wg.Wait()
				<-time.After(time.Second)
			}
			<-time.After(2 * time.Second)
		}
		s.Close()
		require.Zero(t, s.unsent.held())
	})
}

// TestMakingCounts: the estimated size of an answer counts before its handler begins.
func TestMakingCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		mux := new(transport.Mux)
		mux.Handle(someMethod, transport.Weighed(transport.HandlerFunc(func(ctx context.Context, _ transport.Request) ([]byte, error) {
			select {
			case <-release:
			case <-ctx.Done():
			}
			return []byte("x"), nil
		}), func(r transport.Request) int64 { return int64(len(r.Body)) }))
		p := newPipes()
		s := serve(t, p, 1, Options{Handler: mux, bounds: bounds{maxUnsent: 25_000}})
		c, other := p.dial(t, 2, "10.0.0.1"), p.dial(t, 3, "10.0.0.2")
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				if _, err := ask(c, strings.Repeat("x", 1000)); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		require.Equal(t, int64(5000), s.Used())
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := c.Call(ctx, transport.Call{Method: someMethod, Body: make([]byte, 1000)})
		require.ErrorIs(t, err, transport.ErrBusy)
		wg.Go(func() {
			if _, err := ask(other, strings.Repeat("x", 2000)); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		require.Equal(t, int64(7000), s.Used())
		close(release)
		wg.Wait()
		s.Close()
		require.Zero(t, s.unsent.held())
	})
}

// TestAnnouncedBodies lets connections of two hosts announce the longest bodies, and send nothing
// of them, or all except the last byte. Bodies of other hosts are still accepted.
func TestAnnouncedBodies(t *testing.T) {
	for _, sent := range []int{0, transport.MaxBody - 1} {
		t.Run(fmt.Sprint(sent), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPipes()
				s := serve(t, p, 1, Options{})
				frame := requestFrame(1, strings.Repeat("x", transport.MaxBody))
				for n := range 32 {
					c := rawDial(t, p.raw(t, fmt.Sprintf("10.0.0.%d", n/16)), helloHere)
					go io.Copy(io.Discard, c)
					_, err := c.Write(frame[:frameHeader+1+sent])
					require.NoError(t, err)
				}
				synctest.Wait()
				require.LessOrEqual(t, s.bodies.held(), s.o.maxBodies*9/25, "a fifth, and a fifth of the rest")
				require.Equal(t, s.bodies.held(), s.Used())
				honest := p.dial(t, 2, "10.1.0.1")
				for range 40 {
					got, err := ask(honest, strings.Repeat("x", 500_000))
					require.NoError(t, err)
					require.Len(t, got, 500_000)
				}
				s.Close()
				require.Zero(t, s.bodies.held())
			})
		})
	}
}
