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
