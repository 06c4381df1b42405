package relay

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cometbft/cometbft/consensus"
	cstypes "github.com/cometbft/cometbft/consensus/types"
	"github.com/cometbft/cometbft/libs/log"
	cometnode "github.com/cometbft/cometbft/node"
	"github.com/cometbft/cometbft/p2p"
	cmtcons "github.com/cometbft/cometbft/proto/tendermint/consensus"
	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/transport"
)

// Kinds of relayed messages, for Hooks.
const (
	Proposal = "proposal"
	Part     = "part"
)

// Kinds lists the kinds of relayed messages.
var Kinds = []string{Proposal, Part}

// Outcomes of a relayed message, for Hooks. At the sender, all except Taken go over p2p.
const (
	Taken    = "taken"
	Unwanted = "unwanted" // not usable now: another height or round, no proposal, or no consensus
	Late     = "late"     // not answered within 100 ms
	Busy     = "busy"
	Refused  = "refused" // no relay there, an unknown sender, or an invalid message
	Failed   = "failed"  // for example because of the network
	Again    = "again"   // at the receiver: it had the message already
)

// Outcomes lists the outcomes of a relayed message.
var Outcomes = []string{Taken, Unwanted, Late, Busy, Refused, Failed, Again}

// Options configure a Relay.
type Options struct {
	Logger  log.Logger
	ChainID string
	// Dialer connects to the transports of peers; nil: all messages go over p2p. Address returns
	// the transport of a p2p peer, if it is known.
	Dialer  transport.Dialer
	Address func(transport.ID) (transport.Address, bool)
	// Path reports whether a connection may be used now; nil: always.
	Path  func(transport.Conn) bool
	Hooks Hooks
}

// Hooks are called for metrics. Any may be nil. They are called concurrently and must not block.
type Hooks struct {
	Sent, Received func(kind, outcome string)
	// Connections is called with the change of the number of connections to peers.
	Connections func(by int)
}

func (h Hooks) sent(kind, outcome string) {
	if h.Sent != nil {
		h.Sent(kind, outcome)
	}
}

func (h Hooks) received(kind, outcome string) {
	if h.Received != nil {
		h.Received(kind, outcome)
	}
}

// Relay relays for the CometBFT of the last call of Wrap. It is safe for concurrent use.
type Relay struct {
	o      Options
	inbox  atomic.Pointer[inbox] // nil: no CometBFT yet
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup // calls and dials; see enter
	mu     struct {
		sync.Mutex
		closed bool
	}
}

// New creates a relay. Close ends it.
func New(o Options) *Relay {
	r := &Relay{o: o}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r
}

// enter counts a goroutine, unless the relay is closed.
func (r *Relay) enter() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.closed {
		return false
	}
	r.wg.Add(1)
	return true
}

// Close ends all calls and connections, and waits for them. Messages in flight go over p2p if that
// still runs.
func (r *Relay) Close() {
	r.mu.Lock()
	r.mu.closed = true
	r.mu.Unlock()
	r.cancel()
	r.wg.Wait()
}

func (r *Relay) connected(by int) {
	if r.o.Hooks.Connections != nil {
		r.o.Hooks.Connections(by)
	}
}

// Register registers the handler of relayed messages, if there is a Dialer.
func (r *Relay) Register(mux *transport.Mux) {
	if r.o.Dialer == nil {
		return
	}
	mux.Handle(Method, transport.Weighed(transport.HandlerFunc(r.serve), func(q transport.Request) int64 { return int64(len(q.Body)) }))
}

// serve handles a message. If it was accepted, the answer lists the parts of the block that this
// node has.
func (r *Relay) serve(ctx context.Context, q transport.Request) ([]byte, error) {
	in := r.inbox.Load()
	if in == nil {
		return nil, transport.ErrGone
	}
	answer, v, err := in.take(ctx, q)
	r.o.Hooks.received(v.kind, v.outcome)
	return answer, err
}

// Wrap returns the reactor that replaces a node's consensus reactor. The node must not have been
// started.
func (r *Relay) Wrap(n *cometnode.Node) (p2p.Reactor, error) {
	env, err := n.ConfigureRPC()
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	state, is := env.ConsensusState.(interface {
		GetRoundState() *cstypes.RoundState
	})
	if !is {
		return nil, fmt.Errorf("relay: %T does not expose its round state", env.ConsensusState)
	}
	w := &reactor{
		Reactor: n.ConsensusReactor(), relay: r, events: n.EventBus(),
		push: newPusher(env.PubKey.Address(), state.GetRoundState, n.ConsensusReactor().Quit(), r.o.Logger),
	}
	if r.o.Dialer == nil {
		return w, nil
	}
	r.inbox.Store(newInbox(inboxOptions{
		Logger: r.o.Logger, ChainID: r.o.ChainID, Round: state.GetRoundState, Receive: w.Receive,
		Peer:  func(id transport.ID) p2p.Peer { return n.Switch().Peers().Get(p2p.ID(id)) },
		Ready: func() bool { return w.IsRunning() && !w.WaitSync() },
	}))
	return w, nil
}

// reactor is CometBFT's consensus reactor with a pusher and, if there is a Dialer, links for
// sending. All its other methods are promoted: block sync finds those that it looks for.
type reactor struct {
	*consensus.Reactor
	relay  *Relay
	push   *pusher
	events *types.EventBus
}

// Start implements p2p.Reactor.
func (w *reactor) Start() error {
	if err := w.Reactor.Start(); err != nil {
		return err
	}
	return w.push.start(w.events)
}

// linkKey is the key under which a peer stores its link.
const linkKey = "starling_relay"

func linkOf(peer p2p.Peer) *link {
	l, _ := peer.Get(linkKey).(*link)
	return l
}

// InitPeer implements p2p.Reactor. It returns a peer that sends through a link to consensus; all
// other reactors keep the original peer.
func (w *reactor) InitPeer(peer p2p.Peer) p2p.Peer {
	if w.relay.o.Dialer == nil {
		return w.Reactor.InitPeer(peer)
	}
	l := w.relay.newLink(peer)
	peer.Set(linkKey, l)
	w.Reactor.InitPeer(&sender{peer, l})
	return peer
}

// AddPeer implements p2p.Reactor.
func (w *reactor) AddPeer(peer p2p.Peer) {
	w.Reactor.AddPeer(peer)
	w.push.add(peer)
}

// RemovePeer implements p2p.Reactor.
func (w *reactor) RemovePeer(peer p2p.Peer, reason any) {
	if l := linkOf(peer); l != nil {
		l.end()
	}
	w.Reactor.RemovePeer(peer, reason)
}

// Receive implements p2p.Reactor.
func (w *reactor) Receive(e p2p.Envelope) {
	switch m := e.Message.(type) {
	case *cmtcons.Proposal:
		if l := linkOf(e.Src); l != nil {
			l.noteProposal(m)
		}
	case *cmtcons.NewRoundStep:
		if state, is := e.Src.Get(types.PeerStateKey).(*consensus.PeerState); is {
			before := state.GetRoundState()
			w.Reactor.Receive(e)
			if now := state.GetRoundState(); now.Height != before.Height || now.Round != before.Round {
				w.push.moved(e.Src)
			}
			return
		}
	}
	w.Reactor.Receive(e)
}
