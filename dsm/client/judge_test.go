package client

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/internal/bubble"
	"github.com/starling-kv/starling/internal/seeds"
)

// The multiproof of an honest node never has more leaves than its wants explain. One neighbour for
// each want, plus one more leaf, is too many.
func TestUnaskedLeaves(t *testing.T) {
	rng := seeds.Rand(t)
	key := func(i int) []byte { return binary.BigEndian.AppendUint16(nil, uint16(i)) }
	var changes []avlstar.Change
	for i := 0; i < 4000; i += 4 {
		changes = append(changes, avlstar.Change{Key: key(100 + i), Value: []byte("value")})
	}
	empty, err := avlstar.Empty(512)
	require.NoError(t, err)
	v, err := empty.Apply(changes)
	require.NoError(t, err)
	empty.Release()
	defer v.Release()
	multiproof := func(wants []avlstar.Want, below avlstar.Below) *avlstar.Multiproof {
		all := slices.Clone(wants)
		b, err := v.Multiproof(all, below)
		require.NoError(t, err)
		multiproof, err := avlstar.DecodeMultiproof(b)
		require.NoError(t, err)
		return multiproof
	}
	seen := 0
	for range 300 {
		var wants []avlstar.Want
		for range 1 + rng.IntN(6) {
			w := avlstar.Want{Key: key(rng.IntN(4200)), Deleted: rng.IntN(3) == 0}
			switch rng.IntN(3) {
			case 0:
				w.Next = true
			case 1:
				w.Range = true
				if rng.IntN(5) > 0 {
					w.After = key(1 + int(binary.BigEndian.Uint16(w.Key)) + rng.IntN(300))
				}
			}
			wants = append(wants, w)
		}
		wants = dsm.Normal(wants)
		require.False(t, unaskedLeaves(multiproof(wants, avlstar.Below{Depth: rng.IntN(12)}), wants), "%v", wants)

		salt, odds := byte(rng.Uint32()), byte(rng.Uint32())
		part, err := v.Prune(func(s avlstar.Subtree) bool { return s.Hash[0]^salt < odds })
		require.NoError(t, err)
		all := slices.Clone(wants)
		if _, held := part.Version().Missing(all); len(held) > 0 {
			require.False(t, unaskedLeaves(multiproof(wants, avlstar.Below{Depth: math.MaxInt, Held: held}), wants), "%v", wants)
			seen++
		}
		part.Release()
	}
	require.Positive(t, seen, "no multiproof below held hashes was requested")
	for _, wants := range [][]avlstar.Want{
		{{Key: key(1000), Range: true, After: key(1400)}},
		{{Key: key(200)}, {Key: key(1000), Range: true, After: key(1400)}, {Key: key(1200), Range: true, After: key(1300)}},
		{{Key: key(2000), Range: true, After: key(2001)}},
	} {
		more := bytes.Clone(wants[len(wants)-1].Key)
		lie := append([]avlstar.Want{{Key: more, Range: true, After: key(3000)}}, wants...)
		require.True(t, unaskedLeaves(multiproof(lie, avlstar.Below{}), wants))
		require.False(t, unaskedLeaves(multiproof(wants, avlstar.Below{}), wants))
	}
}

// A request holds at most as many hashes as its encoding allows, whether their spans lie in the
// range or not. Otherwise nothing could be asked below more stubs.
func TestHeldHashesFitIntoARequest(t *testing.T) {
	edge := []byte("m")
	ranges, err := dsm.NewRanges([]dsm.Placement{
		{Range: avlstar.KeyRange{After: edge}, Replicas: []dsm.NodeID{"a"}}, {Range: avlstar.KeyRange{First: edge}, Replicas: []dsm.NodeID{"a"}},
	})
	require.NoError(t, err)
	below := avlstar.Below{Held: map[avlstar.Hash]avlstar.Span{}}
	for i := range dsm.MaxHeld + 10 {
		below.Held[avlstar.Hash(binary.BigEndian.AppendUint64(make([]byte, 24), uint64(i)))] = avlstar.Span{From: edge}
	}
	wants := []avlstar.Want{{Key: []byte("a")}, {Key: []byte("z")}}
	l := &layout{Map: Map{Ranges: ranges}}
	for i, held := range l.held(below, []dsm.Part{{Shard: 0, Wants: wants[:1]}, {Shard: 1, Wants: wants[1:]}}) {
		n := len(held) // a failure prints no hashes
		require.Equal(t, dsm.MaxHeld, n)
		_, err := dsm.Witness{Height: 1, MaxBytes: 1, Held: held, Wants: wants[i : i+1]}.Encode()
		require.NoError(t, err)
	}
}

// An upper tree that arrives after its fetch has ended is dropped: nobody would release it.
func TestLateUpperTree(t *testing.T) {
	v, err := avlstar.Empty(512)
	require.NoError(t, err)
	defer v.Release()
	multiproof, err := v.Upper(4)
	require.NoError(t, err)
	answer := dsm.Upper{Commitment: v.Commitment().Encode(), Multiproof: multiproof}.Encode()
	u := &upper{appHash: v.AppHash(), over: true}
	require.ErrorIs(t, u.add(answer), ErrClosed)
	require.Nil(t, u.tree)
	u.over = false
	require.NoError(t, u.add(answer))
	u.tree.Release()
}

// Old queries can ask for any number of heights. The one that was found to be gone first is
// forgotten, unless it was found again since.
func TestGoneIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Client
		for height := range int64(maxGone + 10) {
			c.gone.add(height, avlstar.KeyRange{}, 1000)
			bubble.Sleep(time.Second)
			c.gone.add(0, avlstar.KeyRange{}, 1000)
		}
		require.Len(t, c.gone.all, maxGone)
		require.Len(t, c.gone.last, maxGone)
		_, known := c.Gone(0)
		require.True(t, known)
		_, known = c.Gone(1)
		require.False(t, known)
	})
}
