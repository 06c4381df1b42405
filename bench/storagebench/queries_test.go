package storagebench

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// Ranks have the frequencies of the distribution.
func TestRanks(t *testing.T) {
	const n, draws = 1000, 200_000
	var z zipfs
	count := func(d distribution) (of [n]int) {
		ranks := d.ranks(random(3, 1), &z, n)
		for range draws {
			of[ranks()]++
		}
		return of
	}
	zipf := count(distZipf99)
	zeta := 0.0
	for i := 1; i <= n; i++ {
		zeta += math.Pow(float64(i), -0.99)
	}
	require.InEpsilon(t, draws/zeta, zipf[0], 0.05)
	require.InEpsilon(t, draws/zeta/math.Pow(2, 0.99), zipf[1], 0.05)
	require.Greater(t, zipf[0], count(distZipf80)[0]*3/2)
	normal := count(distNormal)
	within := 0
	for _, c := range normal[n/3 : 2*n/3] {
		within += c
	}
	require.InEpsilon(t, 0.683*draws, within, 0.03, "within one standard deviation, a sixth of the ranks")
	require.Equal(t, 1, distNormal.ranks(random(3, 1), &z, 1)()+1)
	require.Zero(t, distZipf99.ranks(random(3, 1), &z, 1)())
}

func TestMixes(t *testing.T) {
	d := &model{Present: []uint32{3, 5, 8}}
	for _, m := range mixes {
		txs := 0
		for _, q := range newAsker(tiny, d, distNormal, new(zipfs), 1).queries(10_000, m) {
			if q.height > 0 {
				txs++
				require.LessOrEqual(t, q.height, tiny.Blocks)
				require.Less(t, q.tx, tiny.Txs)
			} else {
				require.Contains(t, d.Present, q.account)
			}
		}
		require.InDelta(t, 1000*int(m), txs, 200)
	}
}
