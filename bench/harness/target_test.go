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

func TestOfBlocks(t *testing.T) {
	goal := Target{Name: "p99", Met: true}
	require.Equal(t, goal, goal.OfBlocks(FewBlocks, FewBlocks))
	require.Equal(t, Target{Name: "p99", Undecided: "the p99 of 299 blocks is nearly their longest time"}, goal.OfBlocks(FewBlocks-1, FewBlocks))
	goal.Undecided = NotMeasured
	require.Equal(t, goal, goal.OfBlocks(1, FewBlocks), "the first reason stays")
}
