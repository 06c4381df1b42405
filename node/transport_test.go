package node

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/transport"
)

// A response has room for a limited number of nodes: neither storage nodes nor peers fill it alone.
func TestShareAnswer(t *testing.T) {
	list := func(name string, n int) (l []transport.Address) {
		for i := range n {
			l = append(l, transport.Address{HostPort: fmt.Sprint(name, i)})
		}
		return l
	}
	for _, c := range []struct{ storage, peers, wantStorage, wantPeers int }{
		{0, 0, 0, 0}, {3, 5, 3, 5}, {0, 100, 0, 64}, {100, 0, 64, 0}, {100, 100, 32, 32}, {100, 10, 54, 10}, {10, 100, 10, 54},
	} {
		all := shareAnswer(list("storage", c.storage), list("peer", c.peers))
		require.Len(t, all, c.storage+c.peers)
		storage, peers := 0, 0
		for _, a := range all[:min(len(all), protocol.MaxPeers)] {
			if a.HostPort[0] == 's' {
				storage++
			} else {
				peers++
			}
		}
		require.Equal(t, [2]int{c.wantStorage, c.wantPeers}, [2]int{storage, peers}, "%+v", c)
	}
}
