package node

import (
	"cmp"
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
	// addressChannel is the p2p channel of addressReactor. CometBFT's own are below 0x70.
	addressChannel = byte(0x7a)
	// maxAddressMessage bounds its messages, in bytes: a port has five digits.
	maxAddressMessage = 64
)

// addressReactor tells the p2p peers on which port this node's transport listens, and remembers theirs: so whoever joins over one
// transport hears of the others. Peers that are no Starling node do not have the channel, and hear nothing.
type addressReactor struct {
	p2p.BaseReactor
	mu struct {
		sync.Mutex
		own   string                       // port; "": not known, or not to be told
		peers map[p2p.ID]transport.Address // connected ones that told it
	}
}

var _ p2p.Reactor = (*addressReactor)(nil)

func newAddressReactor() *addressReactor {
	r := new(addressReactor)
	r.mu.peers = map[p2p.ID]transport.Address{}
	return r
}

// attach makes the reactor part of another CometBFT instance: one cannot be started twice.
func (r *addressReactor) attach() *addressReactor {
	r.BaseReactor = *p2p.NewBaseReactor("STARLING_ADDRESSES", r)
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.mu.peers)
	return r
}

func (r *addressReactor) setOwn(a net.Addr) {
	if _, port, err := net.SplitHostPort(a.String()); err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.mu.own = port
	}
}

// known returns the peers' transports, in order.
func (r *addressReactor) known() []transport.Address {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]transport.Address, 0, len(r.mu.peers))
	for _, a := range r.mu.peers {
		list = append(list, a)
	}
	slices.SortFunc(list, func(a, b transport.Address) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

// GetChannels implements p2p.Reactor.
func (r *addressReactor) GetChannels() []*conn.ChannelDescriptor {
	return []*conn.ChannelDescriptor{{
		ID: addressChannel, Priority: 1, SendQueueCapacity: 2, RecvMessageCapacity: maxAddressMessage, MessageType: &types.StringValue{},
	}}
}

// AddPeer implements p2p.Reactor.
func (r *addressReactor) AddPeer(peer p2p.Peer) {
	r.mu.Lock()
	own := r.mu.own
	r.mu.Unlock()
	if own != "" {
		peer.TrySend(p2p.Envelope{ChannelID: addressChannel, Message: &types.StringValue{Value: own}})
	}
}

// RemovePeer implements p2p.Reactor.
func (r *addressReactor) RemovePeer(peer p2p.Peer, _ any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.mu.peers, peer.ID())
}

// Receive implements p2p.Reactor. A peer names its port only: the host is the one that it is seen at.
func (r *addressReactor) Receive(e p2p.Envelope) {
	message, ok := e.Message.(*types.StringValue)
	if !ok {
		return
	}
	port, err := strconv.ParseUint(message.Value, 10, 16)
	if err != nil || port == 0 {
		r.Logger.Info("A peer tells a transport port that is none", "peer", e.Src.ID(), "port", strconv.Quote(message.Value))
		return
	}
	host := e.Src.RemoteIP().String()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.peers[e.Src.ID()] = transport.Address{ID: transport.ID(e.Src.ID()), HostPort: net.JoinHostPort(host, strconv.FormatUint(port, 10))}
}
