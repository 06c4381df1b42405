package sgc

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func key64(i int) []byte { return binary.BigEndian.AppendUint64(nil, uint64(i)) }

// withMinShare sets the minimum share of the budget of a zone; 1/16 otherwise.
func withMinShare(share float64) Option { return func(c *config) { c.minShare = share } }

// TestScan: entries used twice outlive a scan over ten times the capacity.
func TestScan(t *testing.T) {
	c := New(1<<20, WithFixedSplit(1))
	const hot = 600 // of 1,000 bytes, with overhead about 70% of the budget
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

// TestDrop: a dropped entry is gone, and a miss of it moves no budget, because more memory would
// not have kept it.
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
	c.Put(State, []byte("a"), 3, 10_000-entryOverhead-outsideOverhead-leastSlot)
	value, ok := c.Get(State, []byte("a"))
	require.True(t, ok)
	require.Equal(t, 3, value)
}

// TestGame: a zone whose entries were evicted recently gets budget from the other, down to the
// other's minimum; each entry counts once.
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

	// Memory that the zone uses elsewhere counts: State has grown, but nothing is left for its
	// lists.
	c.SetOther(State, 1<<18)
	c.Put(State, []byte("a"), 1, 100)
	require.Zero(t, c.Stats().Zones[State].Bytes)
	_, ok := c.Get(State, []byte("a"))
	require.False(t, ok)
	require.Greater(t, c.Target(State), int64(1<<18))
}

// TestWindow: a ghost that is farther behind than the window moves no budget, because a step would
// not have kept the entry.
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

// TestMemory: the memory of a cache full of small entries, with the maximum number of ghosts, is
// about its budget.
func TestMemory(t *testing.T) {
	const budget = 16 << 20
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	prefix := make([]byte, 12) // the keys have 20 bytes
	before := heap()
	c := New(budget)
	for i := range 1 << 17 {
		for z := range numZones {
			c.PutBytes(z, append(prefix, key64(i)...), make([]byte, 100))
		}
	}
	used := heap() - before
	s := c.Stats()
	t.Logf("budget %d, accounted %d, used %d; entries %d, ghosts %d", budget, s.Zones[0].Bytes+s.Zones[1].Bytes, used,
		s.Zones[0].Entries+s.Zones[1].Entries, s.Zones[0].Ghosts+s.Zones[1].Ghosts)
	require.Less(t, used, int64(budget*21/20))
	entries := s.Zones[0].Entries + s.Zones[1].Entries
	require.LessOrEqual(t, used/int64(entries)-120, int64(80), "bytes per entry, with a ghost, without key and value")
	require.GreaterOrEqual(t, 2*(s.Zones[0].Ghosts+s.Zones[1].Ghosts), entries, "too few ghosts for the measurement")
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
					if k%2 == 0 {
						c.Put(z, key64(k), k, rng.IntN(3000))
					} else {
						c.PutBytes(z, key64(k), bytes.Repeat([]byte{byte(k)}, 1+k%9*500))
					}
				case 8:
					c.Stats()
				default:
					if k%2 != 0 {
						value, ok := c.GetBytes(z, key64(k), nil)
						if ok && !bytes.Equal(value, bytes.Repeat([]byte{byte(k)}, 1+k%9*500)) {
							t.Errorf("seed %d: got %x for %d", seed, value, k)
						}
					} else if value, ok := c.Get(z, key64(k)); ok && value != k {
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

// BenchmarkHitBytes reads records of 100 bytes, which are copied.
func BenchmarkHitBytes(b *testing.B) {
	c := New(64 << 20)
	var keys [1024][]byte
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "account/%012d", i)
		c.PutBytes(State, keys[i], make([]byte, 100))
	}
	var buf []byte
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		buf, _ = c.GetBytes(State, keys[i%len(keys)], buf[:0])
	}
}

func BenchmarkPutEvict(b *testing.B) {
	value := make([]byte, 1000)
	b.Run("object", func(b *testing.B) {
		c := New(16 << 20)
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			c.Put(State, key64(i), value, 1000)
		}
	})
	b.Run("bytes", func(b *testing.B) {
		c := New(16 << 20)
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			c.PutBytes(State, key64(i), value)
		}
	})
}

// TestKeysOfOneHash: for keys with equal hashes, which occur by chance, one is never answered with
// the value of the other, and both are kept.
func TestKeysOfOneHash(t *testing.T) {
	s := newStore(1 << 20)
	for i := range 10 {
		s.addBytes(7, key64(i), key64(100+i), false)
	}
	s.requireInvariants(t)
	s.remove(s.find(7, key64(3)))
	s.requireInvariants(t)
	for i := range 12 {
		e := s.find(7, key64(i))
		if i == 3 || i >= 10 {
			require.EqualValues(t, none, e)
			continue
		}
		value, _, ok := s.bytesOf(e)
		require.True(t, ok)
		require.Equal(t, key64(100+i), value)
	}
}

// TestPeek: a miss of Peek neither counts nor moves budget; a hit counts like one of Get.
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

// TestBytesAreCopies: the caller owns the result of GetBytes: from a slot, from outside, or empty.
// The argument of PutBytes may be modified afterwards.
func TestBytesAreCopies(t *testing.T) {
	c := New(1 << 20)
	for _, size := range []int{0, 1, 100, 4 << 10, 20 << 10} {
		key, value := key64(size), bytes.Repeat([]byte{7}, size)
		c.PutBytes(State, key, value)
		want := bytes.Clone(value)
		clear(value)
		got, ok := c.GetBytes(State, key, nil)
		require.True(t, ok)
		require.NotNil(t, got)
		require.True(t, bytes.Equal(want, got))
		clear(got)
		again, ok := c.GetBytes(State, key, []byte("before"))
		require.True(t, ok)
		require.Equal(t, "before"+string(want), string(again))
		c.PutBytes(State, key, []byte("another"))
		require.Equal(t, "before"+string(want), string(again))
	}
	got, ok := c.GetBytes(State, []byte("unknown"), nil)
	require.False(t, ok)
	require.Nil(t, got)
}
