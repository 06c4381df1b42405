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

// maxHanding limits the messages that wait for consensus. A sender that finds no free slot waits,
// and is then told that this node is busy.
const maxHanding = 8

// inboxOptions connects an inbox to CometBFT.
type inboxOptions struct {
	Logger  log.Logger
	ChainID string
	// Peer returns a peer connected over p2p; nil: none has this id.
	Peer func(transport.ID) p2p.Peer
	// Ready reports whether consensus runs; while a node catches up, it drops what it receives.
	Ready func() bool
	// Round returns the state of consensus. It waits while a block is executed.
	Round func() *cstypes.RoundState
	// Receive hands a message to consensus. It waits while consensus has a long queue.
	Receive func(p2p.Envelope)
}

// inbox checks relayed messages, and passes those that consensus can use to it.
type inbox struct {
	o       inboxOptions
	handing chan struct{} // one element for each call of Round or Receive
	mu      struct {
		sync.Mutex
		// last is the newest block whose parts are wanted; nil: none was proposed yet.
		last *wanted
	}
}

// wanted is a block whose proposal consensus has, or was passed.
type wanted struct {
	at
	header types.PartSetHeader
	// parts holds the parts passed to consensus by the inbox, and verifies each part. Consensus
	// keeps the same parts, so they take no extra memory for long.
	parts *types.PartSet
	// proposed is closed once consensus was passed the proposal: it drops parts that arrive
	// earlier. It stays open if consensus failed to receive the proposal: parts then go over p2p.
	proposed chan struct{}
}

func newWanted(a at, header types.PartSetHeader) *wanted {
	return &wanted{a, header, types.NewPartSetFromHeader(header), make(chan struct{})}
}

func newInbox(o inboxOptions) *inbox {
	return &inbox{o: o, handing: make(chan struct{}, maxHanding)}
}

// verdict is the outcome of a message, for the metrics, and its block; nil: unknown.
type verdict struct {
	kind, outcome string
	block         *wanted
}

// take checks a message and passes it on. answer and err are the response to the peer.
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
		// Meanwhile other peers send parts of the block, which this peer need not send any more.
		answer = v.block.parts.BitArray().Bytes()
	}
	return answer, v, err
}

var errStranger = errors.New("the peer is not connected over p2p")

// refuse logs why a message is refused, and returns the error for the peer.
func (in *inbox) refuse(q transport.Request, why error) error {
	in.o.Logger.Debug("Refused a relayed message", "peer", q.Peer, "err", why)
	return transport.ErrRefused
}

// proposal accepts a proposal for the current round of consensus if the proposer signed it.
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
		return Refused, nil, fmt.Errorf("%w: a proposal without the proposer's signature", errMessage)
	}
	if rs.Proposal != nil { // one arrived over p2p: consensus keeps the first
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

// part accepts a part of the block whose proposal consensus has, or was passed.
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
		added, wrong := w.parts.AddPart(m.Part) // verifies it
		if added {
			outcome, err := in.hand(ctx, p2p.Envelope{Src: peer, ChannelID: consensus.DataChannel, Message: message}, nil)
			return outcome, w, err
		}
		<-in.handing
		// If the part already exists, AddPart has not verified this one: it may be of another
		// block, which consensus does not have yet.
		if wrong == nil && !isOf(m.Part, w.header) {
			wrong = types.ErrPartSetInvalidProof
		}
		if wrong == nil {
			notePart(peer, m)
			return Again, w, nil
		}
		// If a proposer signs two blocks, consensus may have accepted the other one.
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

// ask returns the block whose parts consensus is accepting, if it is in that round; nil: none. If
// that block is already the wanted one, it stays.
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

// wanted returns the wanted block of a height and round; nil: none.
func (in *inbox) wanted(a at) *wanted {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.mu.last == nil || in.mu.last.at != a {
		return nil
	}
	return in.mu.last
}

// want makes a block the wanted one. It returns nil if the wanted block has a later round. Like
// consensus, it accepts the first block of a round.
func (in *inbox) want(a at, header types.PartSetHeader) *wanted {
	in.mu.Lock()
	defer in.mu.Unlock()
	if last := in.mu.last; last != nil && (a.height < last.height || a.height == last.height && a.round <= last.round) {
		return nil
	}
	in.mu.last = newWanted(a, header)
	return in.mu.last
}

// round returns the state of consensus, unless ctx ends first.
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

// enter takes a slot of handing, which the caller, or hand, releases.
func (in *inbox) enter(ctx context.Context) error {
	select {
	case in.handing <- struct{}{}:
		return nil
	case <-ctx.Done():
		return transport.ErrBusy
	}
}

// hand passes a message to consensus, and then closes handed if it is not nil. It does so even if
// ctx ends before consensus accepts the message: the peer then sends it over p2p as well. After
// consensus has failed it accepts nothing, which blocks at most maxHanding goroutines, as it blocks
// those of p2p.
func (in *inbox) hand(ctx context.Context, e p2p.Envelope, handed chan<- struct{}) (string, error) {
	done := make(chan error, 1)
	go func() {
		defer func() { <-in.handing }()
		defer func() {
			if cause := recover(); cause != nil { // p2p also survives a panic about a message
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

// noteProposal records in consensus that a peer has a proposal, so that it is not sent to the peer.
func noteProposal(peer p2p.Peer, p *types.Proposal) {
	if s, is := peer.Get(types.PeerStateKey).(*consensus.PeerState); is {
		s.SetHasProposal(p)
	}
	if l := linkOf(peer); l != nil {
		l.noteProposal(&cmtcons.Proposal{Proposal: *p.ToProto()})
	}
}

// notePart records in consensus that a peer has a part.
func notePart(peer p2p.Peer, m *consensus.BlockPartMessage) {
	if s, is := peer.Get(types.PeerStateKey).(*consensus.PeerState); is {
		s.SetHasProposalBlockPart(m.Height, m.Round, int(m.Part.Index))
	}
}
