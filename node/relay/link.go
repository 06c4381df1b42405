package relay

import (
	"context"
	"errors"
	"math/bits"
	"sync"
	"time"

	"github.com/cometbft/cometbft/consensus"
	"github.com/cometbft/cometbft/p2p"
	cmtcons "github.com/cometbft/cometbft/proto/tendermint/consensus"
	"github.com/cometbft/cometbft/types"
	"github.com/cosmos/gogoproto/proto"

	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/transport"
)

// dialTimeout limits a dial.
const dialTimeout = 5 * time.Second

// retryAfter is the time after which a message that p2p did not accept either is retried.
const retryAfter = 100 * time.Millisecond

// sender is a p2p peer as consensus sees it: some of the messages to it take the link.
type sender struct {
	p2p.Peer
	link *link
}

// Send implements p2p.Peer. It returns true if the peer has the message, or will have it while it
// stays connected: consensus does not send it again.
func (s *sender) Send(e p2p.Envelope) bool { return s.link.send(e, true) || s.Peer.Send(e) }

// TrySend implements p2p.Peer.
func (s *sender) TrySend(e p2p.Envelope) bool { return s.link.send(e, false) || s.Peer.TrySend(e) }

// at is a step of consensus.
type at struct {
	height int64
	round  int32
}

// link relays to one peer while it is connected over p2p.
type link struct {
	r    *Relay
	peer p2p.Peer // the original p2p peer
	ctx  context.Context
	end  context.CancelFunc // ends ctx, all calls and the connection
	mu   struct {
		sync.Mutex
		pace pace
		// freed is closed, and replaced, when a slot becomes free.
		freed   chan struct{}
		conn    transport.Conn // nil: none
		dialing bool
		again   time.Time // time of the next dial
		// has is the last proposal that the peer has: parts of other proposals go over p2p, because
		// the peer's inbox would refuse them.
		has at
	}
}

func (r *Relay) newLink(peer p2p.Peer) *link {
	l := &link{r: r, peer: peer}
	l.ctx, l.end = context.WithCancel(r.ctx) //nolint:gosec // RemovePeer calls it, or Close ends all
	l.mu.freed = make(chan struct{})
	l.mu.has = at{-1, -1}
	return l
}

// noteProposal records that the peer has the proposal of a height and round.
func (l *link) noteProposal(p *cmtcons.Proposal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.has = at{p.Proposal.Height, p.Proposal.Round}
}

// send relays a message, and returns whether it did; otherwise the caller sends it over p2p. It
// returns before a part is delivered: from then on the link must deliver it. If wait is false, it
// does not wait for a slot.
func (l *link) send(e p2p.Envelope, wait bool) bool {
	if e.ChannelID != consensus.DataChannel {
		return false
	}
	switch m := e.Message.(type) {
	case *cmtcons.Proposal:
		conn := l.acquire(wait)
		if conn == nil {
			return false
		}
		defer l.release()
		// Parts must not overtake the proposal, so it is delivered before this returns.
		if !l.call(conn, e) {
			return false
		}
		l.noteProposal(m)
		return true
	case *cmtcons.BlockPart:
		if !l.knows(at{m.Height, m.Round}) {
			return false
		}
		conn := l.acquire(wait)
		if conn == nil {
			return false
		}
		if !l.r.enter() {
			l.release()
			return false
		}
		go func() {
			defer l.r.wg.Done()
			defer l.release()
			if !l.call(conn, e) {
				l.insist(e)
			}
		}()
		return true
	}
	return false
}

// insist sends a message over p2p, with retries: consensus assumes that the peer has it, until the
// peer disconnects or enters another round.
func (l *link) insist(e p2p.Envelope) {
	for !l.peer.Send(e) && l.ctx.Err() == nil && l.peer.IsRunning() {
		_ = sleep.For(l.ctx, retryAfter)
	}
}

// acquire takes a slot for a message, and returns the connection; nil: there is none, or it must
// not be used now.
func (l *link) acquire(wait bool) transport.Conn {
	for {
		now := time.Now()
		l.mu.Lock()
		conn := l.connection(now)
		if conn == nil || l.r.o.Path != nil && !l.r.o.Path(conn) {
			l.mu.Unlock()
			return nil
		}
		may, later := l.mu.pace.may(now)
		freed := l.mu.freed
		l.mu.Unlock()
		switch {
		case may:
			return conn
		case !later || !wait:
			return nil
		}
		select {
		case <-freed:
		case <-l.ctx.Done():
			return nil
		}
	}
}

// knows reports whether the peer has the proposal of a height and round.
func (l *link) knows(a at) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.has == a
}

func (l *link) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.pace.ended()
	close(l.mu.freed)
	l.mu.freed = make(chan struct{})
}

// connect begins to dial, if there is no connection.
func (l *link) connect() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.connection(time.Now())
}

