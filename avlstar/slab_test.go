package avlstar

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// TestSlabGivenBackInsideApply makes and removes the only inner node of a slab in one block. Slab 0
// is full of nodes of an older version.
func TestSlabGivenBackInsideApply(t *testing.T) {
	var put, del []Change
	for i := range slabNodes {
		put = append(put, Change{fmt.Appendf(nil, "key %05d", i), []byte("1")})
		del = append(del, Change{Key: put[i].Key})
	}
	pinned := mustApply(t, mustEmpty(t, 1000), put...)
	v := mustApply(t, pinned, del[1:]...)
	require.Equal(t, uint64(1), v.Len())
	v = advance(t, v, Change{[]byte("a"), []byte("2")}, del[0])
	requireInvariants(t, v)
	require.Equal(t, uint64(1), v.Len())
	requireInvariants(t, pinned)
}

// TestSlabGivenBackInUndo makes a block fail in a partial tree after it has used one slot of a slab
// twice, and no other slot of that slab.
func TestSlabGivenBackInUndo(t *testing.T) {
	var block []Change
	for i := range slabNodes + 3 {
		block = append(block, Change{fmt.Appendf(nil, "key %05d", i), []byte("1")})
	}
	v := mustApply(t, mustEmpty(t, 1000), block...)
	leaves := slices.Collect(mustLeaves(t, v))
	for i := range leaves[8:] { // leaves 0 to 3 and 4 to 7 are two siblings of height 2 each
		at := leaves[i:]
		if at[1].Height != 1 || at[2].Height != 2 || at[3].Height != 1 || at[4].Height != 3 || at[6].Height != 2 {
			continue
		}
		p, err := v.Prune(func(s Subtree) bool { return s.Height == 2 && bytes.Equal(s.First, at[4].Key) })
		require.NoError(t, err)
		before := p.v.Memory()
		require.Equal(t, uint64(slabNodes-1), before.InnerNodes, "slab 0 is full")
		// Their parent is made again for leaf 2 and removed for leaf 3. The grandparent uses its
		// slot when leaf 4 turns out to be missing.
		_, err = p.Apply([]Change{{Key: at[2].Key}, {Key: at[3].Key}, {Key: at[4].Key}})
		var missing *MissingNodeError
		require.ErrorAs(t, err, &missing)
		require.Equal(t, before, p.v.Memory())
		return
	}
	t.Fatal("no such place in the tree")
}

// TestRoomStaysShort fills the last slot of a slab and a page in every version, and frees one
// before the next.
func TestRoomStaysShort(t *testing.T) {
	v := mustEmpty(t, 1000)
	var block []Change
	for i := range 7 { // a page holds 8 records of this size
		block = append(block, Change{[]byte{byte(i)}, make([]byte, 8100)})
	}
	v = advance(t, v, block...)
	for i := range 1000 {
		value := make([]byte, 8100)
		value[0], value[1] = byte(i), byte(i>>8|1)
		v = advance(t, v, Change{[]byte{1}, value})
	}
	m := &v.tree.mu.memory
	require.Less(t, len(m.slabRoom), 10)
	for class := range m.pageRoom {
		require.Less(t, len(m.pageRoom[class]), 10, "class %d", class)
	}
}

