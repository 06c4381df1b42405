package restore

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/bubble"
	"github.com/starling-kv/starling/statesync/peers"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/transporttest"
)

// Advertised nodes that Options.Skip excludes are not dialled.
func TestSkippedPeersAreNotDialled(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.state(100, 10_000, 10)
		for range 3 {
			w.add(nil, 10)
		}
		p := peers.New(peers.Options{
			Logger: log.NewNopLogger(), Dialer: w.dialer(), Self: transporttest.ID(9999), Addresses: []transport.Address{addressOf(0)},
			Skip: func(id transport.ID) bool { return id == addressOf(2).ID },
		})
		w.joiner = append(w.joiner, p)
		bubble.Sleep(time.Minute)
		synctest.Wait()
		var connected []transport.ID
		for _, c := range p.Connected() {
			connected = append(connected, c.Remote().ID)
		}
		require.ElementsMatch(t, []transport.ID{addressOf(0).ID, addressOf(1).ID}, connected)
	})
}
