package avlstar

import (
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// TestGraftTwice: what is in memory stays, and nothing is grafted twice.
func TestGraftTwice(t *testing.T) {
	v := stateOf(t, 50, 40)
	r := bagReceiver{depth: 1}
	r.start(t, v)
	b, err := v.Bag([]Want{{Key: []byte("k30")}}, Below{Depth: 1})
	bag := mustDecodeBag(t, b, err)
	first := r.graft(t, bag)
	require.Positive(t, first.Inner)
	require.Equal(t, 1, first.Leaves)
	before := r.p.v.Memory()
	require.Zero(t, r.graft(t, bag).Inner)
	require.Equal(t, before.InnerNodes, r.p.v.Memory().InnerNodes)
	b, err = v.Bag([]Want{{Key: []byte("k30")}, {Key: []byte("k34")}}, Below{Depth: 1})
	both := mustDecodeBag(t, b, err)
	merged := r.graft(t, both)
	fresh := bagReceiver{depth: 1}
	fresh.start(t, v)
	require.Equal(t, fresh.graft(t, both).Inner, first.Inner+merged.Inner, "bags of one subtree merge")
	for _, key := range []string{"k30", "k34"} {
		_, ok, err := r.p.Get([]byte(key))
		require.NoError(t, err)
		require.True(t, ok)
	}
}

// TestGraftTogether: bags that are grafted together bring what each brings, in one version.
func TestGraftTogether(t *testing.T) {
	rnd := seeds.Rand(t)
	for range scaled(30) {
		v := randomState(t, rnd, 1+rnd.IntN(1000))
		depth := rnd.IntN(8)
		var bags []*Bag
		for range rnd.IntN(5) {
			b, err := v.Bag(wantsOf(randomBlock(rnd, 1+rnd.IntN(40), 2000, 0.3, false)), Below{Depth: rnd.IntN(depth + 1)})
			bags = append(bags, mustDecodeBag(t, b, err))
		}
		together, apart := bagReceiver{depth: depth}, bagReceiver{depth: depth}
		together.start(t, v)
		apart.start(t, v)
		epoch := together.p.v.epoch
		done := together.graft(t, bags...)
		var sum Grafted
		for _, b := range bags {
			each := apart.graft(t, b)
			sum.Inner, sum.Leaves, sum.Stale = sum.Inner+each.Inner, sum.Leaves+each.Leaves, sum.Stale+each.Stale
		}
		require.Equal(t, sum, done)
		require.LessOrEqual(t, together.p.v.epoch, epoch+1)
		require.Equal(t, slices.Collect(apart.p.Stubs(nil)), slices.Collect(together.p.Stubs(nil)))
	}
}

// TestBagBesideTheWay: a deletion whose way the receiver has may rotate a sibling that it lacks.
// Then the bag has that sibling's root, and the inner child where that is the higher one.
func TestBagBesideTheWay(t *testing.T) {
	rnd := seeds.Rand(t)
	v := randomState(t, rnd, 300)
	all, beside := slices.Collect(mustLeaves(t, v)), 0
	for range scaled(400) {
		gone := all[rnd.IntN(len(all))].Key
		p, err := v.Prune(func(s Subtree) bool { return !touches(s, [][]byte{gone}) })
		require.NoError(t, err)
		r := bagReceiver{p: p}
		b, err := v.Bag([]Want{{Key: gone, Deleted: true}}, Below{Depth: math.MaxInt, Held: r.held()})
		bag := mustDecodeBag(t, b, err)
		require.Zero(t, bag.Leaves(), "it has the leaf")
		beside += len(bag.Roots())
		require.Zero(t, r.graft(t, bag).Stale)
		next, err := r.p.Apply([]Change{{Key: gone}})
		require.NoError(t, err)
		full := mustApply(t, v, Change{Key: gone})
		require.Equal(t, full.Commitment(), next.Commitment())
		full.Release()
	}
	require.Positive(t, beside)
}

// TestDecodingAllocates: what a bag takes is a small multiple of its length, whatever it has.
func TestDecodingAllocates(t *testing.T) {
	items := func(n int) (b []byte) { // the shortest: leaves in trees of one
		b = append(b, bagVersion)
		for i := range n {
			key := []byte{byte(i >> 16), byte(i >> 8), byte(i)}
			b = appendTree(b, 1, appendLeafItem(nil, Leaf{Key: key, Value: []byte{1}}))
		}
		return b
	}
	b := items(20_000)
	_, err := DecodeBag(b)
	require.NoError(t, err)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = DecodeBag(b)
	require.NoError(t, err)
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(80*len(b)))
}

// TestGraftsAlone: a tree that only gets bags and sheds does not keep what it gave up.
func TestGraftsAlone(t *testing.T) {
	rnd := seeds.Rand(t)
	v := randomState(t, rnd, 2000)
	r := bagReceiver{depth: 3}
	r.start(t, v)
	r.p.EnableRetention(Retention{Depth: 3, Window: 1})
	for range 300 {
		b, err := v.Bag(wantsOf(randomBlock(rnd, 5, 4000, 0, false)), Below{})
		r.graft(t, mustDecodeBag(t, b, err))
		r.shed(t)
	}
	require.LessOrEqual(t, r.p.v.Memory().Versions, 4)
	require.Less(t, r.p.v.Memory().InnerNodes, uint64(2000))
}
