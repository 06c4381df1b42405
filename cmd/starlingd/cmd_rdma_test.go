package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The check of a path says which side limits its packets.
func TestPackets(t *testing.T) {
	require.Equal(t, "with packets of 1024 bytes: the MTU here limits them, the peer takes 4096", packets(1024, 4096))
	require.Equal(t, "with packets of 2048 bytes: the peer's MTU limits them, 4096 would do here", packets(4096, 2048))
	require.Equal(t, "with packets of 4096 bytes, which is what both ports take", packets(4096, 4096))
}
