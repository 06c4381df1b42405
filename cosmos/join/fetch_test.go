package join

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWeighed: what the scheduler is told of grows with every 100 kB, up to chunks of 1 GiB.
func TestWeighed(t *testing.T) {
	last := int64(0)
	for raw := int64(100_000); raw < 1<<30; raw += 100_000 {
		n := weighed(raw)
		require.Greater(t, n, last)
		require.LessOrEqual(t, n, min(raw, maxAnswer))
		last = n
	}
	require.LessOrEqual(t, weighed(1<<62), int64(maxAnswer))
}
