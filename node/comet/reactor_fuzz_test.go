package comet

import (
	"math/rand/v2"
	"net"
	"strconv"
	"testing"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/p2p"
	p2pmock "github.com/cometbft/cometbft/p2p/mock"
	"github.com/cosmos/gogoproto/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/transport"
)

// FuzzAddressMessage sends arbitrary bytes on our p2p channel: this node remembers at most an
// address at the host of the peer's connection.
func FuzzAddressMessage(f *testing.F) {
	for _, value := range []string{"26666", "0", "65536", "-1", "+1", "026666", "26666 ", "host:26666", ""} {
		encoded, err := (&types.StringValue{Value: value}).Marshal()
		require.NoError(f, err)
		f.Add(encoded)
	}
	f.Fuzz(func(t *testing.T, encoded []byte) {
		message := new(types.StringValue)
		if err := message.Unmarshal(encoded); err != nil {
			return // as CometBFT does before it passes a message on
		}
		r := NewAddressReactor(rand.NewPCG(1, 2), nil).attach()
		r.SetLogger(log.NewNopLogger())
		peer := p2pmock.NewPeer(net.IPv4(127, 0, 0, 9))
		r.Receive(p2p.Envelope{Src: peer, ChannelID: addressChannel, Message: message})
		for _, a := range r.Known() {
			require.Equal(t, transport.ID(peer.ID()), a.ID)
			host, port, err := net.SplitHostPort(a.HostPort)
			require.NoError(t, err)
			require.Equal(t, "127.0.0.9", host)
			number, err := strconv.ParseUint(port, 10, 16)
			require.NoError(t, err)
			require.NotZero(t, number)
		}
		r.RemovePeer(peer, nil)
		require.Empty(t, r.Known())
	})
}
