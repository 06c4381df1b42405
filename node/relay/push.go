package relay

import (
	"context"
	"fmt"
	"sync"

	"github.com/cometbft/cometbft/consensus"
	cstypes "github.com/cometbft/cometbft/consensus/types"
	"github.com/cometbft/cometbft/libs/bits"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/p2p"
	cmtcons "github.com/cometbft/cometbft/proto/tendermint/consensus"
	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"
	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/internal/wake"
)

// pusher sends a validator's own votes and proposals to its peers without waiting for CometBFT's
// gossip, which looks for what a peer does not have each peer_gossip_sleep_duration. Gossip stays
// the way of everything else: what others signed, and what is for other heights and rounds.
type pusher struct {
	own    string // address of this validator when it started
	quit   <-chan struct{}
	logger log.Logger
	// round waits while consensus handles a message, which may be the execution of a block. So only
	// one goroutine calls it, and votes come from their event.
	round func() *cstypes.RoundState
	look  chan struct{} // capacity 1: a peer is due

	mu    sync.Mutex
	size  heightSize               // guarded by mu: of the validator set that was seen last
	peers map[p2p.Peer]*pushedPeer // guarded by mu
}

// heightSize is the number of validators of a height.
type heightSize struct {
	height int64
	size   int
}

// pushedPeer is a peer to which two goroutines push: one votes, so that they do not wait for block
// parts, and one what the state of a round has.
type pushedPeer struct {
	p2p.Peer
	state  *consensus.PeerState
	votes  chan one
	rounds chan *cstypes.RoundState // capacity 1
	due    bool                     // guarded by pusher.mu: it gets the next state of the round
	vote   sync.Mutex               // held while a vote is sent, so that it is sent once
}

// newPusher makes a pusher that ends when quit is closed.
func newPusher(own types.Address, round func() *cstypes.RoundState, quit <-chan struct{}, logger log.Logger) *pusher {
	return &pusher{
		own: string(own), quit: quit, logger: logger, round: round,
		look: make(chan struct{}, 1), peers: map[p2p.Peer]*pushedPeer{},
	}
}

// start begins to push. The event bus must run, and must end after the call.
func (p *pusher) start(bus *types.EventBus) error {
	// A subscriber with a buffer would lose its subscription when that is full.
	votes, err := bus.SubscribeUnbuffered(context.Background(), "starling-push", types.EventQueryVote)
	if err != nil {
		return fmt.Errorf("relay: votes of this node: %w", err)
	}
	go p.follow(votes)
	go p.read()
	return nil
}

// follow pushes the votes of this validator, until the event bus ends.
func (p *pusher) follow(votes types.Subscription) {
	for {
		select {
		case m := <-votes.Out():
			if e, is := m.Data().(types.EventDataVote); is && string(e.Vote.ValidatorAddress) == p.own {
				p.voted(e.Vote)
			}
		case <-votes.Canceled():
			return
		}
	}
}

// voted hands a vote to the goroutines of all peers. A prevote follows the proposal, and a height's
// first vote may come before the number of validators is known: then peers also need the round's
// state.
func (p *pusher) voted(vote *types.Vote) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.size.height == vote.Height
	for _, to := range p.peers {
		if known {
			select {
			case to.votes <- one{vote, p.size.size}:
			default: // gossip sends it
			}
		}
		if !known || vote.Type == cmtproto.PrevoteType {
			p.expect(to)
		}
	}
}

// expect makes read hand the state of the round to a peer. It is called under p.mu.
func (p *pusher) expect(to *pushedPeer) {
	to.due = true
	wake.Up(p.look)
}

// moved is called when a peer has moved to another height or round.
func (p *pusher) moved(peer p2p.Peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if to := p.peers[peer]; to != nil {
		p.expect(to)
	}
}

// read hands the state of the round to the peers that are due.
func (p *pusher) read() {
	for {
		select {
		case <-p.look:
		case <-p.quit:
			return
		}
		rs := p.round()
		if rs.Validators == nil || rs.Votes == nil {
			continue
		}
		p.mu.Lock()
		p.size = heightSize{rs.Height, rs.Validators.Size()}
		for _, to := range p.peers {
			if !to.due {
				continue
			}
			to.due = false
			select {
			case <-to.rounds: // an earlier one
			default:
			}
			to.rounds <- rs // has room: only this goroutine sends
		}
		p.mu.Unlock()
	}
}

