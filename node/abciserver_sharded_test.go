package node

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/config"
)

// A socket takes one call at a time: a block that waits for storage nodes would hold up all others.
func TestSocketIsRefusedToAShardedState(t *testing.T) {
	c := config.DefaultApp()
	c.State.Mode = config.ModeSharded
	_, err := NewABCIServer(t.Context(), ABCIOptions{Address: "unix:///" + t.TempDir() + "/s", Transport: "socket", Home: t.TempDir(), Config: c})
	require.ErrorIs(t, err, ErrTransport)
	require.ErrorContains(t, err, "starlingd start")
}
