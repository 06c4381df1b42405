package harness

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAtMost(t *testing.T) {
	require.Equal(t, Target{Name: "cost", Met: true, Figure: 2, Measure: "2×"}, AtMost("cost", 2, 2))
	require.Equal(t, Target{Name: "cost", Figure: 2.5, Measure: "2.5×"}, AtMost("cost", 2, 2.5))
	require.Equal(t, Target{Name: "cost", Measure: "0×", Undecided: "not measured"}, AtMost("cost", 2, Ratio(5, 0)))
}

func TestMedianAtLeast(t *testing.T) {
	target := func(low, high float64) Target {
		return MedianAtLeast("gain", 2, Interval{Median: 2, Low: low, High: high})
	}
	require.Equal(t, Target{Name: "gain", Met: true, Figure: 2, Measure: "2 [2, 3] ×"}, target(2, 3))
	require.Equal(t, Target{Name: "gain", Figure: 2, Measure: "2 [1, 1.99] ×"}, target(1, 1.99))
	for _, low := range []float64{1, 1.99} {
		require.Equal(t, "the interval contains the target", target(low, 2).Undecided)
		require.False(t, target(low, 2).Met)
	}
}

func TestOfBlocks(t *testing.T) {
	goal := Target{Name: "p99", Met: true}
	require.Equal(t, goal, goal.OfBlocks(FewBlocks, FewBlocks))
	require.Equal(t, Target{Name: "p99", Undecided: "the p99 of 299 blocks is nearly their longest time"}, goal.OfBlocks(FewBlocks-1, FewBlocks))
	goal.Undecided = NotMeasured
	require.Equal(t, goal, goal.OfBlocks(1, FewBlocks), "the first reason stays")
}
