package fetch

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// A buffer is lent once at a time, has the requested length and is not much longer; unused buffers
// are limited.
func TestBuffers(t *testing.T) {
	rng := seeds.Rand(t)
	var b Buffers
	lent, again := map[*byte][]byte{}, 0
	for range 5000 {
		if rng.IntN(2) == 0 {
			n := 1 + rng.IntN(2<<20)
			waiting := len(b.spare)
			data := b.Take(n)
			require.Len(t, data, n)
			require.LessOrEqual(t, cap(data), 4*n+1<<13, "it is rounded up at most")
			require.Nil(t, lent[&data[0]], "lent twice")
			if len(b.spare) < waiting {
				again++
			}
			lent[&data[0]] = data
		}
		for at, data := range lent {
			if len(lent) < 40 && rng.IntN(2) == 0 {
				break
			}
			delete(lent, at)
			b.Give(data)
		}
		sum := 0
		for i, data := range b.spare {
			sum += cap(data)
			require.True(t, i == 0 || cap(b.spare[i-1]) <= cap(data))
		}
		require.Equal(t, sum, b.bytes)
		require.LessOrEqual(t, sum, maxSpareBytes)
		require.LessOrEqual(t, len(b.spare), maxSpare)
	}
	require.Greater(t, again, 1000)
	b.Give(nil)
	b.Give(make([]byte, maxSpareBytes+1))
	require.LessOrEqual(t, b.bytes, maxSpareBytes)
}
