package avlstar

import (
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// A request for a range that the receiver claims to have completely ends soon, whatever the size of
// the tree. If its MaxBytes is enough, it is answered as without a limit.
func TestSearchForTreesIsLimited(t *testing.T) {
	rnd := seeds.Rand(t)
	v := randomState(t, rnd, 20_000)
	everything := Below{Depth: math.MaxInt, MaxBytes: 10_000}
	_, err := v.Multiproof([]Want{{Range: true}}, everything)
	require.ErrorIs(t, err, ErrMultiproofTooLarge)
	for range scaled(100) {
		wants := []Want{{Key: randomKey(rnd, 40_000), Deleted: rnd.IntN(2) == 0}}
		for range rnd.IntN(20) {
			key := randomKey(rnd, 40_000)
			wants = append(wants, Want{Key: key, Deleted: rnd.IntN(2) == 0})
			if rnd.IntN(4) == 0 {
				wants = append(wants, Want{Key: key, Range: true, After: append(key[:len(key):len(key)], 0xff)})
			}
		}
		below := Below{Depth: rnd.IntN(8)}
		want, err := v.Multiproof(wants, below)
		require.NoError(t, err)
		below.MaxBytes = len(want)
		got, err := v.Multiproof(wants, below)
		require.NoError(t, err, "%d bytes, %d wants, %+v height %d", len(want), len(wants), below, v.top.Height)
		require.Equal(t, want, got)
	}
}

// A node with a part of the tree answers with the nodes that it has. A receiver then has all
// missing nodes that are in that part.
func TestMultiproofOfPart(t *testing.T) {
	rnd := seeds.Rand(t)
	brought := 0
	// A few rounds may add no nodes.
	for round := 0; round < scaled(60) || brought == 0 && round < 1000; round++ {
		n := 1 << (2 + rnd.IntN(8))
		full := randomState(t, rnd, n)
		sparse := func() *Partial {
			salt, odds := byte(rnd.Uint32()), byte(rnd.Uint32())
			p, err := full.Prune(func(s Subtree) bool { return s.Hash[0]^salt < odds })
			require.NoError(t, err)
			return p
		}
		has, without := sparse(), sparse()
		for range 20 {
			w := Want{Key: randomKey(rnd, 2*n), Next: rnd.IntN(4) == 0, Deleted: rnd.IntN(2) == 0}
			var missing *MissingNodeError
			b, err := has.Multiproof([]Want{w}, Below{})
			if err != nil {
				require.ErrorAs(t, err, &missing)
			}
			part, partErr := has.Multiproof([]Want{w}, Below{Partly: true})
			require.NoError(t, partErr)
			if err == nil {
				require.Equal(t, b, part)
			}
			_, held := without.Version().Missing([]Want{w})
			if len(held) == 0 {
				continue
			}
			b, err = has.Multiproof([]Want{w}, Below{Depth: math.MaxInt, Held: held, Partly: true})
			multiproof := mustDecodeMultiproof(t, b, err)
			next, done, err := without.Graft(multiproof)
			require.NoError(t, err)
			require.Equal(t, len(multiproof.Roots()) > 0, done.Inner+done.Leaves > 0, "it opened nodes that were not requested")
			brought += done.Leaves
			if want, ok, err := has.Get(w.Key); err == nil && !w.Next {
				got, gotOK, err := next.Get(w.Key)
				require.NoError(t, err)
				require.Equal(t, ok, gotOK)
				require.Equal(t, want, got)
			} else {
				require.True(t, err == nil || errors.As(err, &missing))
			}
			without.Release()
			without = next
		}
		has.Release()
		without.Release()
		full.Release()
	}
	require.NotZero(t, brought)
}
