package transporttest

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/transport"
)

func TestNetwork(t *testing.T) { Run(t, InMemory()) }

// TestFaultlessFaulty: without faults, the wrapper changes nothing.
func TestFaultlessFaulty(t *testing.T) { Run(t, faultless{InMemory()}) }

type faultless struct{ Transport }

func (f faultless) Dialer(tb testing.TB, o Options) transport.Dialer {
	return &Faulty{Dialer: f.Transport.Dialer(tb, o), Faults: func(transport.Address) Faults { return Faults{} }}
}

// faultyWorld is an in-memory node and a dialer with faults, in virtual time.
func faultyWorld(t *testing.T, seed uint64, faults Faults, h transport.HandlerFunc) (*Faulty, *Listener) {
	t.Helper()
	var n Network
	l, err := n.Listen("node:1", Config{ID: ID(server), ChainID: chain, Handler: h, MaxCalls: 1000})
	require.NoError(t, err)
	d := n.Dialer(Config{ID: ID(client), ChainID: chain, Host: "here"})
	return &Faulty{Dialer: d, Seed: seed, Faults: func(transport.Address) Faults { return faults }}, l
}

// outcome is the result of a call.
type outcome struct {
	got  string
	err  error
	took time.Duration
}

// fetch makes concurrent calls, each for its own answer, and gives up after a minute of virtual
// time.
func fetch(t *testing.T, f *Faulty, a transport.Address, calls, size int) []outcome {
	t.Helper()
	c, err := f.Dial(context.Background(), a)
	require.NoError(t, err)
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	outcomes := make([]outcome, calls)
	began := time.Now()
	var wg sync.WaitGroup
	for i := range outcomes {
		wg.Go(func() {
			var o outcome
			got, err := c.Call(ctx, transport.Call{Method: someMethod, Body: want(size, byte(i)), Max: size})
			o.got, o.err, o.took = hex.EncodeToString(got), err, time.Since(began)
			outcomes[i] = o
		})
	}
	wg.Wait()
	return outcomes
}

func TestFaults(t *testing.T) {
	const calls, size = 200, 50
	flipped := func(o outcome, i int) int {
		got, _ := hex.DecodeString(o.got)
		n := 0
		for j, b := range noise(want(size, byte(i)), size) {
			if j < len(got) {
				n += bits.OnesCount8(b ^ got[j])
			}
		}
		return n
	}
	whole := func(o outcome, i int) bool { return o.err == nil && len(o.got) == 2*size && flipped(o, i) == 0 }
	for name, test := range map[string]struct {
		faults   Faults
		hit      func(o outcome, i int) bool // affected by the fault
		min, max int                         // number of calls
	}{
		"none":     {Faults{}, func(o outcome, _ int) bool { return o.took > 0 }, 0, 0},
		"loss":     {Faults{Loss: 0.5}, func(o outcome, _ int) bool { return errors.Is(o.err, context.DeadlineExceeded) }, 60, 140},
		"all lost": {Faults{Loss: 1}, func(o outcome, _ int) bool { return errors.Is(o.err, context.DeadlineExceeded) }, calls, calls},
		"delay":    {Faults{Delay: time.Second}, func(o outcome, _ int) bool { return o.took == time.Second }, calls, calls},
		"jitter":   {Faults{Jitter: time.Second}, func(o outcome, _ int) bool { return o.took > 500*time.Millisecond }, 60, 140},
		"truncate": {Faults{Truncate: 0.5}, func(o outcome, i int) bool { return len(o.got) < 2*size && flipped(o, i) == 0 }, 60, 140},
		"corrupt":  {Faults{Corrupt: 0.5}, func(o outcome, i int) bool { return len(o.got) == 2*size && flipped(o, i) == 1 }, 60, 140},
		"rate":     {Faults{Rate: calls * size}, func(o outcome, _ int) bool { return o.took > time.Second/2 }, calls / 2, calls / 2},
		"disconnect": {Faults{Disconnect: calls / 2, Delay: time.Second}, func(o outcome, _ int) bool {
			return errors.Is(o.err, transport.ErrClosed)
		}, calls, calls},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, l := faultyWorld(t, 1, test.faults, wanted)
				defer l.Close()
				hit := 0
				for i, o := range fetch(t, f, l.Address(), calls, size) {
					if test.hit(o, i) {
						hit++
					} else {
						require.True(t, whole(o, i), "%d: %v", i, o)
					}
				}
				require.True(t, test.min <= hit && hit <= test.max, "%d hits", hit)
			})
		})
	}
}

