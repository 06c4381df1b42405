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
	require.Equal(t, 2.5, Median([]float64{4, 1, 2, 3}))
	require.Equal(t, 2.0, LowerMedian([]float64{4, 1, 2, 3}), "a value of the sample")
	require.Zero(t, Median(nil))
	require.Zero(t, Percentile(nil, 50))
}

func TestMedianInterval(t *testing.T) {
	require.Equal(t, Interval{}, MedianInterval(nil))
	require.Equal(t, Interval{Median: 7, Low: 7, High: 7}, MedianInterval([]float64{7}))
	// From the tables of the sign test: 7 values need all of them, 9 values need the second from
	// each end.
	for n, want := range map[int]Interval{
		5:  {3, 1, 5, 1 - 2*1./32},
		6:  {3.5, 1, 6, 1 - 2*1./64},
		7:  {4, 1, 7, 1 - 2*1./128},
		8:  {4.5, 1, 8, 1 - 2*1./256},
		9:  {5, 2, 8, 1 - 2*10./512},
		11: {6, 2, 10, 1 - 2*12./2048},
		15: {8, 4, 12, 1 - 2*576./32768},
	} {
		var sample []float64
		for i := range n {
			sample = append(sample, float64(n-i))
		}
		got := MedianInterval(sample)
		require.InDelta(t, want.Confidence, got.Confidence, 1e-9, "%d values", n)
		got.Confidence = want.Confidence
		require.Equal(t, want, got, "%d values", n)
		require.Equal(t, float64(n), sample[0], "the argument was sorted in place")
	}
	require.Equal(t, "4.0 [1.0, 7.0]", Interval{Median: 4, Low: 1, High: 7}.Text("%.1f"))
}

func TestCount(t *testing.T) {
	require.Equal(t, "0 chunks", Count(0, "chunk"))
	require.Equal(t, "1 chunk", Count(1, "chunk"))
	require.Equal(t, "1,234,567 keys", Count(1_234_567, "key"))
	require.Equal(t, "2 batches", Count(2, "batch"))
	require.Equal(t, "-1,000", Group(-1000))
}
