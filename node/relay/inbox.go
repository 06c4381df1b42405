package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/cometbft/cometbft/consensus"
	cstypes "github.com/cometbft/cometbft/consensus/types"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/p2p"
	cmtcons "github.com/cometbft/cometbft/proto/tendermint/consensus"
	"github.com/cometbft/cometbft/types"
	"github.com/cosmos/gogoproto/proto"

	"github.com/starling-kv/starling/transport"
)

// maxHanding limits the messages that wait for consensus. Whoever comes when they are all used
// waits, and is told that this node is busy.
const maxHanding = 8

// inboxOptions are what an inbox needs of CometBFT.
type inboxOptions struct {
	Logger  log.Logger
	ChainID string
	// Peer returns a peer that is connected by p2p; nil: there is none with this id.
	Peer func(transport.ID) p2p.Peer
	// Ready reports whether consensus runs; while a node catches up, it drops what it receives.
	Ready func() bool
	// Round returns the state of consensus. It waits while a block is executed.
	Round func() *cstypes.RoundState
	// Receive hands a message to consensus. It waits while consensus has a long queue.
	Receive func(p2p.Envelope)
}

// inbox judges what peers relay, and hands on what consensus has a use for.
type inbox struct {
	o       inboxOptions
	handing chan struct{} // one element for each call of Round or Receive
	mu      struct {
		sync.Mutex
		// last is the newest block of which parts are wanted; nil: none was proposed yet.
		last *wanted
	}
}

// wanted is a block that consensus has the proposal of, or was handed it.
type wanted struct {
	at
	header types.PartSetHeader
	// parts has those that were handed to consensus through here, and proves each. They are the
	// ones that consensus keeps, too, so they take no memory of their own for long.
	parts *types.PartSet
	// proposed is closed once consensus was handed the proposal: it drops parts that come before.
	// It stays open if consensus failed to receive it: parts then go by p2p.
	proposed chan struct{}
}

func newWanted(a at, header types.PartSetHeader) *wanted {
	return &wanted{a, header, types.NewPartSetFromHeader(header), make(chan struct{})}
}

func newInbox(o inboxOptions) *inbox {
	return &inbox{o: o, handing: make(chan struct{}, maxHanding)}
}

// verdict is what becomes of a message, for the metrics, and the block that it is of; nil: not
// known.
type verdict struct {
	kind, outcome string
	block         *wanted
}

// take judges a message and hands it on. answer and err are for the peer.
func (in *inbox) take(ctx context.Context, q transport.Request) (answer []byte, v verdict, err error) {
	message, content, err := decode(q.Body)
	if err != nil {
		return nil, verdict{kind: Part, outcome: Refused}, in.refuse(q, err)
	}
	v.kind = kind(message)
	peer := in.o.Peer(q.Peer)
	if peer == nil || !peer.IsRunning() {
		v.outcome = Refused
		return nil, v, in.refuse(q, errStranger)
	}
	if !in.o.Ready() {
		v.outcome = Unwanted
		return nil, v, transport.ErrGone
	}
	switch c := content.(type) {
	case *consensus.ProposalMessage:
		v.outcome, v.block, err = in.proposal(ctx, peer, message, c.Proposal)
	case *consensus.BlockPartMessage:
		v.outcome, v.block, err = in.part(ctx, peer, message, c)
	}
	switch {
	case v.outcome == Refused:
		err = in.refuse(q, err)
	case err == nil && v.block != nil:
		// Other peers send parts of the block meanwhile, which this one need not send any more.
		answer = v.block.parts.BitArray().Bytes()
	}
	return answer, v, err
}

var errStranger = errors.New("it is not connected by p2p")

// refuse says in the log why a message is refused, and returns what the peer is told.
func (in *inbox) refuse(q transport.Request, why error) error {
	in.o.Logger.Debug("Refused a relayed message", "peer", q.Peer, "err", why)
	return transport.ErrRefused
}

// proposal takes a proposal of the round that consensus is in, if the proposer has signed it.
func (in *inbox) proposal(ctx context.Context, peer p2p.Peer, message proto.Message, p *types.Proposal) (string, *wanted, error) {
	if w := in.wanted(at{p.Height, p.Round}); w != nil && w.header.Equals(p.BlockID.PartSetHeader) {
		noteProposal(peer, p)
		return Again, w, nil
	}
	rs, err := in.round(ctx)
	if err != nil {
		return Busy, nil, err
	}
	if rs.Height != p.Height || rs.Round != p.Round || rs.Validators == nil || rs.Validators.Proposer == nil {
		return Unwanted, nil, transport.ErrGone
	}
	if !rs.Validators.Proposer.PubKey.VerifySignature(types.ProposalSignBytes(in.o.ChainID, p.ToProto()), p.Signature) {
		return Refused, nil, fmt.Errorf("%w: a proposal that the proposer has not signed", errMessage)
	}
	if rs.Proposal != nil { // it came by p2p, or another one did: consensus keeps the first
		noteProposal(peer, p)
		return Again, nil, nil
	}
	if err := in.enter(ctx); err != nil {
		return Busy, nil, err
	}
	w := in.want(at{p.Height, p.Round}, p.BlockID.PartSetHeader)
	if w == nil {
		<-in.handing // another peer was faster
		noteProposal(peer, p)
		return Again, nil, nil
	}
	outcome, err := in.hand(ctx, p2p.Envelope{Src: peer, ChannelID: consensus.DataChannel, Message: message}, w.proposed)
	return outcome, w, err
}

