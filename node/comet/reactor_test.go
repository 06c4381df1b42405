package comet

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/p2p"
	p2pmock "github.com/cometbft/cometbft/p2p/mock"
	"github.com/cosmos/gogoproto/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/transport"
)

// A response contains some of the known peers. Low ids, which anyone can grind, do not displace the
// others.
func TestNoIDIsKnownFirst(t *testing.T) {
	r := NewAddressReactor(rand.NewPCG(seeds.New(t), 0), nil).attach()
	r.SetLogger(log.NewNopLogger())
	const peers, answers, room = 128, 400, 64
	for range peers {
		r.Receive(p2p.Envelope{
			Src: p2pmock.NewPeer(net.IPv4(127, 0, 0, 9)), ChannelID: addressChannel, Message: &types.StringValue{Value: "26666"},
		})
	}
	first := map[transport.ID]int{}
	for range answers {
		for _, a := range r.Known()[:room] {
			first[a.ID]++
		}
	}
	require.Len(t, first, peers)
	for id, n := range first { // half of the answers, except for eight deviations
		require.InDelta(t, answers/2, n, 80, fmt.Sprint(id))
	}
}

// A sentry does not advertise the nodes behind it.
func TestPrivatePeersAreNotTold(t *testing.T) {
	validator, other := p2pmock.NewPeer(net.IPv4(127, 0, 0, 9)), p2pmock.NewPeer(net.IPv4(127, 0, 0, 9))
	r := NewAddressReactor(rand.NewPCG(1, 2), []string{string(validator.ID())}).attach()
	r.SetLogger(log.NewNopLogger())
	for _, peer := range []p2p.Peer{validator, other} {
		r.Receive(p2p.Envelope{Src: peer, ChannelID: addressChannel, Message: &types.StringValue{Value: "26666"}})
	}
	require.Equal(t, []transport.Address{{ID: transport.ID(other.ID()), HostPort: "127.0.0.9:26666"}}, r.Known())
	for _, peer := range []p2p.Peer{validator, other} { // but the node itself knows them
		a, known := r.Of(transport.ID(peer.ID()))
		require.True(t, known)
		require.Equal(t, transport.Address{ID: transport.ID(peer.ID()), HostPort: "127.0.0.9:26666"}, a)
		r.RemovePeer(peer, nil)
		_, known = r.Of(transport.ID(peer.ID()))
		require.False(t, known)
	}
}
