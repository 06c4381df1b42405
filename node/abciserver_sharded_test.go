package node

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/config"
)

// The socket serves one call at a time: a block that waits for storage nodes would block all other
// calls.
func TestSocketIsRefusedToAShardedState(t *testing.T) {
	c := config.DefaultApp()
	c.State.Mode = config.ModeSharded
	_, err := NewABCIServer(t.Context(), ABCIOptions{Address: "unix:///" + t.TempDir() + "/s", Transport: "socket", Home: t.TempDir(), Config: c})
	require.ErrorIs(t, err, ErrTransport)
	require.ErrorContains(t, err, "starlingd start")
}
