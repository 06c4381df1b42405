package sgc

import (
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func key64(i int) []byte { return binary.BigEndian.AppendUint64(nil, uint64(i)) }

// withMinShare sets the share of the budget that a zone keeps in any case: 1/16 otherwise.
func withMinShare(share float64) Option { return func(c *config) { c.minShare = share } }

// Entries that were used twice outlive a scan over ten times as much as fits.
func TestScan(t *testing.T) {
	c := New(1<<20, WithFixedSplit(1))
	const hot = 600 // of 1,000 bytes, with the overhead about 70% of the budget
	for range 2 {
		for i := range hot {
			if _, ok := c.Get(State, key64(i)); !ok {
				c.Put(State, key64(i), i, 1000)
			}
		}
	}
	for i := range 10_000 {
		c.Get(State, key64(1_000_000+i))
		c.Put(State, key64(1_000_000+i), i, 1000)
	}
	kept := 0
	for i := range hot {
		if value, ok := c.Get(State, key64(i)); ok {
			require.Equal(t, i, value)
			kept++
		}
	}
	require.Equal(t, hot, kept)
}

// What was dropped is gone, and missing it moves nothing: more memory would not have kept it.
func TestDrop(t *testing.T) {
	c := New(100_000)
	c.Put(State, []byte("a"), 1, 10)
	c.Put(Blocks, []byte("a"), 2, 10)
	c.Drop(State, []byte("a"))
	c.Drop(State, []byte("unknown"))
	_, ok := c.Get(State, []byte("a"))
	require.False(t, ok)
	value, ok := c.Get(Blocks, []byte("a"))
	require.True(t, ok)
	require.Equal(t, 2, value)
	c.Evicted(State, []byte("b"), 10)
	c.Drop(State, []byte("b"))
	_, ok = c.Get(State, []byte("b"))
	require.False(t, ok)
	require.Zero(t, c.Stats().Zones[State].GhostHits)
	require.Zero(t, c.Stats().Moves)
}

func TestTooLarge(t *testing.T) {
	c := New(80_000)
	c.Put(State, []byte("a"), 1, 100)
	c.Put(State, []byte("a"), 2, 10_000)
	_, ok := c.Get(State, []byte("a"))
	require.False(t, ok) // the old value is not kept either
	c.Put(State, []byte("a"), 3, 10_000-1-entryOverhead)
	value, ok := c.Get(State, []byte("a"))
	require.True(t, ok)
	require.Equal(t, 3, value)
}

// The zone whose entries were evicted lately gets budget from the other, down to its least share;
// each entry counts once.
func TestGame(t *testing.T) {
	c := New(1<<20, withMinShare(0.25))
	require.Equal(t, int64(1<<19), c.Target(State))
	c.SetOther(Blocks, 1<<20) // no room is free
	for round := range 2000 {
		c.Evicted(Blocks, key64(round), 1000)
		before := c.Target(Blocks)
		c.Get(Blocks, key64(round))
		after := c.Target(Blocks)
		if before < 3<<18 {
			require.Greater(t, after, before)
		}
		c.Get(Blocks, key64(round))
		require.Equal(t, after, c.Target(Blocks))
		require.Equal(t, int64(1<<20), c.Target(Blocks)+c.Target(State))
	}
	require.Equal(t, int64(1<<18), c.Target(State))

	// Memory that the zone uses elsewhere takes part: State has grown, but nothing of it is left
	// for its lists.
	c.SetOther(State, 1<<18)
	c.Put(State, []byte("a"), 1, 100)
	require.Zero(t, c.Stats().Zones[State].Bytes)
	_, ok := c.Get(State, []byte("a"))
	require.False(t, ok)
	require.Greater(t, c.Target(State), int64(1<<18))
}

// A ghost that is farther behind than the window moves nothing: so little memory would not have
// kept the entry.
func TestWindow(t *testing.T) {
	c := New(1 << 20)
	c.SetOther(State, 1<<19) // no room is free
	c.Evicted(State, []byte("far"), 1000)
	for i := range 200 {
		c.Evicted(State, key64(i), 1000)
	}
	before := c.Target(State)
	c.Get(State, []byte("far"))
	require.Equal(t, uint64(1), c.Stats().Zones[State].GhostHits)
	require.Equal(t, before, c.Target(State))
	c.Get(State, key64(199))
	require.Greater(t, c.Target(State), before)
}

// The memory of a cache full of small entries, with as many ghosts as there can be, is about its
// budget.
func TestMemory(t *testing.T) {
	const budget = 16 << 20
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	c := New(budget)
	for i := range 1 << 17 {
		for z := range numZones {
			c.Put(z, key64(i), make([]byte, 100), 100+24) // the slice is boxed
		}
	}
	used := heap() - before
	s := c.Stats()
	t.Logf("budget %d, accounted %d, used %d; entries %d, ghosts %d", budget, s.Zones[0].Bytes+s.Zones[1].Bytes, used,
		s.Zones[0].Entries+s.Zones[1].Entries, s.Zones[0].Ghosts+s.Zones[1].Ghosts)
	require.Less(t, used, int64(budget*21/20))
	runtime.KeepAlive(c)
}

func TestConcurrent(t *testing.T) {
	c := New(256 << 10)
	var all sync.WaitGroup
	for seed := range uint64(8) {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 0))
			for range 5000 {
				z, k := Zone(rng.IntN(2)), rng.IntN(500)
				switch rng.IntN(20) {
				case 0:
					c.Drop(z, key64(k))
				case 1:
					c.SetOther(z, rng.Int64N(100<<10))
				case 2:
					c.Evicted(z, key64(k), 100)
				case 3:
					if c.Target(z) > 256<<10 {
						t.Error("target above the budget")
					}
				case 4, 5, 6, 7:
					c.Put(z, key64(k), k, rng.IntN(3000))
				case 8:
					c.Stats()
				default:
					if value, ok := c.Get(z, key64(k)); ok && value != k {
						t.Errorf("seed %d: got %v for %d", seed, value, k)
					}
				}
			}
		})
	}
	all.Wait()
	requireInvariants(t, c)
}

