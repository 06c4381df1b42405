package avlstar

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// The methods that examine a multiproof agree with the tree about the requested keys.
func TestMultiproofsAreJudged(t *testing.T) {
	rng := seeds.Rand(t)
	var changes []Change
	for i := range 300 {
		changes = append(changes, Change{Key: []byte{byte(i >> 8), byte(i), byte(rng.IntN(256))}, Value: []byte("value")})
	}
	empty, err := Empty(512)
	require.NoError(t, err)
	v, err := empty.Apply(changes)
	require.NoError(t, err)
	empty.Release()
	defer v.Release()
	for range 100 {
		var wants []Want
		for range 1 + rng.IntN(10) {
			wants = append(wants, Want{Key: changes[rng.IntN(len(changes))].Key})
		}
		b, err := v.Multiproof(wants, Below{Depth: rng.IntN(6)})
		require.NoError(t, err)
		multiproof, err := DecodeMultiproof(b)
		require.NoError(t, err)
		for _, w := range wants {
			require.False(t, multiproof.Omits(w))
			below, ok := multiproof.LeafBelow(append(bytes.Clone(w.Key), 0))
			require.True(t, ok)
			require.Equal(t, w.Key, below)
			above, ok := multiproof.LeafAbove(justBelow(w.Key))
			require.True(t, ok)
			require.Equal(t, w.Key, above)
		}
		omitted := 0
		for _, c := range changes {
			asked := false
			for _, w := range wants {
				asked = asked || bytes.Equal(w.Key, c.Key)
			}
			if multiproof.Omits(Want{Key: c.Key}) {
				omitted++
				require.False(t, asked)
			}
		}
		roots := multiproof.Roots()
		if len(roots) == 1 {
			require.NotZero(t, omitted)
		}
		keys := slices.Collect(multiproof.LeafKeys())
		require.Len(t, keys, multiproof.Leaves())
		require.True(t, slices.IsSortedFunc(keys, bytes.Compare))
		for _, w := range wants {
			require.Contains(t, keys, w.Key)
		}
		kept := roots[rng.IntN(len(roots))]
		require.Same(t, multiproof, multiproof.Only(func(Stub) bool { return true }))
		one := multiproof.Only(func(root Stub) bool { return root == kept })
		require.Equal(t, []Stub{kept}, one.Roots())
		rest := multiproof.Only(func(root Stub) bool { return root != kept })
		require.Equal(t, multiproof.Leaves(), one.Leaves()+rest.Leaves())

		// It is grafted as if the others had not been sent.
		p, err := NewPartial(v.Commitment())
		require.NoError(t, err)
		upper, err := v.Upper(6)
		require.NoError(t, err)
		above, err := DecodeMultiproof(upper)
		require.NoError(t, err)
		base, _, err := p.Graft(above)
		require.NoError(t, err)
		p.Release()
		same, nothing, err := base.Graft(multiproof.Only(func(Stub) bool { return false }))
		require.NoError(t, err)
		require.Zero(t, nothing.Inner+nothing.Leaves)
		same.Release()
		next, done, err := base.Graft(one)
		require.NoError(t, err)
		require.LessOrEqual(t, done.Leaves, one.Leaves())
		base.Release()
		next.Release()
	}
}
