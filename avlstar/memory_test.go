package avlstar

import (
	"encoding/binary"
	"math"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// TestMemoryReturns makes a million changes, twice, with 20 versions kept during the first third.
// When these are released, the tree holds its nodes and leaves and nothing else. A slab or page
// with one of them in use stays, so the slabs and pages that the kept versions made necessary
// become empty only as their content changes. At the end they take at most 1.5 times their initial
// memory (leaves: twice). Go's heap then has its initial size.
func TestMemoryReturns(t *testing.T) {
	rnd := seeds.Rand(t)
	const keys = 100_000
	versions, perVersion := scaled(1000), 1000
	if debug { // every version is checked completely
		versions = 10
	}
	key := func(i int) []byte {
		b := make([]byte, 20)
		binary.BigEndian.PutUint64(b, uint64(i)*0x9e37_79b9_7f4a_7c15)
		return b
	}
	value := func() []byte {
		b := make([]byte, 90+rnd.IntN(20))
		binary.BigEndian.PutUint64(b, rnd.Uint64())
		return b
	}
	block := make([]Change, keys)
	for i := range block {
		block[i] = Change{key(i), value()}
	}
	v := advance(t, mustEmpty(t, DefaultChunkBytes), block...)
	v = advance(t, v, Change{key(0), value()})
	start, heap := v.Memory(), settle()

	for round := range 2 {
		var pinned []*Version
		var busy MemoryStats
		for i := range versions {
			seen := map[int]bool{}
			block := make([]Change, 0, perVersion)
			for len(block) < perVersion {
				i := rnd.IntN(keys)
				if seen[i] {
					continue
				}
				seen[i] = true
				c := Change{Key: key(i), Value: value()}
				if rnd.IntN(20) == 0 { // deleted; it is put again in a later block
					c.Value = nil
				}
				block = append(block, c)
			}
			next := mustApply(t, v, block...)
			pinned = append(pinned, v)
			v = next
			if i == versions/3 {
				busy = v.Memory()
			}
			for len(pinned) > 20 || i > versions/3 && len(pinned) > 0 {
				k := rnd.IntN(len(pinned))
				pinned[k].Release()
				pinned = append(pinned[:k], pinned[k+1:]...)
			}
		}
		require.Greater(t, busy.Held, uint64(perVersion))
		block := []Change{}
		for i := range keys { // all keys are there again
			if !mustHas(t, v, key(i)) {
				block = append(block, Change{key(i), value()})
			}
		}
		v = advance(t, v, block...)
		requireOnlyLatest(t, v)
		now, after := v.Memory(), settle()
		t.Logf("round %d: with pins %+v; now %+v, at first %+v; heap %d MiB of %d objects, before %d MiB of %d",
			round, busy, now, start, after.HeapAlloc>>20, after.HeapObjects, heap.HeapAlloc>>20, heap.HeapObjects)
		require.Equal(t, uint64(keys-1), now.InnerNodes)
		require.Equal(t, uint64(keys), now.Leaves)
		if versions == 1000 {
			require.LessOrEqual(t, now.NodeBytes, start.NodeBytes*3/2)
			require.LessOrEqual(t, now.LeafBytes, start.LeafBytes*2)
		}
		if round > 0 {
			// Slabs and pages above the lowest become empty at random, so the remaining number
			// varies a little.
			require.Less(t, float64(after.HeapAlloc), 1.3*float64(heap.HeapAlloc), "Go heap")
			require.Less(t, float64(after.HeapObjects), 1.1*float64(heap.HeapObjects)+1000)
		}
		heap = after
	}
	runtime.KeepAlive(v)
}

// TestFewObjects: a tree consists of slabs and pages, and the lists of its last Apply. There is no
// Go object for a key, and the slices that the caller passed to Apply are not kept.
func TestFewObjects(t *testing.T) {
	load := func(n int) *Version {
		block := make([]Change, n)
		for i := range block {
			key := make([]byte, 20)
			binary.BigEndian.PutUint64(key, uint64(i)*0x9e37_79b9_7f4a_7c15)
			block[i] = Change{key, make([]byte, 100)}
		}
		return advance(t, mustEmpty(t, DefaultChunkBytes), block...)
	}
	before := settle()
	v := load(50_000)
	after := settle()
	require.Less(t, int64(after.HeapObjects)-int64(before.HeapObjects), int64(5_000), "Go objects for 50,000 keys")
	v = advance(t, v, Change{[]byte("one more"), []byte("1")})
	rebuilt, err := FromLeaves(DefaultChunkBytes, v.Leaves())
	require.NoError(t, err)
	again := settle()
	require.Less(t, int64(again.HeapObjects)-int64(after.HeapObjects), int64(5_000), "Go objects of FromLeaves")
	runtime.KeepAlive(v)
	runtime.KeepAlive(rebuilt)
}

func settle() (m runtime.MemStats) {
	for range 2 {
		runtime.GC() // the second call frees objects that pools kept during the first
	}
	runtime.ReadMemStats(&m)
	return m
}

// TestHeldBytes replaces nodes that versions share, in random trees, and releases versions in
// random order. Each version holds the memory of the nodes that are only in it and earlier ones.
// The memory that the oldest holds becomes free when it is released.
func TestHeldBytes(t *testing.T) {
	rnd := seeds.Rand(t)
	inUse := func(v *Version) (sum uint64) { // slots of nodes and leaves
		m := &v.tree.mu.memory
		sum = m.nodes * nodeBytes
		for p, b := range m.pageBlocks {
			switch {
			case b == nil || b.slots == 0 || m.pages[p] == nil:
			case b.class == largeClass:
				sum += uint64(len(m.pages[p]))
			default:
				sum += uint64(b.used) * uint64(classBytes[b.class])
			}
		}
		return sum
	}
	for range scaled(20) {
		v := mustEmpty(t, uint64(1+rnd.IntN(2000)))
		versions := []*Version{v}
		for range 40 {
			block := make([]Change, 0, 30)
			for i := range 60 {
				if rnd.IntN(2) == 0 {
					continue
				}
				c := Change{Key: binary.BigEndian.AppendUint32(nil, uint32(i))}
				if rnd.IntN(4) > 0 {
					c.Value = make([]byte, 1+rnd.IntN(20)*rnd.IntN(20)*rnd.IntN(50))
				}
				block = append(block, c)
			}
			v = mustApply(t, v, block...)
			versions = append(versions, v)
			if rnd.IntN(3) == 0 && len(versions) > 2 {
				i := rnd.IntN(len(versions) - 1)
				versions[i].Release()
				versions = append(versions[:i], versions[i+1:]...)
				v = mustApply(t, v, Change{Key: []byte("x"), Value: []byte{byte(rnd.IntN(256)), byte(len(versions))}})
				versions = append(versions, v)
			}
			for i, a := range v.tree.mu.alive {
				sum := uint64(0)
				for _, list := range a.held {
					sum += v.tree.mu.bytesOf(list)
				}
				require.Equal(t, sum, a.version.HeldBytes(), "version %d of %d", i, len(v.tree.mu.alive))
			}
			require.Zero(t, v.HeldBytes())
		}
		for len(versions) > 1 {
			before, held := inUse(v), versions[0].HeldBytes()
			versions[0].Release()
			versions = versions[1:]
			v.tree.reclaim(math.MaxInt, new(Reclaimed))
			require.Equal(t, before-held, inUse(v))
		}
		v.Release()
	}
}