// connection returns the connection, or begins to dial; nil: none yet. The caller holds l.mu.
func (l *link) connection(now time.Time) transport.Conn {
	if l.mu.conn != nil {
		return l.mu.conn
	}
	if l.mu.dialing || now.Before(l.mu.again) || l.ctx.Err() != nil {
		return nil
	}
	address, known := l.r.o.Address(transport.ID(l.peer.ID()))
	if !known || !l.r.enter() {
		return nil
	}
	l.mu.dialing = true
	go func() {
		defer l.r.wg.Done()
		l.keep(address)
	}()
	return nil
}

// keep connects, and returns when the connection or the link ends.
func (l *link) keep(a transport.Address) {
	ctx, cancel := context.WithTimeout(l.ctx, dialTimeout)
	began := time.Now()
	conn, err := l.r.o.Dialer.Dial(ctx, a)
	cancel()
	l.mu.Lock()
	l.mu.dialing = false
	if err != nil {
		now := time.Now()
		l.mu.pace.failed(began, now)
		l.mu.again = later(l.mu.pace.until, now.Add(leastPause))
		l.mu.Unlock()
		l.r.o.Logger.Debug("Cannot relay to a peer", "address", a, "err", err)
		return
	}
	l.mu.conn = conn
	l.mu.Unlock()
	l.r.connected(1)
	select {
	case <-conn.Done():
	case <-l.ctx.Done():
	}
	conn.Close()
	l.mu.Lock()
	l.mu.conn, l.mu.again = nil, time.Now().Add(leastPause)
	l.mu.Unlock()
	l.r.connected(-1)
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// noteParts records in consensus the parts of a message's block that a peer has, according to its
// answer. A peer that reports parts that it does not have gets them from others, or late. header is
// that of the block for which the message was sent: if the peer has switched to another block
// since, the answer does not apply to that one.
func noteParts(peer p2p.Peer, message proto.Message, header types.PartSetHeader, answer []byte) {
	state, is := peer.Get(types.PeerStateKey).(*consensus.PeerState)
	if !is || len(answer) == 0 {
		return
	}
	var a at
	switch m := message.(type) {
	case *cmtcons.Proposal:
		a = at{m.Proposal.Height, m.Proposal.Round}
		// This creates the set in which the parts are recorded. Consensus would do so a moment
		// later.
		if p, err := types.ProposalFromProto(&m.Proposal); err == nil {
			state.SetHasProposal(p)
		}
	case *cmtcons.BlockPart:
		a = at{m.Height, m.Round}
	}
	var known []byte
	rs := state.GetRoundState()
	if !rs.ProposalBlockPartSetHeader.Equals(header) {
		return
	}
	if set := rs.ProposalBlockParts; set != nil {
		known = set.Bytes()
	}
	for i, b := range answer {
		if i < len(known) {
			b &^= known[i]
		}
		for ; b != 0; b &= b - 1 {
			state.SetHasProposalBlockPart(a.height, a.round, 8*i+bits.TrailingZeros8(b))
		}
	}
}

// headerOf returns the part set header of a message's block.
func headerOf(peer p2p.Peer, message proto.Message) types.PartSetHeader {
	if m, is := message.(*cmtcons.Proposal); is {
		h := m.Proposal.BlockID.PartSetHeader
		return types.PartSetHeader{Total: h.Total, Hash: h.Hash}
	}
	if state, is := peer.Get(types.PeerStateKey).(*consensus.PeerState); is {
		return state.GetRoundState().ProposalBlockPartSetHeader
	}
	return types.PartSetHeader{}
}

// call sends a message over a connection, and reports whether the peer accepted it.
func (l *link) call(conn transport.Conn, e p2p.Envelope) bool {
	body := encode(e.Message)
	if body == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(l.ctx, lateAfter)
	defer cancel()
	began, header := time.Now(), headerOf(l.peer, e.Message)
	answer, err := conn.Call(ctx, transport.Call{Method: Method, Body: body, Max: maxAnswer})
	now := time.Now()
	if err == nil {
		noteParts(l.peer, e.Message, header, answer)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	outcome := Taken
	switch {
	case err == nil:
		l.mu.pace.delivered()
	case errors.Is(err, transport.ErrGone): // the peer cannot use it now
		outcome = Unwanted
	case errors.Is(err, context.DeadlineExceeded):
		outcome = Late
		l.mu.pace.late(began, now)
	case errors.Is(err, transport.ErrBusy):
		outcome = Busy
		l.mu.pace.late(began, now)
	case errors.Is(err, transport.ErrRefused):
		outcome = Refused
		l.mu.pace.failed(began, now)
	default:
		outcome = Failed
		l.mu.pace.failed(began, now)
	}
	l.r.o.Hooks.sent(kind(e.Message), outcome)
	return err == nil
}
