package avlstar

import (
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// A request for a range of which the receiver claims to have everything ends soon, whatever the
// tree's size; one that the bytes are enough for is answered as without a limit.
func TestSearchForTreesIsLimited(t *testing.T) {
	rnd := seeds.Rand(t)
	v := randomState(t, rnd, 20_000)
	everything := Below{Depth: math.MaxInt, MaxBytes: 10_000}
	_, err := v.Bag([]Want{{Range: true}}, everything)
	require.ErrorIs(t, err, ErrBagTooLarge)
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
		want, err := v.Bag(wants, below)
		require.NoError(t, err)
		below.MaxBytes = len(want)
		got, err := v.Bag(wants, below)
		require.NoError(t, err, "%d bytes, %d wants, %+v height %d", len(want), len(wants), below, v.top.Height)
		require.Equal(t, want, got)
	}
}

// Who has a part of the tree answers what it has: whoever lacks something has it afterwards, if the
// part had all of it.
func TestBagOfPart(t *testing.T) {
	rnd := seeds.Rand(t)
	brought := 0
	// A few rounds may bring nothing.
	for round := 0; round < scaled(60) || brought == 0 && round < 1000; round++ {
		n := 1 << (2 + rnd.IntN(8))
		full := randomState(t, rnd, n)
		sparse := func() *Partial {
			salt, odds := byte(rnd.Uint32()), byte(rnd.Uint32())
			p, err := full.Prune(func(s Subtree) bool { return s.Hash[0]^salt < odds })
			require.NoError(t, err)
			return p
		}
		has, lacks := sparse(), sparse()
		for range 20 {
			w := Want{Key: randomKey(rnd, 2*n), Next: rnd.IntN(4) == 0, Deleted: rnd.IntN(2) == 0}
			var missing *MissingNodeError
			b, err := has.Bag([]Want{w}, Below{})
			if err != nil {
				require.ErrorAs(t, err, &missing)
			}
			part, partErr := has.Bag([]Want{w}, Below{Partly: true})
			require.NoError(t, partErr)
			if err == nil {
				require.Equal(t, b, part)
			}
			_, held := lacks.Version().Lacks([]Want{w})
			if len(held) == 0 {
				continue
			}
			b, err = has.Bag([]Want{w}, Below{Depth: math.MaxInt, Held: held, Partly: true})
			bag := mustDecodeBag(t, b, err)
			next, done, err := lacks.Graft(bag)
			require.NoError(t, err)
			require.Equal(t, len(bag.Roots()) > 0, done.Inner+done.Leaves > 0, "it opened what it was not asked for")
			brought += done.Leaves
			if want, ok, err := has.Get(w.Key); err == nil && !w.Next {
				got, gotOK, err := next.Get(w.Key)
				require.NoError(t, err)
				require.Equal(t, ok, gotOK)
				require.Equal(t, want, got)
			} else {
				require.True(t, err == nil || errors.As(err, &missing))
			}
			lacks.Release()
			lacks = next
		}
		has.Release()
		lacks.Release()
		full.Release()
	}
	require.NotZero(t, brought)
}
