package avlstar

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// TestParallelIsInOrder makes blocks that are aimed at the borders of subtrees with one goroutine
// and with several. The limits of tune are either unchanged, or so low that nearly every block has
// rotations above its tasks.
func TestParallelIsInOrder(t *testing.T) {
	rnd := seeds.Rand(t)
	normal := tune
	defer func() { tune = normal }()
	usual := tune
	usual.minReclaim = 1 << 30 // the nodes left to later versions depend on those freed before
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for round := range max(4, scaled(60)) {
		tune = usual
		space, most := 300<<rnd.IntN(6), 3000
		if round%4 > 0 {
			tune.minChanges, tune.minTask, tune.minTaskHeight, tune.maxBackoff = 4, 1+rnd.IntN(3), uint8(1+rnd.IntN(3)), 0
			space, most = 100<<rnd.IntN(6), 4<<rnd.IntN(11)
		}
		compareWithOrder(t, rnd, space, most)
	}
}

func compareWithOrder(t *testing.T, rnd *rand.Rand, space, most int) {
	scheme := rnd.IntN(5)
	v := mustEmpty(t, 1+rnd.Uint64N(1<<rnd.IntN(14)))
	first := model{}
	for range space {
		first[string(schemeKey(rnd, scheme, space))] = borderValue(rnd)
	}
	v = advance(t, v, sortedBlock(first)...)
	var pins []*Version
	for range 4 + rnd.IntN(4) {
		block := borderBlock(t, rnd, v, scheme, space, 4+rnd.IntN(most))
		runtime.GOMAXPROCS(1)
		inOrder := mustApply(t, v, block...)
		want := describe(inOrder, v)
		inOrder.Release()
		var next *Version
		for _, procs := range []int{2, 3, 8} {
			if next != nil {
				next.Release()
			}
			runtime.GOMAXPROCS(procs)
			next = mustApply(t, v, block...)
			require.Equal(t, want, describe(next, v), "GOMAXPROCS %d", procs)
		}
		requireInvariants(t, next)
		if next == v || rnd.IntN(3) > 0 {
			v.Release()
		} else {
			pins = append(pins, v)
		}
		v = next
	}
	for _, pin := range pins {
		requireInvariants(t, pin)
		pin.Release()
	}
	v = advance(t, v, Change{[]byte("last"), []byte("one more")})
	v = advance(t, v, Change{[]byte("last"), []byte("another")})
	requireOnlyLatest(t, v)
	v.Release()
}

// described holds everything that must not depend on how a version was made.
type described struct {
	commitment    Commitment
	keys          uint64
	hashed        [2]uint64
	inner, leaves uint64
	moved         []string // NewInner
	chunks        [][]byte
}

func describe(v, base *Version) described {
	d := described{commitment: v.Commitment(), keys: v.Len(), inner: v.Memory().InnerNodes, leaves: v.Memory().Leaves}
	if v != base {
		d.hashed[0], d.hashed[1] = v.Hashed()
	}
	for key, height := range v.NewInner(base) {
		d.moved = append(d.moved, fmt.Sprintf("%x %d", key, height))
	}
	for k := range v.NumChunks() {
		c, err := v.Chunk(k)
		if err != nil {
			panic(err)
		}
		d.chunks = append(d.chunks, c)
	}
	return d
}

// TestAimedBlock deletes the least key at many borders and puts another right behind it, so that no
// subtree can be made by itself. The block must not be made again and again.
func TestAimedBlock(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	var first []Change
	for i := range scaled(100_000) {
		first = append(first, Change{fmt.Appendf(nil, "key%08d", i), []byte("value")})
	}
	v := advance(t, mustEmpty(t, 1<<20), first...)
	var block []Change
	for l := range mustLeaves(t, v) {
		if l.Height >= 4 {
			block = append(block, Change{Key: slices.Clone(l.Key)}, Change{append(slices.Clone(l.Key), 0), []byte("behind")})
		}
	}
	runtime.GOMAXPROCS(1)
	inOrder := mustApply(t, v, block...)
	want := describe(inOrder, v)
	inOrder.Release()
	runtime.GOMAXPROCS(2)
	v.tree.mu.backoff = 0
	next := mustApply(t, v, block...)
	require.Equal(t, want, describe(next, v))
	require.Positive(t, next.tree.mu.backoff, "it was made in order, and so are the next")
}

// TestPagesRunOut: a block that might need more pages than refs can name is refused, even if it
// would need fewer. Here few pages are left, as after gigabytes of large values.
func TestPagesRunOut(t *testing.T) {
	for _, procs := range []int{1, 2} {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
		v := advance(t, mustEmpty(t, 1000), Change{[]byte("first"), []byte("leaf")})
		m := &v.tree.mu.memory
		for len(m.pages) < maxPages-2500 {
			m.pages, m.pageBlocks = append(m.pages, nil), append(m.pageBlocks, nil)
		}
		var block []Change
		for i := range 2600 {
			block = append(block, Change{fmt.Appendf(nil, "key%05d", i), make([]byte, 9000)})
			block[i].Value[0] = 1
		}
		_, err := v.Apply(block)
		require.ErrorIs(t, err, ErrTooLarge)
		v = advance(t, v, block[:500]...)
		requireInvariants(t, v)

		// Pages of released versions that are not freed yet are not a reason to refuse.
		reclaimSlowly(t, 1)
		for i := range block[:499] {
			block[i].Value = nil
		}
		v = advance(t, v, block[:499]...)
		require.NotZero(t, v.Memory().Held)
		v = advance(t, v, block[500:1000]...)
		requireInvariants(t, v)
	}
}

// TestHeldListsAreShort keeps a version over many blocks: the lists that hold its nodes are no
// longer than the number of nodes.
func TestHeldListsAreShort(t *testing.T) {
	rnd := seeds.Rand(t)
	v := mustEmpty(t, 1<<20)
	pin := v
	for i := range 30 + scaled(270) {
		next := mustApply(t, v, randomBlock(rnd, 400, 5000, 0.2, false)...)
		if i == 30 {
			pin = v
		} else {
			v.Release()
		}
		v = next
	}
	room := 0
	for _, list := range v.tree.mu.alive[0].held {
		room += cap(list)
	}
	require.Equal(t, pin, v.tree.mu.alive[0].version)
	require.Less(t, room, 2*int(v.Memory().Held)+2*maxHeld)
}
