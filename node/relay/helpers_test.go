package relay

import (
	"net"
	"sync"
	"testing"
	"time"

	"github.com/cometbft/cometbft/consensus"
	cstypes "github.com/cometbft/cometbft/consensus/types"
	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/p2p"
	p2pmock "github.com/cometbft/cometbft/p2p/mock"
	cmtcons "github.com/cometbft/cometbft/proto/tendermint/consensus"
	"github.com/cometbft/cometbft/types"
	"github.com/cosmos/gogoproto/proto"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/transport"
)

const testChain = "test-chain"

// fakePeer is a p2p peer that stores its messages in sent.
type fakePeer struct {
	*p2pmock.Peer
	mu   sync.Mutex
	sent []p2p.Envelope
	full bool // it accepts no messages
}

func newFakePeer() *fakePeer { return &fakePeer{Peer: p2pmock.NewPeer(net.IPv4(127, 0, 0, 9))} }

func (p *fakePeer) Send(e p2p.Envelope) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.full {
		return false
	}
	p.sent = append(p.sent, e)
	return true
}

func (p *fakePeer) TrySend(e p2p.Envelope) bool { return p.Send(e) }

func (p *fakePeer) setFull(full bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.full = full
}

func (p *fakePeer) got() []p2p.Envelope {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]p2p.Envelope(nil), p.sent...)
}

func (p *fakePeer) id() transport.ID { return transport.ID(p.ID()) }

// block is a proposed block with some parts.
type block struct {
	proposal *types.Proposal
	parts    *types.PartSet
}

func newBlock(tb testing.TB, key ed25519.PrivKey, height int64, round int32, bytes int) block {
	tb.Helper()
	data := make([]byte, bytes)
	for i := range data {
		data[i] = byte(i ^ i>>8 ^ i>>16 ^ int(height))
	}
	parts := types.NewPartSetFromData(data, types.BlockPartSizeBytes)
	p := types.NewProposal(height, round, -1, types.BlockID{Hash: make([]byte, 32), PartSetHeader: parts.Header()})
	p.Timestamp = time.Unix(1_700_000_000, 0).UTC()
	var err error
	p.Signature, err = key.Sign(types.ProposalSignBytes(testChain, p.ToProto()))
	require.NoError(tb, err)
	return block{p, parts}
}

func (b block) proposalMessage() *cmtcons.Proposal {
	return &cmtcons.Proposal{Proposal: *b.proposal.ToProto()}
}

func (b block) partMessage(tb testing.TB, index int) *cmtcons.BlockPart {
	tb.Helper()
	p, err := b.parts.GetPart(index).ToProto()
	require.NoError(tb, err)
	// a copy that tests may damage
	p.Bytes = append([]byte(nil), p.Bytes...)
	return &cmtcons.BlockPart{Height: b.proposal.Height, Round: b.proposal.Round, Part: *p}
}

func envelope(m proto.Message) p2p.Envelope {
	return p2p.Envelope{ChannelID: consensus.DataChannel, Message: m}
}

// receiver is an inbox over a simulated consensus.
type receiver struct {
	*inbox
	key   ed25519.PrivKey // of the proposer
	peers map[transport.ID]*fakePeer
	mu    struct {
		sync.Mutex
		ready    bool
		rs       cstypes.RoundState
		received []p2p.Envelope
	}
	stuck chan struct{} // Receive blocks until it is closed
	slow  chan struct{} // Receive of a proposal blocks until this is closed; nil: it does not
}

// newReceiver is at height 5, round 0.
func newReceiver(peers ...*fakePeer) *receiver {
	r := &receiver{key: ed25519.GenPrivKeyFromSecret([]byte("proposer")), peers: map[transport.ID]*fakePeer{}, stuck: make(chan struct{})}
	close(r.stuck)
	for _, p := range peers {
		p.Set(types.PeerStateKey, consensus.NewPeerState(p))
		r.peers[p.id()] = p
	}
	r.mu.ready = true
	r.mu.rs = cstypes.RoundState{Height: 5, Validators: types.NewValidatorSet([]*types.Validator{types.NewValidator(r.key.PubKey(), 10)})}
	r.inbox = newInbox(inboxOptions{
		Logger: log.NewNopLogger(), ChainID: testChain,
		Peer: func(id transport.ID) p2p.Peer {
			if p := r.peers[id]; p != nil {
				return p
			}
			return nil
		},
		Ready: func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.mu.ready
		},
		Round: func() *cstypes.RoundState {
			r.mu.Lock()
			defer r.mu.Unlock()
			rs := r.mu.rs
			return &rs
		},
		Receive: func(e p2p.Envelope) {
			<-r.stuck
			if _, is := e.Message.(*cmtcons.Proposal); is && r.slow != nil {
				<-r.slow
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.mu.received = append(r.mu.received, e)
		},
	})
	return r
}

// change changes the state of consensus.
func (r *receiver) change(f func(*cstypes.RoundState)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.mu.rs)
}

func (r *receiver) setReady(ready bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.ready = ready
}

// received returns the messages passed to consensus.
func (r *receiver) received() []p2p.Envelope {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]p2p.Envelope(nil), r.mu.received...)
}

// relay makes a peer relay a message.
func (r *receiver) relay(tb testing.TB, from transport.ID, m proto.Message) (outcome string, err error) {
	tb.Helper()
	body := encode(m)
	require.NotNil(tb, body)
	_, v, err := r.take(tb.Context(), transport.Request{Peer: from, Method: Method, Body: body})
	return v.outcome, err
}
