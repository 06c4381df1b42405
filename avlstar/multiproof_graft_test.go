package avlstar

import (
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// TestGraftTwice: nodes in memory stay, and nothing is grafted twice.
func TestGraftTwice(t *testing.T) {
	v := stateOf(t, 50, 40)
	r := multiproofReceiver{depth: 1}
	r.start(t, v)
	b, err := v.Multiproof([]Want{{Key: []byte("k30")}}, Below{Depth: 1})
	multiproof := mustDecodeMultiproof(t, b, err)
	first := r.graft(t, multiproof)
	require.Positive(t, first.Inner)
	require.Equal(t, 1, first.Leaves)
	before := r.p.v.Memory()
	require.Zero(t, r.graft(t, multiproof).Inner)
	require.Equal(t, before.InnerNodes, r.p.v.Memory().InnerNodes)
	b, err = v.Multiproof([]Want{{Key: []byte("k30")}, {Key: []byte("k34")}}, Below{Depth: 1})
	both := mustDecodeMultiproof(t, b, err)
	merged := r.graft(t, both)
	fresh := multiproofReceiver{depth: 1}
	fresh.start(t, v)
	require.Equal(t, fresh.graft(t, both).Inner, first.Inner+merged.Inner, "multiproofs of one subtree merge")
	for _, key := range []string{"k30", "k34"} {
		_, ok, err := r.p.Get([]byte(key))
		require.NoError(t, err)
		require.True(t, ok)
	}
}

// TestGraftTogether: multiproofs that are grafted together add the nodes that each adds, in one
// version.
func TestGraftTogether(t *testing.T) {
	rnd := seeds.Rand(t)
	for range scaled(30) {
		v := randomState(t, rnd, 1+rnd.IntN(1000))
		depth := rnd.IntN(8)
		var multiproofs []*Multiproof
		for range rnd.IntN(5) {
			b, err := v.Multiproof(wantsOf(randomBlock(rnd, 1+rnd.IntN(40), 2000, 0.3, false)), Below{Depth: rnd.IntN(depth + 1)})
			multiproofs = append(multiproofs, mustDecodeMultiproof(t, b, err))
		}
		together, apart := multiproofReceiver{depth: depth}, multiproofReceiver{depth: depth}
		together.start(t, v)
		apart.start(t, v)
		epoch := together.p.v.epoch
		done := together.graft(t, multiproofs...)
		var sum Grafted
		for _, b := range multiproofs {
			each := apart.graft(t, b)
			sum.Inner, sum.Leaves, sum.Stale = sum.Inner+each.Inner, sum.Leaves+each.Leaves, sum.Stale+each.Stale
		}
		require.Equal(t, sum, done)
		require.LessOrEqual(t, together.p.v.epoch, epoch+1)
		require.Equal(t, slices.Collect(apart.p.Stubs(nil)), slices.Collect(together.p.Stubs(nil)))
	}
}

// This test deletes a key whose path the receiver has, where a sibling that is missing may rotate.
// Then the multiproof has the root of that sibling, and its inner child if that is higher than the
// outer one.
func TestMultiproofBesideTheWay(t *testing.T) {
	rnd := seeds.Rand(t)
	v := randomState(t, rnd, 300)
	all, beside := slices.Collect(mustLeaves(t, v)), 0
	for at, leaf := range rnd.Perm(len(all)) {
		if at >= scaled(300) && beside > 0 { // few deletions have such a sibling
			break
		}
		gone := all[leaf].Key
		p, err := v.Prune(func(s Subtree) bool { return !touches(s, [][]byte{gone}) })
		require.NoError(t, err)
		r := multiproofReceiver{p: p}
		b, err := v.Multiproof([]Want{{Key: gone, Deleted: true}}, Below{Depth: math.MaxInt, Held: r.held()})
		multiproof := mustDecodeMultiproof(t, b, err)
		require.Zero(t, multiproof.Leaves(), "it has the leaf")
		beside += len(multiproof.Roots())
		require.Zero(t, r.graft(t, multiproof).Stale)
		next, err := r.p.Apply([]Change{{Key: gone}})
		require.NoError(t, err)
		full := mustApply(t, v, Change{Key: gone})
		require.Equal(t, full.Commitment(), next.Commitment())
		full.Release()
	}
	require.Positive(t, beside)
}

// TestDecodingAllocates: the memory of a multiproof is a small multiple of its length, whatever it
// contains.
func TestDecodingAllocates(t *testing.T) {
	items := func(n int) (b []byte) { // the shortest: leaves in trees of one
		b = append(b, multiproofVersion)
		for i := range n {
			key := []byte{byte(i >> 16), byte(i >> 8), byte(i)}
			b = appendTree(b, 1, appendLeafItem(nil, Leaf{Key: key, Value: []byte{1}}))
		}
		return b
	}
	b := items(20_000)
	_, err := DecodeMultiproof(b)
	require.NoError(t, err)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = DecodeMultiproof(b)
	require.NoError(t, err)
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(80*len(b)))
}

// TestGraftsAlone: a tree that only receives multiproofs and sheds does not keep nodes that it gave
// up.
func TestGraftsAlone(t *testing.T) {
	rnd := seeds.Rand(t)
	v := randomState(t, rnd, 2000)
	r := multiproofReceiver{depth: 3}
	r.start(t, v)
	r.p.EnableRetention(Retention{Depth: 3, Window: 1})
	for range 300 {
		b, err := v.Multiproof(wantsOf(randomBlock(rnd, 5, 4000, 0, false)), Below{})
		r.graft(t, mustDecodeMultiproof(t, b, err))
		r.shed(t)
	}
	require.LessOrEqual(t, r.p.v.Memory().Versions, 4)
	require.Less(t, r.p.v.Memory().InnerNodes, uint64(2000))
}
