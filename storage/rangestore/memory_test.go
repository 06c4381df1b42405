package rangestore

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// TestMemory: the trees' half is divided completely, by use, with a floor for each range.
func TestMemory(t *testing.T) {
	const bytes = 80_000
	m := NewMemory(bytes)
	a := m.join()
	require.EqualValues(t, bytes/2, m.budget(a))
	b := m.join()
	require.EqualValues(t, bytes/4, m.budget(a))
	require.EqualValues(t, bytes/4, m.budget(b))
	for range 3 * divideAfter {
		m.read(a)
	}
	require.EqualValues(t, 5000, m.budget(b), "the floor")
	require.EqualValues(t, 35_000, m.budget(a))
	for range 10 * divideAfter {
		if m.read(b); m.budget(b) == 35_000 {
			break
		}
	}
	require.InDelta(t, 35_000, m.budget(b), 1000, "use is forgotten")
	m.leave(a)
	m.leave(a)
	require.EqualValues(t, bytes/2, m.budget(b))

	rng := seeds.Rand(t)
	all := []*share{b}
	for range 1000 {
		if n := len(all); n > 1 && rng.IntN(4) == 0 {
			m.leave(all[n-1])
			all = all[:n-1]
		} else if n < 10 {
			all = append(all, m.join())
		}
		for range rng.IntN(2 * divideAfter) {
			m.read(all[rng.IntN(len(all))])
		}
		sum, least := int64(0), int64(bytes)
		for _, s := range all {
			sum, least = sum+m.budget(s), min(least, m.budget(s))
		}
		require.InDelta(t, bytes/2, sum, float64(len(all)))
		require.GreaterOrEqual(t, least, int64(bytes/2/floorPart/len(all)))
	}
}
