package rdma

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A path lends a share of the memory, within limits.
func TestUnitsFor(t *testing.T) {
	for _, c := range []struct {
		mib, peers int
		want       int
	}{
		{256, 0, 128}, {256, 1, 128}, {256, 6, 128}, {256, 7, 122}, {256, 12, 61}, {256, 25, 16}, {256, 26, 16}, {256, 1000, 16},
		{64, 1, 128}, {64, 2, 104}, {1280, 128, 16}, {2560, 128, 56}, {1, 1, 16}, {1 << 30, 1, 128},
	} {
		require.Equal(t, c.want, unitsFor(int64(c.mib)<<20, c.peers), "%d MiB, %d peers", c.mib, c.peers)
	}
}

// All peers fit with a path in each direction, as long as each has the least share, and little
// memory is left.
func TestAllPeersFit(t *testing.T) {
	const memory = 256 << 20
	for peers := 1; peers <= 25; peers++ {
		f := New(Options{Memory: memory, Peers: peers})
		to, from := lendingSizes(f.o.units), writerSizes(f.o.window)
		for range peers {
			require.NoError(t, f.take(to.Lent+to.Own), "%d peers", peers)
			require.NoError(t, f.take(from.Lent+from.Own), "%d peers", peers)
		}
		if f.o.units < mostUnits {
			require.Less(t, memory-f.mu.memory, int64(peers*(unit+1)), "%d peers", peers)
		}
	}
}
