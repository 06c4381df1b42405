package harness

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPercentile(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(100 - i) // 100 … 1
	}
	require.Equal(t, 50.0, Percentile(hundred, 50))
	require.Equal(t, 99.0, Percentile(hundred, 99))
	require.Equal(t, 100.0, Percentile(hundred, 100))
	require.Equal(t, 1.0, Percentile(hundred, 0))
	require.Equal(t, 100.0, hundred[0], "the argument was sorted in place")
	require.Equal(t, 7.0, Percentile([]float64{7}, 99))
	require.Equal(t, 2.0, Median([]float64{3, 1, 2}))
	require.Zero(t, Percentile(nil, 50))
}
