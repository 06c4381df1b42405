package avlstar

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// Several ranges of a state, in memory or paged, give the multiproofs and the upper tree of the
// full tree. If some ranges are elsewhere, this holds for wants that need nothing of them.
func TestMultiproofOfShares(t *testing.T) {
	usual := tune
	t.Cleanup(func() { tune = usual })
	rnd := seeds.Rand(t)
	across := 0
	for round := 0; round < scaled(100) || across == 0 && round < 1000; round++ {
		tune.pageBytes = []uint64{60, 200, 500, 2000}[rnd.IntN(4)]
		n := 1 << rnd.IntN(10)
		v := randomState(t, rnd, n)
		receiver, err := v.Prune(func(s Subtree) bool { return s.Height < 6 && s.Hash[0] < 100 })
		require.NoError(t, err)
		ranges := randomRanges(rnd, 1+rnd.IntN(8), 2*n)
		if rnd.IntN(3) == 0 { // they overlap
			for i := range len(ranges) - 1 {
				ranges[i].After = ranges[i+1].After
			}
		}
		all := shareOf(t, rnd, v, ranges)
		for range 10 {
			shares := all
			if rnd.IntN(2) == 0 {
				shares = someShares(rnd, all)
			}
			wants := wantsIn(rnd, shares, 2*n, len(shares) == len(all))
			below := Below{Depth: rnd.IntN(8)}
			if rnd.IntN(2) == 0 {
				_, held := receiver.v.Missing(wants)
				below = Below{Depth: math.MaxInt, Held: held}
			}
			want, err := v.Multiproof(wants, below)
			require.NoError(t, err)
			got, err := MultiproofOf(shares, wants, below)
			require.NoError(t, err, "%v of %v", wants, ranges)
			require.Equal(t, want, got, "%v of %v", wants, ranges)
			if len(shares) > 1 && len(got) > 1 {
				across++
			}
		}
		for depth := range 5 {
			want, err := v.Upper(depth)
			require.NoError(t, err)
			got, err := UpperOf(all, depth, 0)
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
		receiver.Release()
		v.Release()
		for _, s := range all {
			s.Version.Release()
		}
	}
	require.Positive(t, across)
}

// shareOf returns replicas of ranges.
func shareOf(t *testing.T, rnd *rand.Rand, v *Version, ranges []KeyRange) (shares []Share) {
	for _, r := range ranges {
		var p *Partial
		if rnd.IntN(2) == 0 {
			p = mustReplica(t, v, r)
		} else {
			p = mustPagedReplica(t, v, newRangeDisk(rnd, r), func() int64 { return 0 })
		}
		shares = append(shares, Share{p.v, r})
	}
	return shares
}

// someShares returns some of the shares, at least one, in their order.
func someShares(rnd *rand.Rand, all []Share) (shares []Share) {
	for len(shares) == 0 {
		for _, s := range all {
			if rnd.IntN(2) == 0 {
				shares = append(shares, s)
			}
		}
	}
	return shares
}

// wantsIn returns wants that shares have, with deletions if deleted is set.
func wantsIn(rnd *rand.Rand, shares []Share, keys int, deleted bool) (wants []Want) {
	for range 1 + rnd.IntN(20) {
		r := shares[rnd.IntN(len(shares))].Range
		w := Want{Key: r.First, Written: rnd.IntN(4) == 0, Deleted: deleted && rnd.IntN(3) == 0}
		if key := randomKey(rnd, keys); r.Contains(key) {
			w.Key = key
		}
		switch rnd.IntN(6) {
		case 0:
			if w.Range = true; len(r.After) > 0 {
				w.After = r.After
			}
		case 1: // the path to the edge is in the boundary proof
			if len(r.After) > 0 {
				w.Key = r.After
			}
		}
		wants = append(wants, w)
	}
	return wants
}

// Versions of several states give no multiproof, and one of several ranges has no next keys.
func TestMultiproofOfOtherShares(t *testing.T) {
	v := stateOf(t, 50, 40)
	low, high := KeyRange{After: []byte("k20")}, KeyRange{First: []byte("k20")}
	shares := []Share{{mustReplica(t, v, low).v, low}, {mustReplica(t, v, high).v, high}}
	_, err := MultiproofOf(shares, []Want{{Key: []byte("k10"), Next: true}}, Below{})
	require.ErrorIs(t, err, errNextOfShares)
	next := mustApply(t, v, Change{[]byte("k30"), []byte("other")})
	shares[1].Version = mustReplica(t, next, high).v
	_, err = MultiproofOf(shares, []Want{{Key: []byte("k10")}}, Below{})
	require.ErrorIs(t, err, errOtherShare)
	shares[1].Version = shares[0].Version
	_, err = MultiproofOf(shares, []Want{{Key: []byte("k30")}}, Below{})
	require.ErrorAs(t, err, new(*MissingNodeError))
	part, err := MultiproofOf(shares, []Want{{Key: []byte("k10")}, {Key: []byte("k30")}}, Below{Partly: true})
	require.NoError(t, err)
	require.Positive(t, mustDecodeMultiproof(t, part, err).Leaves())
}
