package sgc

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// TestClasses: the slot sizes are in their classes, in ascending order. From 96 bytes on, each is
// at most a sixth larger than the previous one.
func TestClasses(t *testing.T) {
	a := newArena(1 << 40)
	require.Equal(t, largestAny, a.largest)
	before, class := 0, -1
	for n := 1; n <= a.largest; n++ {
		size := rounded(n)
		require.GreaterOrEqual(t, size, n)
		if size != before {
			class++
			require.True(t, before < 96 || size <= before+before/6, size)
			before = size
		}
		require.Equal(t, class, classOf(size), n)
		require.EqualValues(t, size, a.classes[class].size)
		require.Equal(t, size, rounded(size))
	}
	require.Equal(t, numClasses-1, class)
	for n := a.largest; n < 1<<20; n += 999 {
		require.LessOrEqual(t, n, rounded(n))
		require.LessOrEqual(t, rounded(n), n+max(n/4, 8<<10))
	}
	small := newArena(0)
	require.Equal(t, leastSlab/slotsInSlab, small.largest)
	require.Zero(t, small.classes[numClasses-1].size)
}

// TestStoreEqualsAMap: a store of any sizes has the contents of a map, and uses no more memory than
// its slots and one slab for each used class.
func TestStoreEqualsAMap(t *testing.T) {
	rng := seeds.Rand(t)
	s, want := newStore(1<<20), map[string][]byte{}
	hash := func(key []byte) uint32 { return uint32(key[0]) * 0x9e3779b1 }
	for phase := range 6 {
		largest := []int{10, 3000, 100, 5000, 0, 300}[phase]
		for range 4000 {
			key := bytes.Repeat([]byte{byte(rng.IntN(250))}, 1+rng.IntN(20))
			if e := s.find(hash(key), key); e != none {
				value, _, ok := s.bytesOf(e)
				require.True(t, ok)
				require.Equal(t, want[string(key)], append([]byte{}, value...))
				if rng.IntN(3) == 0 {
					s.move(e, rng.IntN(2) == 0)
					continue
				}
				s.remove(e)
				delete(want, string(key))
			} else {
				require.NotContains(t, want, string(key))
			}
			if rng.IntN(3) > 0 {
				value := make([]byte, rng.IntN(largest+1))
				for i := range value {
					value[i] = byte(rng.Uint32())
				}
				s.addBytes(hash(key), key, value, rng.IntN(2) == 0)
				want[string(key)] = value
			}
		}
		require.Equal(t, len(want), s.count())
		s.requireInvariants(t)
	}
	for s.count() > 0 {
		s.remove(1 + rng.Uint32N(uint32(s.count())))
	}
	s.requireInvariants(t)
	require.LessOrEqual(t, len(s.entries.chunks), 2)
	require.Empty(t, s.outside)
	require.LessOrEqual(t, s.index.buckets.n, uint32(chunk+1))
}

// TestGhostsWrapAround: ghosts still work when their numbers pass 1<<32.
func TestGhostsWrapAround(t *testing.T) {
	var from0, near ghosts
	from0.init(10_000)
	near.init(10_000)
	start := uint64(1<<33-2000) / chunk * chunk
	near.base, near.first, near.next = start, start, start
	rng := rand.New(rand.NewPCG(1, 0))
	for range 20_000 {
		hash, size := uint32(rng.IntN(600)), int64(rng.IntN(100))
		switch rng.IntN(4) {
		case 0:
			require.Equal(t, from0.remove(hash), near.remove(hash))
		case 1:
			depth, ok := from0.hit(hash)
			depthNear, okNear := near.hit(hash)
			require.Equal(t, ok, okNear)
			require.Equal(t, depth, depthNear)
		default:
			from0.add(hash, size)
			near.add(hash, size)
		}
		require.Equal(t, from0.index.n, near.index.n)
	}
	require.Greater(t, near.next, uint64(1<<33))
	require.Greater(t, near.first, uint64(1<<33))
}