// add pushes to a peer until it disconnects.
func (p *pusher) add(peer p2p.Peer) {
	state, is := peer.Get(types.PeerStateKey).(*consensus.PeerState)
	if !is {
		return
	}
	to := &pushedPeer{Peer: peer, state: state, votes: make(chan one, 4), rounds: make(chan *cstypes.RoundState, 1)}
	p.mu.Lock()
	p.peers[peer] = to
	p.expect(to)
	p.mu.Unlock()
	go func() {
		each(p, to, to.votes, func(o one) { send(to, o) })
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.peers, peer)
	}()
	go each(p, to, to.rounds, func(rs *cstypes.RoundState) { p.pushRound(to, rs) })
}

// each calls push with everything that a channel has for a peer, until the peer disconnects or the
// pusher ends.
func each[T any](p *pusher, to *pushedPeer, from <-chan T, push func(T)) {
	for {
		select {
		case t := <-from:
			push(t)
		case <-to.Quit():
			return
		case <-p.quit:
			return
		}
	}
}

// pushRound sends a peer of the same height and round what this validator has signed there. It also
// connects the peer's link, because a block whose proposal finds no connection goes over p2p.
func (p *pusher) pushRound(to *pushedPeer, rs *cstypes.RoundState) {
	index, _ := rs.Validators.GetByAddress([]byte(p.own))
	prs := to.state.GetRoundState()
	if index < 0 || prs.Height != rs.Height || prs.Round != rs.Round {
		return
	}
	if l := linkOf(to.Peer); l != nil {
		l.connect()
	}
	for _, votes := range []*types.VoteSet{rs.Votes.Prevotes(rs.Round), rs.Votes.Precommits(rs.Round)} {
		if votes != nil {
			if vote := votes.GetByIndex(index); vote != nil {
				send(to, one{vote, rs.Validators.Size()})
			}
		}
	}
	if proposer := rs.Validators.Proposer; proposer != nil && string(proposer.Address) == p.own {
		p.pushProposal(to.state, rs, prs)
	}
}

// pushProposal sends a peer in the state prs the proposal and the parts that it does not have.
func (p *pusher) pushProposal(to *consensus.PeerState, rs *cstypes.RoundState, prs *cstypes.PeerRoundState) {
	if rs.Proposal == nil {
		return
	}
	if !prs.Proposal {
		to.SendProposalSetHasProposal(p.logger, rs, prs)
		prs = to.GetRoundState()
	}
	for prs.Height == rs.Height && rs.ProposalBlockParts.HasHeader(prs.ProposalBlockPartSetHeader) {
		index, some := rs.ProposalBlockParts.BitArray().Sub(prs.ProposalBlockParts).PickRandom()
		if !some || !to.SendPartSetHasPart(rs.ProposalBlockParts.GetPart(index), prs) {
			return
		}
		prs = to.GetRoundState()
	}
}

// send sends a vote to a peer, unless the peer has it or would drop it. The peer would not get a
// dropped vote again, because it counts as sent.
func send(to *pushedPeer, o one) {
	to.vote.Lock()
	defer to.vote.Unlock()
	if !useful(o.vote, to.state.GetRoundState()) {
		return
	}
	if vote := to.state.PickVoteToSend(o); vote != nil &&
		to.Send(p2p.Envelope{ChannelID: consensus.VoteChannel, Message: &cmtcons.Vote{Vote: vote.ToProto()}}) {
		to.state.SetHasVote(vote)
	}
}

// useful reports whether a peer can use a vote: one of its height and round, or a late precommit
// for the block after which it pauses.
func useful(vote *types.Vote, prs *cstypes.PeerRoundState) bool {
	if prs.Height == vote.Height {
		return prs.Round == vote.Round
	}
	return vote.Type == cmtproto.PrecommitType && prs.Height == vote.Height+1 && prs.LastCommitRound == vote.Round &&
		prs.Step == cstypes.RoundStepNewHeight
}

// one is a set of votes of which this node knows one.
type one struct {
	vote       *types.Vote
	validators int
}

var _ types.VoteSetReader = one{}

// The methods of types.VoteSetReader.
func (o one) GetHeight() int64             { return o.vote.Height }
func (o one) GetRound() int32              { return o.vote.Round }
func (o one) Type() byte                   { return byte(o.vote.Type) }
func (o one) Size() int                    { return o.validators }
func (o one) GetByIndex(int32) *types.Vote { return o.vote }
func (o one) IsCommit() bool               { return false }

func (o one) BitArray() *bits.BitArray {
	b := bits.NewBitArray(o.validators)
	b.SetIndex(int(o.vote.ValidatorIndex), true)
	return b
}