// part takes a part of the block whose proposal consensus has, or was handed.
func (in *inbox) part(ctx context.Context, peer p2p.Peer, message proto.Message, m *consensus.BlockPartMessage) (string, *wanted, error) {
	a := at{m.Height, m.Round}
	w := in.wanted(a)
	if w == nil {
		var err error
		if w, err = in.ask(ctx, a, nil); err != nil {
			return Busy, nil, err
		}
	}
	for w != nil {
		select {
		case <-w.proposed:
		case <-ctx.Done():
			return Busy, nil, transport.ErrBusy
		}
		if err := in.enter(ctx); err != nil {
			return Busy, nil, err
		}
		added, wrong := w.parts.AddPart(m.Part) // which proves it
		if added {
			outcome, err := in.hand(ctx, p2p.Envelope{Src: peer, ChannelID: consensus.DataChannel, Message: message}, nil)
			return outcome, w, err
		}
		<-in.handing
		// Where that part is there, AddPart has not looked at this one: it may be of another block,
		// which consensus still lacks.
		if wrong == nil && !isOf(m.Part, w.header) {
			wrong = types.ErrPartSetInvalidProof
		}
		if wrong == nil {
			notePart(peer, m)
			return Again, w, nil
		}
		// A proposer that signs two blocks may have had consensus take the other one.
		other, err := in.ask(ctx, a, w)
		switch {
		case err != nil:
			return Busy, nil, err
		case other == w:
			return Refused, nil, wrong
		}
		w = other
	}
	return Unwanted, nil, transport.ErrGone
}

func isOf(p *types.Part, header types.PartSetHeader) bool {
	return p.Proof.Total == int64(header.Total) && p.Proof.Verify(header.Hash, p.Bytes) == nil
}

// ask returns the block that consensus takes the parts of, if it is in that round; nil: it takes
// none. If it is the one that is wanted already, it stays.
func (in *inbox) ask(ctx context.Context, a at, now *wanted) (*wanted, error) {
	rs, err := in.round(ctx)
	if err != nil {
		return nil, err
	}
	if (at{rs.Height, rs.Round}) != a || rs.ProposalBlockParts == nil {
		return now, nil
	}
	header := rs.ProposalBlockParts.Header()
	in.mu.Lock()
	defer in.mu.Unlock()
	if last := in.mu.last; last == nil || last.at != a || !last.header.Equals(header) {
		in.mu.last = newWanted(a, header)
		close(in.mu.last.proposed) // consensus has it
	}
	return in.mu.last, nil
}

// wanted returns the block of a height and round; nil: none is wanted.
func (in *inbox) wanted(a at) *wanted {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.mu.last == nil || in.mu.last.at != a {
		return nil
	}
	return in.mu.last
}

// want begins to take the parts of a block, unless it has begun already, or with one of a later
// round: then it returns nil. Of a round it takes the first block, as consensus does.
func (in *inbox) want(a at, header types.PartSetHeader) *wanted {
	in.mu.Lock()
	defer in.mu.Unlock()
	if last := in.mu.last; last != nil && (a.height < last.height || a.height == last.height && a.round <= last.round) {
		return nil
	}
	in.mu.last = newWanted(a, header)
	return in.mu.last
}

// round returns the state of consensus, unless ctx ends before.
func (in *inbox) round(ctx context.Context) (rs *cstypes.RoundState, err error) {
	if err := in.enter(ctx); err != nil {
		return nil, err
	}
	got := make(chan *cstypes.RoundState, 1)
	go func() {
		defer func() { <-in.handing }()
		got <- in.o.Round()
	}()
	select {
	case rs = <-got:
		return rs, nil
	case <-ctx.Done():
		return nil, transport.ErrBusy
	}
}

// enter takes a place of handing, which the caller, or hand, gives back.
func (in *inbox) enter(ctx context.Context) error {
	select {
	case in.handing <- struct{}{}:
		return nil
	case <-ctx.Done():
		return transport.ErrBusy
	}
}

// hand gives a message to consensus, and then closes handed, if that is not nil. It does so even if
// ctx ends before consensus takes it: the peer then sends it by p2p, too. Consensus that has failed
// takes nothing any more, and keeps at most maxHanding goroutines, as it keeps those of p2p.
func (in *inbox) hand(ctx context.Context, e p2p.Envelope, handed chan<- struct{}) (string, error) {
	done := make(chan error, 1)
	go func() {
		defer func() { <-in.handing }()
		defer func() {
			if cause := recover(); cause != nil { // as p2p survives a panic about a message
				in.o.Logger.Error("Consensus failed to receive a relayed message", "peer", e.Src.ID(), "err", cause)
				done <- transport.ErrFailed
			}
		}()
		in.o.Receive(e)
		if handed != nil {
			close(handed)
		}
		done <- nil
	}()
	select {
	case err := <-done:
		if err != nil {
			return Failed, err
		}
		return Taken, nil
	case <-ctx.Done():
		return Busy, transport.ErrBusy
	}
}

// noteProposal has consensus know that a peer has a proposal, so that it is not sent to it.
func noteProposal(peer p2p.Peer, p *types.Proposal) {
	if s, is := peer.Get(types.PeerStateKey).(*consensus.PeerState); is {
		s.SetHasProposal(p)
	}
	if l := linkOf(peer); l != nil {
		l.noteProposal(&cmtcons.Proposal{Proposal: *p.ToProto()})
	}
}

// notePart has consensus know that a peer has a part.
func notePart(peer p2p.Peer, m *consensus.BlockPartMessage) {
	if s, is := peer.Get(types.PeerStateKey).(*consensus.PeerState); is {
		s.SetHasProposalBlockPart(m.Height, m.Round, int(m.Part.Index))
	}
}