func BenchmarkHit(b *testing.B) {
	c := New(64 << 20)
	var keys [1024][]byte
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "blockstore/part/%d", i)
		c.Put(Blocks, keys[i], i, 1000)
	}
	b.Run("alone", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			c.Get(Blocks, keys[i%len(keys)])
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.RunParallel(func(pb *testing.PB) {
			for i := 0; pb.Next(); i++ {
				c.Get(Blocks, keys[i%len(keys)])
			}
		})
	})
}

func BenchmarkPutEvict(b *testing.B) {
	c := New(16 << 20)
	value := any(make([]byte, 1000))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		c.Put(State, key64(i), value, 1000)
	}
}

// Two keys of one hash, which nobody can choose but chance may: the one is never answered with the
// value of the other.
func TestKeysOfOneHash(t *testing.T) {
	c := New(1 << 20)
	c.Put(State, []byte("kept"), "value", 10)
	zo := &c.mu.zones[State]
	kept, other := maphash.Bytes(c.seed, []byte("kept")), maphash.Bytes(c.seed, []byte("other"))
	zo.entries[other] = zo.entries[kept]
	_, ok := c.Get(State, []byte("other"))
	require.False(t, ok)
}

// A miss of Peek neither counts nor moves budget; a hit is one of Get.
func TestPeek(t *testing.T) {
	c := New(100_000)
	key := []byte("key")
	_, ok := c.Peek(State, key)
	require.False(t, ok)
	c.Evicted(State, key, 10)
	_, ok = c.Peek(State, key)
	require.False(t, ok)
	require.Zero(t, c.Stats().Zones[State].Misses)
	require.Zero(t, c.Stats().Zones[State].GhostHits)
	c.Put(State, key, 7, 10)
	value, ok := c.Peek(State, key)
	require.True(t, ok)
	require.Equal(t, 7, value)
	require.EqualValues(t, 1, c.Stats().Zones[State].Hits)
}
