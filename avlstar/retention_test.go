package avlstar

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// TestLeastStays: nodes that changed in the last blocks stay in memory as long as Least requires,
// however small the window and the budget are, and leave it afterwards.
func TestLeastStays(t *testing.T) {
	rnd := seeds.Rand(t)
	for range scaled(10) {
		const n = 2000
		v := randomState(t, rnd, n)
		r := multiproofReceiver{depth: rnd.IntN(3)}
		r.start(t, v)
		least := 0
		r.p.EnableRetention(Retention{
			Depth: r.depth, Window: rnd.IntN(3), Budget: func() int64 { return 1 }, Least: func() int { return least },
		})
		var blocks [][]Change
		for i := range 60 {
			block := slices.DeleteFunc(randomBlock(rnd, 20, 2*n, 0.1, false), func(c Change) bool {
				value, ok := mustGet(t, v, c.Key)
				return ok && bytes.Equal(c.Value, value) // it changes nothing
			})
			b, err := v.Multiproof(wantsOf(block), Below{})
			r.graft(t, mustDecodeMultiproof(t, b, err))
			next := mustApply(t, v, block...)
			for {
				after, err := r.p.Apply(block)
				if err == nil {
					r.p.Release()
					r.p = after
					break
				}
				var missing *MissingNodeError
				require.ErrorAs(t, err, &missing)
				r.ask(t, v, missing, block)
			}
			v.Release()
			v = next
			if least++; i < 50 && rnd.IntN(5) == 0 {
				least = rnd.IntN(least + 1) // others are on disk
			}
			blocks = append(blocks, block)
			r.shed(t)
			r.require(t, v)
			var changed [][]byte
			for _, block := range blocks[max(0, len(blocks)-least):] {
				for _, c := range block {
					changed = append(changed, c.Key)
				}
			}
			for _, key := range changed {
				if mustHas(t, v, key) { // a neighbour of an absent key may be older
					_, ok, err := r.p.Get(key)
					require.NoError(t, err)
					require.True(t, ok)
				}
			}
		}
		before := r.p.v.Memory()
		least = 0
		for range 30 {
			r.shed(t)
		}
		after := r.p.v.Memory()
		require.Less(t, after.InnerNodes+after.Leaves-after.Held, before.InnerNodes+before.Leaves-before.Held, "it leaves memory then")
		r.p.Release()
		v.Release()
	}
}

// TestPreferStaysWithinTheBudget: nodes that Prefer names stay whatever their age while the tree is
// within its budget. They leave when it is not, or when there is no budget.
func TestPreferStaysWithinTheBudget(t *testing.T) {
	for _, budget := range []bool{true, false} {
		v := randomState(t, seeds.Rand(t), 3000)
		p, err := v.Prune(func(Subtree) bool { return false })
		require.NoError(t, err)
		limit, low, high := int64(1<<40), []byte{0x40}, []byte{0x80}
		preferred := KeyRange{low, high}
		r := Retention{Depth: 2, Window: 1, Prefer: func(first, after []byte) bool {
			return bytes.Compare(first, high) < 0 && (after == nil || bytes.Compare(after, low) > 0)
		}}
		if budget {
			r.Budget = func() int64 { return limit }
		}
		p.EnableRetention(r)
		want := leavesOf(t, v, preferred)
		require.NotEmpty(t, want)
		stubs := func() (inside, outside int) {
			for range 40 {
				next, err := p.Shed()
				require.NoError(t, err)
				p.Release()
				p = next
			}
			for s := range p.Stubs(nil) {
				if preferred.Contains(s.First) {
					inside++
				} else {
					outside++
				}
			}
			return inside, outside
		}
		inside, outside := stubs()
		require.Positive(t, outside)
		if budget {
			require.Zero(t, inside)
			require.True(t, slices.EqualFunc(want, mustReplicaLeaves(t, p, preferred), func(a, b Leaf) bool { return bytes.Equal(a.Key, b.Key) }))
			limit = 1
			inside, _ = stubs()
		}
		require.Positive(t, inside)
		p.Release()
		v.Release()
	}
}
