package peers

import (
	"strings"
	"testing"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/transport"
)

// However many peers are banned, few bans are remembered, with few bytes of each reason; all are
// counted.
func TestBansAreBounded(t *testing.T) {
	told := 0
	p := New(Options{Logger: log.NewNopLogger(), Banned: func(transport.ID, statesync.BanReason) { told++ }})
	defer p.Close()
	const n = maxBanned + 100
	for i := range n {
		p.Ban(idOf(i), statesync.BanChunk, strings.Repeat("x", 10*maxReason))
		p.Ban(idOf(i), statesync.BanChunk, "again")
	}
	_, banned := p.Addresses()
	require.Len(t, banned, maxBanned)
	require.NotContains(t, banned, idOf(0), "the oldest is forgotten")
	require.Contains(t, banned, idOf(n-1))
	for _, reason := range banned {
		require.LessOrEqual(t, len(reason), maxReason)
	}
	_, count := p.Count()
	require.Equal(t, n, count)
	require.Equal(t, n, told, "each once")
}
