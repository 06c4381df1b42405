package comet

import (
	"cmp"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"

	"github.com/cometbft/cometbft/p2p"
	"github.com/cometbft/cometbft/p2p/conn"
	"github.com/cosmos/gogoproto/types"

	"github.com/starling-kv/starling/transport"
)

const (
	// addressChannel is the p2p channel of AddressReactor. CometBFT's own channels are below 0x70.
	addressChannel = byte(0x7a)
	// maxAddressMessage limits its messages, in bytes: a port has five digits.
	maxAddressMessage = 64
)

// AddressReactor advertises the port of this node's transport to its p2p peers and remembers
// theirs, so that a node that joins over one transport discovers the others. Peers that are not
// Starling nodes do not have the channel.
type AddressReactor struct {
	p2p.BaseReactor
	private []string // ids whose addresses are never advertised
	mu      struct {
		sync.Mutex
		random *rand.Rand
		own    string                       // port; "": unknown, or not advertised
		peers  map[p2p.ID]transport.Address // connected peers that advertised one
	}
}

var _ p2p.Reactor = (*AddressReactor)(nil)

// NewAddressReactor returns a reactor without addresses. It draws from random, under a lock. The
// addresses of private peers (p2p.private_peer_ids) are not advertised, so that peers do not learn
// which nodes are behind a sentry.
func NewAddressReactor(random rand.Source, private []string) *AddressReactor {
	r := &AddressReactor{private: private}
	r.mu.random = rand.New(random) //nolint:gosec // peers see the draws anyway
	r.mu.peers = map[p2p.ID]transport.Address{}
	return r
}

// attach makes the reactor part of another CometBFT, since a reactor cannot be started twice.
func (r *AddressReactor) attach() *AddressReactor {
	r.BaseReactor = *p2p.NewBaseReactor("STARLING_ADDRESSES", r)
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.mu.peers)
	return r
}

// SetOwn sets the address of this node's transport. Its port is advertised to peers that connect
// afterwards.
func (r *AddressReactor) SetOwn(a net.Addr) {
	if _, port, err := net.SplitHostPort(a.String()); err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.mu.own = port
	}
}

// Of returns the transport of a connected peer, if the peer has advertised one. Private peers are
// included: the result is for this node's own use.
func (r *AddressReactor) Of(id transport.ID) (transport.Address, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a, known := r.mu.peers[p2p.ID(id)]
	return a, known
}

// Known returns the transports of the connected peers in random order, except private ones: a
// response has room for only some of them, and peers choose their own ids.
func (r *AddressReactor) Known() []transport.Address {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]transport.Address, 0, len(r.mu.peers))
	for id, a := range r.mu.peers {
		if !slices.Contains(r.private, string(id)) {
			list = append(list, a)
		}
	}
	// Sort first, so that the draw depends on the seed alone, not on the map's order.
	slices.SortFunc(list, func(a, b transport.Address) int { return cmp.Compare(a.ID, b.ID) })
	r.mu.random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// GetChannels implements p2p.Reactor.
func (r *AddressReactor) GetChannels() []*conn.ChannelDescriptor {
	return []*conn.ChannelDescriptor{{
		ID: addressChannel, Priority: 1, SendQueueCapacity: 2, RecvMessageCapacity: maxAddressMessage, MessageType: &types.StringValue{},
	}}
}

// AddPeer implements p2p.Reactor.
func (r *AddressReactor) AddPeer(peer p2p.Peer) {
	r.mu.Lock()
	own := r.mu.own
	r.mu.Unlock()
	if own != "" {
		peer.TrySend(p2p.Envelope{ChannelID: addressChannel, Message: &types.StringValue{Value: own}})
	}
}

// RemovePeer implements p2p.Reactor.
func (r *AddressReactor) RemovePeer(peer p2p.Peer, _ any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.mu.peers, peer.ID())
}

// Receive implements p2p.Reactor. A peer sends its port only; its host is that of the connection.
func (r *AddressReactor) Receive(e p2p.Envelope) {
	message, ok := e.Message.(*types.StringValue)
	if !ok {
		return
	}
	port, err := strconv.ParseUint(message.Value, 10, 16)
	if err != nil || port == 0 {
		r.Logger.Info("A peer advertised an invalid transport port", "peer", e.Src.ID(), "port", strconv.Quote(message.Value))
		return
	}
	host := e.Src.RemoteIP().String()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.peers[e.Src.ID()] = transport.Address{ID: transport.ID(e.Src.ID()), HostPort: net.JoinHostPort(host, strconv.FormatUint(port, 10))}
}
