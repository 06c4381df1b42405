package heap

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

type placed struct{ key, place int }

func TestHeapIsASortedSlice(t *testing.T) {
	rng := seeds.Rand(t)
	h := Heap[*placed]{
		Before: func(a, b *placed) bool { return a.key < b.key },
		Place:  func(p *placed) *int { return &p.place },
	}
	var naive []*placed
	for _, key := range rng.Perm(2000) {
		p := &placed{key: key}
		h.Push(p)
		at, _ := slices.BinarySearchFunc(naive, key, func(p *placed, k int) int { return p.key - k })
		naive = slices.Insert(naive, at, p)
		if rng.IntN(3) == 0 {
			at := rng.IntN(len(naive))
			h.Remove(naive[at])
			require.False(t, h.Has(naive[at]))
			naive = slices.Delete(naive, at, at+1)
		}
		require.NoError(t, h.Check())
	}
	for _, want := range naive {
		got, ok := h.First()
		require.True(t, ok)
		require.Same(t, want, got)
		h.Remove(got)
	}
	_, ok := h.First()
	require.False(t, ok)
}
