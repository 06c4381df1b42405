package catchup

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// Each height is handed out once until it is given back, the lowest first, and never more heights
// at once than were asked for.
func TestWindow(t *testing.T) {
	random := seeds.Rand(t)
	w := newWindow(5)
	out := map[int64]bool{}
	var taken []span
	last := int64(5)
	for range 5000 {
		if len(taken) > 0 && random.IntN(2) == 0 {
			i := random.IntN(len(taken))
			s := taken[i]
			taken = append(taken[:i], taken[i+1:]...)
			s.from += random.Int64N(s.to - s.from + 2) // the heights before have arrived
			w.giveBack(s)
			for h := s.from; h <= s.to; h++ {
				delete(out, h)
			}
			continue
		}
		lowest, count := w.lowest(), 1+random.IntN(20)
		last += random.Int64N(10)
		s, ok := w.take(last, count)
		if !ok {
			require.Greater(t, lowest, last)
			continue
		}
		require.Equal(t, lowest, s.from)
		require.LessOrEqual(t, s.to, last)
		require.LessOrEqual(t, s.to-s.from+1, int64(count))
		for h := s.from; h <= s.to; h++ {
			require.False(t, out[h], "height %d is handed out twice", h)
			out[h] = true
		}
		taken = append(taken, s)
	}
	for {
		s, ok := w.take(last, 1)
		if !ok {
			break
		}
		out[s.from] = true
	}
	require.Len(t, out, int(last-5), "no height is lost")
}

// The leases of a room together have no more than it holds, except that of the next block.
func TestRoom(t *testing.T) {
	r := room{most: 100}
	first, second, next := leases{room: &r}, leases{room: &r}, leases{room: &r}
	a, b, c := first.take(), second.take(), next.take()
	require.True(t, a.resize(60, false))
	require.False(t, b.resize(41, false))
	require.True(t, b.resize(40, false))
	require.False(t, a.resize(61, false))
	require.True(t, c.resize(1000, true))
	require.True(t, a.resize(50, false), "a lease may always shrink")
	require.False(t, a.resize(51, false))
	next.end(nil)
	require.True(t, a.resize(60, false))
	require.False(t, c.resize(0, true), "it was released")
	require.Equal(t, int64(100), r.mu.used)
	first.end(a)
	require.False(t, first.take().resize(0, true), "the search is over")
	second.end(nil)
	require.Equal(t, int64(60), r.mu.used)
}
