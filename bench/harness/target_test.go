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

func TestAtLeast(t *testing.T) {
	require.Equal(t, Target{Name: "gain", Met: true, Figure: 2, Measure: "2×"}, AtLeast("gain", 2, 2))
	require.Equal(t, Target{Name: "gain", Figure: 1.5, Measure: "1.5×"}, AtLeast("gain", 2, 1.5))
	require.Equal(t, Target{Name: "gain", Measure: "0×", Undecided: "not measured"}, AtLeast("gain", 2, Ratio(0, 5)))
	require.Equal(t, "not measured", MedianAtLeast("gain", 2, MedianInterval(nil)).Undecided)
}

func TestWithin(t *testing.T) {
	require.Equal(t, Target{Name: "cost", Met: true, Figure: 50, Measure: "50 ms"}, Within("cost", 50, 50, "ms"))
	require.Equal(t, Target{Name: "cost", Figure: 51, Measure: "51 ms"}, Within("cost", 50, 51, "ms"))
	require.Equal(t, "not measured", Within("cost", 50, 0, "ms").Undecided)
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