// TestRecordSizes puts a record of every length. Each can be read, alone and with all others next
// to it, and when all are freed no page is left.
func TestRecordSizes(t *testing.T) {
	var m memory
	rnd := seeds.Rand(t)
	type stored struct {
		r    ref
		n    int
		tint byte
	}
	check := func(s stored) {
		key, value := m.leaf(s.r)
		if len(key) != 1 || key[0] != s.tint || len(value) != s.n || value[0] != s.tint || value[s.n-1] != s.tint || m.recordEpoch(s.r) != uint32(s.n) {
			require.Fail(t, "another record", "value of %d bytes", s.n)
		}
		if got, want := len(m.body(s.r)), int(RecordBytes(1, s.n))-1; got != want {
			require.Fail(t, "wrong length", "value of %d bytes: %d, not %d", s.n, got, want)
		}
	}
	var all []stored
	used := uint64(0)
	step := 70_000 / scaled(70_000)
	for n := 1; n <= 70_000; n += step {
		s := stored{n: n, tint: byte(n) | 1}
		value := bytes.Repeat([]byte{s.tint}, n)
		s.r = putOne(&m, uint32(n), []byte{s.tint}, value)
		check(s)
		if n > 10_000 { // each has a page of its own
			before := m.leafBytes
			m.freeRecord(s.r)
			require.Equal(t, before-RecordBytes(1, n)-recordHeader+1, m.leafBytes)
			continue
		}
		used += RecordBytes(1, n)
		all = append(all, s)
	}
	require.Equal(t, uint64(len(all)), m.leaves)
	if step == 1 {
		require.Less(t, m.leafBytes, used*5/4, "waste of the size classes")
	}
	rnd.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for i, s := range all {
		check(s)
		m.freeRecord(s.r)
		if i%1000 == 0 {
			for _, s := range all[i+1:] {
				check(s)
			}
		}
	}
	require.Zero(t, m.leaves)
	require.Zero(t, m.leafBytes)
	for p := range m.pages {
		require.Nil(t, m.pages[p])
	}
}

// TestNodes takes and frees nodes at random: none is returned twice, the lowest slab is used first,
// and empty slabs are given back.
func TestNodes(t *testing.T) {
	rnd := seeds.Rand(t)
	var m memory
	var list []ref
	held := map[ref]int{} // position in list
	slabs := func() (n int) {
		for _, s := range m.slabs {
			if s.links != nil {
				n++
			}
		}
		return n
	}
	drop := func(i int) {
		n := list[i]
		m.freeNode(n)
		delete(held, n)
		last := len(list) - 1
		if list[i] = list[last]; i < last {
			held[list[i]] = i
		}
		list = list[:last]
	}
	for range 40 {
		for range rnd.IntN(4 * slabNodes) {
			n := newOne(&m)
			require.NotZero(t, n)
			if _, twice := held[n]; twice {
				require.Fail(t, "a node is given twice")
			}
			m.link(n).prefix, *m.image(n) = uint64(n), image{}
			held[n] = len(list)
			list = append(list, n)
		}
		for range rnd.IntN(len(list) + 1) {
			drop(rnd.IntN(len(list)))
		}
		require.Equal(t, uint64(len(list)), m.nodes)
		for _, n := range list {
			require.Equal(t, uint64(n), m.link(n).prefix, "a node is another one")
		}
	}
	for len(list) > 100 {
		drop(rnd.IntN(len(list)))
	}
	for range 2 * slabNodes { // lower slots are reused before higher ones
		for len(list) < 200 {
			n := newOne(&m)
			held[n] = len(list)
			list = append(list, n)
		}
		drop(rnd.IntN(len(list)))
	}
	require.LessOrEqual(t, slabs(), 1+1, "slabs for 200 nodes")
	for len(list) > 0 {
		drop(0)
	}
	require.Zero(t, m.nodes)
	require.Equal(t, 1, slabs(), "only the slab of node 0, which does not exist")
}

func TestLowest(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var h lowest
	var naive []uint32
	for range 10_000 {
		if len(naive) > 0 && rnd.IntN(2) == 0 {
			slices.Sort(naive)
			require.Equal(t, naive[0], h.pop())
			naive = naive[1:]
			continue
		}
		x := rnd.Uint32N(50)
		h.push(x)
		naive = append(naive, x)
		require.Equal(t, slices.Min(naive), h[0])
	}
}

// newOne and putOne allocate with an allocator of their own.
func newOne(m *memory) ref {
	a := newAllocator(m, false)
	defer a.close()
	return a.newNode()
}

func putOne(m *memory, epoch uint32, key, value []byte) ref {
	a := newAllocator(m, false)
	defer a.close()
	return a.putRecord(epoch, key, value)
}
