package join

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestWeighed: the number of bytes for the scheduler grows with every 100 kB, up to chunks of 1
// GiB.
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

// TestProgress: rate and remaining time are those of this join.
func TestProgress(t *testing.T) {
	require.Equal(t, "0 of 20 chunks are there, 1.5 MB fetched now, 0.3 MB/s", progress(20, 20, 0, 1_500_000, 5*time.Second))
	require.Equal(t, "15 of 20 chunks are there, 50.0 MB fetched now, 5.0 MB/s, about 5s left", progress(5, 20, 10, 50_000_000, 10*time.Second))
	require.Equal(t, "999 of 1000 chunks are there, 9.0 MB fetched now, 0.1 MB/s, about 1s left", progress(1, 1000, 999, 9_000_000, 100*time.Second))
}
