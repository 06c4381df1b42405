package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The summary of the log of the joiner's container.
func TestSeen(t *testing.T) {
	log := `joiner_1  | I[2026-01-02|03:04:05.006] Starting                                     module=main
joiner_1  | I[2026-01-02|03:04:05.006] Joining: restoring a snapshot                module=join height=60 chunks=264
joiner_1  | E[2026-01-02|03:04:05.006] Banned a peer that sent invalid data         module=join peer=ab12 reason="a false chunk"
joiner_1  | I[2026-01-02|03:04:05.006] Joining: the state is restored               module=join height=60 chunks=264 bytes=4200000 seconds=1.5 rejected=3 banned=1
joiner_1  | more
`
	var said strings.Builder
	require.NoError(t, seen(t.Context(), strings.NewReader(log), &said))
	require.Equal(t, `the joiner restores the snapshot at height 60: 264 chunks
the joiner bans the peer ab12: a false chunk
restored in 1.5 s: 264 chunks with 4.2 MB verified, 3 rejected, peers banned: 1
`, said.String())
	require.ErrorContains(t, seen(t.Context(), strings.NewReader(log[:200]), &said), "ended before the join did")
}