// TestFate repeats a run with all faults: the same seed gives the same outcomes and times, another
// seed gives others.
func TestFate(t *testing.T) {
	run := func(seed uint64) (all []outcome) {
		synctest.Test(t, func(t *testing.T) {
			f, l := faultyWorld(t, seed, Faults{Loss: 0.2, Delay: time.Second, Jitter: time.Second, Truncate: 0.2, Corrupt: 0.2}, wanted)
			defer l.Close()
			all = fetch(t, f, l.Address(), 100, 100)
		})
		return all
	}
	require.Equal(t, run(1), run(1))
	require.NotEqual(t, run(1), run(2))
}

// TestReorder holds back answers until others have passed.
func TestReorder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, l := faultyWorld(t, 7, Faults{Reorder: 1}, wanted)
		defer l.Close()
		for _, o := range fetch(t, f, l.Address(), 1, 1) {
			require.NoError(t, o.err)
			require.Equal(t, overtaken, o.took, "no other answer overtook it")
		}
		f, l = faultyWorld(t, 7, Faults{Reorder: 0.5}, wanted)
		defer l.Close()
		c, err := f.Dial(context.Background(), l.Address())
		require.NoError(t, err)
		var order []int
		var mu sync.Mutex
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				_, err := c.Call(context.Background(), transport.Call{Method: someMethod, Body: want(1, byte(i)), Max: 1})
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				order = append(order, i)
			})
			synctest.Wait()
		}
		wg.Wait()
		require.Len(t, order, 50)
		require.False(t, slices.IsSorted(order), "some were overtaken: %v", order)
		require.NoError(t, c.Close())
	})
}

// TestSlowLine: progress is reported at the speed of the slow link, and calls end at any time.
func TestSlowLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rate, size = 100_000, 1_000_000
		f, l := faultyWorld(t, 1, Faults{Rate: rate}, wanted)
		defer l.Close()
		c, err := f.Dial(context.Background(), l.Address())
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		var received atomic.Int64
		_, err = c.Call(ctx, transport.Call{Method: someMethod, Body: want(size, 0), Into: make([]byte, size), Received: &received})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.InDelta(t, 5*rate, received.Load(), 20_000)

		result := make(chan error)
		go func() {
			_, err := c.Call(context.Background(), transport.Call{Method: someMethod, Body: want(size, 0), Max: size})
			result <- err
		}()
		synctest.Wait()
		l.Disconnect()
		require.ErrorIs(t, <-result, transport.ErrClosed)
	})
}

// TestRefuse: some dials fail, and others succeed.
func TestRefuse(t *testing.T) {
	f, l := faultyWorld(t, 3, Faults{Refuse: 0.5}, wanted)
	defer l.Close()
	refused := 0
	for range 100 {
		c, err := f.Dial(context.Background(), l.Address())
		if err != nil {
			refused++
			continue
		}
		c.Close()
	}
	require.True(t, 20 < refused && refused < 80, refused)
}

// TestNetworkInVirtualTime: handlers take time, and a node returns under its old address.
func TestNetworkInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n Network
		c := Config{ID: ID(server), ChainID: chain, Handler: transport.HandlerFunc(func(ctx context.Context, r transport.Request) ([]byte, error) {
			select {
			case <-time.After(time.Hour):
			case <-ctx.Done():
			}
			return r.Body, nil
		})}
		l, err := n.Listen("node:1", c)
		require.NoError(t, err)
		_, err = n.Listen("node:1", c)
		require.Error(t, err)
		d := n.Dialer(Config{ID: ID(client), ChainID: chain})
		conn, err := d.Dial(context.Background(), l.Address())
		require.NoError(t, err)
		began := time.Now()
		got, err := conn.Call(context.Background(), transport.Call{Method: someMethod, Body: []byte("x"), Max: 1})
		require.NoError(t, err)
		require.Equal(t, "x", string(got))
		require.Equal(t, time.Hour, time.Since(began))
		l.Close()
		require.ErrorIs(t, conn.Err(), transport.ErrClosed)
		_, err = d.Dial(context.Background(), l.Address())
		require.Error(t, err)
		l, err = n.Listen("node:1", c)
		require.NoError(t, err)
		conn, err = d.Dial(context.Background(), l.Address())
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		l.Close()
	})
}

func TestKeys(t *testing.T) {
	seen := make(map[transport.ID]bool)
	for n := range 30 {
		require.NoError(t, ID(n).Validate())
		require.False(t, seen[ID(n)])
		seen[ID(n)] = true
		require.True(t, bytes.Equal(Key(n), Key(n)), fmt.Sprint(n))
	}
}
