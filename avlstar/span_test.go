package avlstar

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// TestSpans: a receiver that asks several ranges of keys, each for its own wants below the stubs
// whose spans overlap it, receives the same nodes as from one node with the full tree.
func TestSpans(t *testing.T) {
	rnd := seeds.Rand(t)
	fewer := 0
	for range scaled(150) {
		n := 1 + rnd.IntN(600)
		v := randomState(t, rnd, n)
		depth := rnd.IntN(8)
		whole, parts := multiproofReceiver{depth: depth}, multiproofReceiver{depth: depth}
		whole.start(t, v)
		parts.start(t, v)
		edges := randomEdges(rnd, n)
		block := randomBlock(rnd, 1+rnd.IntN(40), 2*n, 0.5, false)

		lacking, held := parts.p.v.Missing(wantsOf(block))
		fewer += parts.askParts(t, v, edges, lacking, held)
		lacking, _ = parts.p.v.Missing(wantsOf(block))
		again, heldWhole := whole.p.v.Missing(wantsOf(block))
		b, err := v.Multiproof(again, Below{Depth: math.MaxInt, Held: heldWhole})
		whole.graft(t, mustDecodeMultiproof(t, b, err))
		again, _ = whole.p.v.Missing(wantsOf(block))
		require.Equal(t, again, lacking)

		for {
			next, err := whole.p.Apply(block)
			other, why := parts.p.Apply(block)
			var missing, missed *MissingNodeError
			if !errors.As(err, &missing) {
				require.NoError(t, err)
				require.NoError(t, why)
				require.Equal(t, next.Commitment(), other.Commitment())
				next.Release()
				other.Release()
				break
			}
			require.ErrorAs(t, why, &missed)
			require.Equal(t, missing.Held(), missed.Held())
			whole.ask(t, v, missing, block)
			fewer += parts.askParts(t, v, edges, missed.Wants(block), missed.Held())
		}
		whole.p.Release()
		parts.p.Release()
		v.Release()
	}
	require.Positive(t, fewer, "all stubs went to all ranges")
}

// randomEdges returns keys at which a range ends and the next begins, ascending.
func randomEdges(rnd *rand.Rand, n int) (edges [][]byte) {
	for _, c := range randomBlock(rnd, rnd.IntN(6), 2*n, 0, false) {
		edges = append(edges, c.Key)
	}
	slices.SortFunc(edges, bytes.Compare)
	return edges
}

// askParts asks the range of each want, and returns the number of stubs that were not sent to some
// range.
func (r *multiproofReceiver) askParts(t *testing.T, v *Version, edges [][]byte, wants []Want, held map[Hash]Span) (fewer int) {
	index := func(key []byte) int {
		i, found := slices.BinarySearchFunc(edges, key, bytes.Compare)
		if found {
			i++
		}
		return i
	}
	parts := make([][]Want, len(edges)+1)
	for _, w := range wants {
		parts[index(w.Key)] = append(parts[index(w.Key)], w)
	}
	var multiproofs []*Multiproof
	for i, wants := range parts {
		if len(wants) == 0 {
			continue
		}
		part := map[Hash]Span{}
		for h, s := range held {
			if index(s.From) <= i && (s.To == nil || i <= index(s.To)) {
				part[h] = s
			}
		}
		fewer += len(held) - len(part)
		b, err := v.Multiproof(wants, Below{Depth: math.MaxInt, Held: part})
		multiproofs = append(multiproofs, mustDecodeMultiproof(t, b, err))
	}
	r.graft(t, multiproofs...)
	return fewer
}
