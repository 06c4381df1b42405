package cli

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The report names the side that limits the packet size.
func TestPackets(t *testing.T) {
	require.Equal(t, "packets of 1024 bytes: limited by the local MTU, the peer supports 4096", packets(1024, 4096))
	require.Equal(t, "packets of 2048 bytes: limited by the peer's MTU, the local port supports 4096", packets(4096, 2048))
	require.Equal(t, "packets of 4096 bytes, the MTU of both ports", packets(4096, 4096))
}
