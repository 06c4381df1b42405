package relay

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cometbft/cometbft/consensus"
	cstypes "github.com/cometbft/cometbft/consensus/types"
	"github.com/cometbft/cometbft/crypto/ed25519"
	cmtcons "github.com/cometbft/cometbft/proto/tendermint/consensus"
	"github.com/cometbft/cometbft/types"
	"github.com/cosmos/gogoproto/proto"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/spectest"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/transporttest"
)

func TestABlockIsTaken(t *testing.T) {
	peer := newFakePeer()
	r := newReceiver(peer)
	b := newBlock(t, r.key, 5, 0, 300_000)
	var sent []proto.Message
	for m := range messages(t, b) {
		outcome, err := r.relay(t, peer.id(), m)
		require.NoError(t, err)
		require.Equal(t, Taken, outcome)
		sent = append(sent, m)
	}
	received := r.received()
	require.Len(t, received, 6)
	for i, e := range received {
		require.Same(t, peer, e.Src)
		require.Equal(t, consensus.DataChannel, e.ChannelID)
		require.True(t, proto.Equal(sent[i], e.Message))
	}
}

// messages are a proposal and its parts.
func messages(tb testing.TB, b block) func(yield func(proto.Message) bool) {
	return func(yield func(proto.Message) bool) {
		if !yield(b.proposalMessage()) {
			return
		}
		for i := range int(b.parts.Total()) {
			if !yield(b.partMessage(tb, i)) {
				return
			}
		}
	}
}

// A node with its own key but no p2p connection.
func TestStrangersAreRefused(t *testing.T) {
	r := newReceiver()
	b := newBlock(t, r.key, 5, 0, 100_000)
	r.change(func(rs *cstypes.RoundState) { rs.ProposalBlockParts = types.NewPartSetFromHeader(b.parts.Header()) })
	for m := range messages(t, b) {
		outcome, err := r.relay(t, transporttest.ID(1), m)
		require.ErrorIs(t, err, transport.ErrRefused)
		require.Equal(t, Refused, outcome)
	}
	require.Empty(t, r.received())
}

func TestPartsBeforeTheirProposal(t *testing.T) {
	peer := newFakePeer()
	r := newReceiver(peer)
	b := newBlock(t, r.key, 5, 0, 100_000)
	outcome, err := r.relay(t, peer.id(), b.partMessage(t, 0))
	require.ErrorIs(t, err, transport.ErrGone)
	require.Equal(t, Unwanted, outcome)
	require.Empty(t, r.received())

	// Consensus was passed the proposal, but has not processed it yet.
	_, err = r.relay(t, peer.id(), b.proposalMessage())
	require.NoError(t, err)
	_, err = r.relay(t, peer.id(), b.partMessage(t, 0))
	require.NoError(t, err)
	require.Len(t, r.received(), 2)
}

// Consensus drops parts that overtake their proposal, but both sides then count them as received.
// The parts of a faster peer therefore wait.
func TestPartsWaitForTheirProposal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := newFakePeer(), newFakePeer()
		r := newReceiver(first, second)
		r.slow = make(chan struct{})
		b := newBlock(t, r.key, 5, 0, 200_000)
		var wg sync.WaitGroup
		relay := func(from *fakePeer, m proto.Message) {
			wg.Go(func() {
				_, err := r.relay(t, from.id(), m)
				assert.NoError(t, err)
			})
			synctest.Wait()
		}
		relay(first, b.proposalMessage())
		relay(second, b.proposalMessage())
		relay(second, b.partMessage(t, 0))
		ctx, cancel := context.WithTimeout(t.Context(), lateAfter)
		defer cancel()
		_, v, err := r.take(ctx, transport.Request{Peer: second.id(), Body: encode(b.partMessage(t, 1))})
		require.ErrorIs(t, err, transport.ErrBusy)
		require.Equal(t, Busy, v.outcome)
		require.Empty(t, r.received())
		close(r.slow)
		wg.Wait()
		received := r.received()
		require.Len(t, received, 2)
		require.IsType(t, &cmtcons.Proposal{}, received[0].Message)
		require.IsType(t, &cmtcons.BlockPart{}, received[1].Message)
		outcome, err := r.relay(t, second.id(), b.partMessage(t, 1)) // it was not accepted before
		require.NoError(t, err)
		require.Equal(t, Taken, outcome)
	})
}

// The proposal arrived over p2p.
func TestPartsOfWhatConsensusHas(t *testing.T) {
	peer := newFakePeer()
	r := newReceiver(peer)
	b := newBlock(t, r.key, 5, 0, 100_000)
	r.change(func(rs *cstypes.RoundState) {
		rs.Proposal, rs.ProposalBlockParts = b.proposal, types.NewPartSetFromHeader(b.parts.Header())
	})
	outcome, err := r.relay(t, peer.id(), b.partMessage(t, 1))
	require.NoError(t, err)
	require.Equal(t, Taken, outcome)
	outcome, err = r.relay(t, peer.id(), b.proposalMessage())
	require.NoError(t, err)
	require.Equal(t, Again, outcome)
	require.Len(t, r.received(), 1)
}

func TestOtherHeightsAndRounds(t *testing.T) {
	peer := newFakePeer()
	r := newReceiver(peer)
	_, err := r.relay(t, peer.id(), newBlock(t, r.key, 5, 0, 100_000).proposalMessage())
	require.NoError(t, err)
	for _, a := range []at{{4, 0}, {6, 0}, {1 << 60, 0}, {5, 1}, {5, 1 << 30}} {
		b := newBlock(t, r.key, a.height, a.round, 100_000)
		for m := range messages(t, b) {
			outcome, err := r.relay(t, peer.id(), m)
			require.ErrorIs(t, err, transport.ErrGone, a)
			require.Equal(t, Unwanted, outcome)
		}
	}
	require.Len(t, r.received(), 1)

	// The next round, the same block.
	r.change(func(rs *cstypes.RoundState) { rs.Round = 1 })
	b := newBlock(t, r.key, 5, 1, 100_000)
	for m := range messages(t, b) {
		_, err := r.relay(t, peer.id(), m)
		require.NoError(t, err)
	}
	require.Len(t, r.received(), 4)
	outcome, err := r.relay(t, peer.id(), newBlock(t, r.key, 5, 0, 100_000).partMessage(t, 0))
	require.ErrorIs(t, err, transport.ErrGone) // over p2p it may still be useful
	require.Equal(t, Unwanted, outcome)
}

func TestAlteredPartsAreRefused(t *testing.T) {
	peer := newFakePeer()
	r := newReceiver(peer)
	b := newBlock(t, r.key, 5, 0, 100_000)
	_, err := r.relay(t, peer.id(), b.proposalMessage())
	require.NoError(t, err)
	for name, alter := range map[string]func(*cmtcons.BlockPart){
		"bytes":        func(m *cmtcons.BlockPart) { m.Part.Bytes[77] ^= 1 },
		"leaf hash":    func(m *cmtcons.BlockPart) { m.Part.Proof.LeafHash = make([]byte, 32) },
		"aunt":         func(m *cmtcons.BlockPart) { m.Part.Proof.Aunts = [][]byte{make([]byte, 32)} },
		"no aunts":     func(m *cmtcons.BlockPart) { m.Part.Proof.Aunts = nil },
		"index":        func(m *cmtcons.BlockPart) { m.Part.Index, m.Part.Proof.Index = 1, 1 },
		"great index":  func(m *cmtcons.BlockPart) { m.Part.Index, m.Part.Proof.Index = 9, 9 },
		"total":        func(m *cmtcons.BlockPart) { m.Part.Proof.Total = 1 << 40 },
		"no bytes":     func(m *cmtcons.BlockPart) { m.Part.Bytes = nil },
		"another part": func(m *cmtcons.BlockPart) { m.Part = newBlock(t, r.key, 6, 0, 100_000).partMessage(t, 0).Part },
	} {
		m := b.partMessage(t, 0)
		alter(m)
		outcome, err := r.relay(t, peer.id(), m)
		require.ErrorIs(t, err, transport.ErrRefused, name)
		require.Equal(t, Refused, outcome, name)
	}
	require.Len(t, r.received(), 1)
	_, err = r.relay(t, peer.id(), b.partMessage(t, 0))
	require.NoError(t, err)
	require.True(t, peer.IsRunning(), "nobody is punished by what was relayed")
}

func TestFalseProposalsAreRefused(t *testing.T) {
	peer := newFakePeer()
	r := newReceiver(peer)
	other := ed25519.GenPrivKeyFromSecret([]byte("no proposer"))
	b := newBlock(t, r.key, 5, 0, 100_000)
	altered := b.proposalMessage()
	altered.Proposal.BlockID.PartSetHeader.Hash = make([]byte, 32)
	many := *b.proposal
	many.BlockID.PartSetHeader.Total = types.MaxBlockPartsCount + 1
	var err error
	many.Signature, err = r.key.Sign(types.ProposalSignBytes(testChain, many.ToProto()))
	require.NoError(t, err)
	for name, m := range map[string]proto.Message{
		"another's signature": newBlock(t, other, 5, 0, 100_000).proposalMessage(), "altered": altered,
		"too many parts, signed": &cmtcons.Proposal{Proposal: *many.ToProto()},
	} {
		outcome, err := r.relay(t, peer.id(), m)
		require.ErrorIs(t, err, transport.ErrRefused, name)
		require.Equal(t, Refused, outcome, name)
	}
	require.Empty(t, r.received())
	_, err = r.relay(t, peer.id(), b.proposalMessage()) // the valid proposal is accepted
	require.NoError(t, err)
}

// A proposer signs two blocks in a round: consensus keeps the first that it receives, which may
// have come over p2p while the other was relayed.
func TestAProposerThatSignsTwoBlocks(t *testing.T) {
	peer := newFakePeer()
	r := newReceiver(peer)
	relayed, taken := newBlock(t, r.key, 5, 0, 100_000), newBlock(t, r.key, 5, 0, 200_000)
	_, err := r.relay(t, peer.id(), relayed.proposalMessage())
	require.NoError(t, err)
	outcome, err := r.relay(t, peer.id(), relayed.partMessage(t, 1))
	require.NoError(t, err)
	require.Equal(t, Taken, outcome)
	outcome, err = r.relay(t, peer.id(), taken.proposalMessage())
	require.NoError(t, err)
	require.Equal(t, Again, outcome)
	r.change(func(rs *cstypes.RoundState) {
		rs.Proposal, rs.ProposalBlockParts = taken.proposal, types.NewPartSetFromHeader(taken.parts.Header())
	})
	for _, i := range []int{1, 2} { // the other block has a part 1, but no part 2
		outcome, err = r.relay(t, peer.id(), taken.partMessage(t, i))
		require.NoError(t, err)
		require.Equal(t, Taken, outcome, "part %d", i)
	}
	outcome, err = r.relay(t, peer.id(), relayed.partMessage(t, 0))
	require.ErrorIs(t, err, transport.ErrRefused)
	require.Equal(t, Refused, outcome)
}

// A second proposal of a round does not keep its slot. Otherwise, after some of them, no message
// would get one.
func TestSecondProposalsFreeTheirSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer := newFakePeer()
		r := newReceiver(peer)
		for i, want := range []string{Taken, Again, Again} {
			outcome, err := r.relay(t, peer.id(), newBlock(t, r.key, 5, 0, (i+1)*100_000).proposalMessage())
			require.NoError(t, err)
			require.Equal(t, want, outcome)
		}
		synctest.Wait()
		require.Empty(t, r.handing)
	})
}

func TestOnlyWhileConsensusRuns(t *testing.T) {
	peer := newFakePeer()
	r := newReceiver(peer)
	r.setReady(false)
	outcome, err := r.relay(t, peer.id(), newBlock(t, r.key, 5, 0, 100_000).proposalMessage())
	require.ErrorIs(t, err, transport.ErrGone)
	require.Equal(t, Unwanted, outcome)
	require.Empty(t, r.received())
}

// Whatever peers send, consensus receives a proposal and each part at most once.
func TestFloodsAreHandedOnce(t *testing.T) {
	first, second := newFakePeer(), newFakePeer()
	r := newReceiver(first, second)
	b := newBlock(t, r.key, 5, 0, 1_000_000)
	bad := b.partMessage(t, 3)
	bad.Part.Bytes[5] ^= 4
	for range 20 {
		for m := range messages(t, b) {
			for _, peer := range []*fakePeer{first, second} {
				_, err := r.relay(t, peer.id(), m)
				require.NoError(t, err)
				// once the valid part exists, this one is not checked
				outcome, _ := r.relay(t, peer.id(), bad)
				require.Contains(t, []string{Refused, Again}, outcome)
			}
		}
	}
	require.Len(t, r.received(), 1+int(b.parts.Total()))
	for i, e := range r.received()[1:] {
		require.Equal(t, b.partMessage(t, i), e.Message)
	}
}

// The parts that a peer relays are known to exist there. Its state must be at the height.
func TestDuplicatesAreKnown(t *testing.T) {
	first, second := newFakePeer(), newFakePeer()
	r := newReceiver(first, second)
	b := newBlock(t, r.key, 5, 0, 200_000)
	for m := range messages(t, b) {
		_, err := r.relay(t, first.id(), m)
		require.NoError(t, err)
	}
	s, is := second.Get(types.PeerStateKey).(*consensus.PeerState)
	require.True(t, is)
	s.ApplyNewRoundStepMessage(&consensus.NewRoundStepMessage{Height: 5, Step: cstypes.RoundStepPropose, LastCommitRound: -1})
	for m := range messages(t, b) {
		outcome, err := r.relay(t, second.id(), m)
		require.NoError(t, err)
		require.Equal(t, Again, outcome)
	}
	require.True(t, s.GetRoundState().Proposal)
	require.True(t, s.GetRoundState().ProposalBlockParts.IsFull())
}

// The response to a peer that has a block lists the parts that this node has.
func TestAnswersNameParts(t *testing.T) {
	first, second := newFakePeer(), newFakePeer()
	r := newReceiver(first, second)
	b := newBlock(t, r.key, 5, 0, 9*int(types.BlockPartSizeBytes))
	for _, c := range []struct {
		from    *fakePeer
		message proto.Message
		want    []byte
	}{
		{first, b.proposalMessage(), []byte{0, 0}},
		{first, b.partMessage(t, 8), []byte{0, 1}},
		{first, b.partMessage(t, 1), []byte{2, 1}},
		{second, b.proposalMessage(), []byte{2, 1}},
		{second, b.partMessage(t, 1), []byte{2, 1}},
		{second, b.partMessage(t, 3), []byte{10, 1}},
	} {
		answer, _, err := r.take(t.Context(), transport.Request{Peer: c.from.id(), Method: Method, Body: encode(c.message)})
		require.NoError(t, err)
		require.Equal(t, c.want, answer)
	}
	altered := b.partMessage(t, 2)
	altered.Part.Bytes[0] ^= 1
	answer, _, err := r.take(t.Context(), transport.Request{Peer: first.id(), Method: Method, Body: encode(altered)})
	require.ErrorIs(t, err, transport.ErrRefused)
	require.Nil(t, answer)
}

// TestSpecExample makes the message and the answer in docs/spec/relay.md.
func TestSpecExample(t *testing.T) {
	peer := newFakePeer()
	r := newReceiver(peer)
	r.change(func(rs *cstypes.RoundState) { rs.Round = 1 })
	b := newBlock(t, r.key, 5, 1, int(types.BlockPartSizeBytes)+4)
	_, err := r.relay(t, peer.id(), b.proposalMessage())
	require.NoError(t, err)
	body := encode(b.partMessage(t, 1))
	answer, _, err := r.take(t.Context(), transport.Request{Peer: peer.id(), Method: Method, Body: body})
	require.NoError(t, err)
	spectest.Require(t, "relay.md", body, answer)
}

// A consensus that accepts nothing any more blocks a bounded number of goroutines, and no peer.
func TestConsensusThatIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer := newFakePeer()
		r := newReceiver(peer)
		b := newBlock(t, r.key, 5, 0, 2_000_000)
		_, err := r.relay(t, peer.id(), b.proposalMessage())
		require.NoError(t, err)
		r.stuck = make(chan struct{})
		for i := range int(b.parts.Total()) {
			ctx, cancel := context.WithTimeout(t.Context(), lateAfter)
			_, v, err := r.take(ctx, transport.Request{Peer: peer.id(), Body: encode(b.partMessage(t, i))})
			require.ErrorIs(t, err, transport.ErrBusy)
			require.Equal(t, Busy, v.outcome)
			cancel()
		}
		require.Len(t, r.handing, maxHanding)
		close(r.stuck)
		synctest.Wait()
		require.Empty(t, r.handing)
		require.Len(t, r.received(), 1+maxHanding)
	})
}

func TestAPanicOfConsensus(t *testing.T) {
	peer := newFakePeer()
	r := newReceiver(peer)
	r.o.Receive = nil
	outcome, err := r.relay(t, peer.id(), newBlock(t, r.key, 5, 0, 100).proposalMessage())
	require.ErrorIs(t, err, transport.ErrFailed)
	require.Equal(t, Failed, outcome)
}

func TestOnlyProposalsAndPartsAreRelayed(t *testing.T) {
	vote, err := proto.Marshal((&cmtcons.HasVote{Height: 5, Type: 1}).Wrap())
	require.NoError(t, err)
	for name, body := range map[string][]byte{
		"nothing": nil, "a vote": vote, "rubbish": []byte("rubbish"), "too long": make([]byte, maxMessage+1), "an empty part": {42, 0}, "an empty proposal": {26, 0},
	} {
		_, _, err := decode(body)
		require.ErrorIs(t, err, errMessage, name)
	}
	require.Nil(t, encode(&cmtcons.HasVote{Height: 5}))
	require.Nil(t, encode(&cmtcons.ProposalPOL{Height: 5}))
}

// FuzzTake relays arbitrary bytes: consensus receives only what is proposed.
func FuzzTake(f *testing.F) {
	key := ed25519.GenPrivKeyFromSecret([]byte("proposer"))
	b := newBlock(f, key, 5, 0, 70_000)
	for m := range messages(f, b) {
		f.Add(encode(m))
	}
	f.Add([]byte{42, 4, 26, 2, 26, 0})
	peer := newFakePeer()
	f.Fuzz(func(t *testing.T, body []byte) {
		r := newReceiver(peer)
		require.Equal(t, key, r.key)
		r.change(func(rs *cstypes.RoundState) { rs.ProposalBlockParts = types.NewPartSetFromHeader(b.parts.Header()) })
		_, v, err := r.take(t.Context(), transport.Request{Peer: peer.id(), Body: body})
		received := r.received()
		if err != nil {
			require.Empty(t, received)
			require.NotEqual(t, Taken, v.outcome)
			return
		}
		require.Len(t, received, 1)
		switch m := received[0].Message.(type) {
		case *cmtcons.Proposal:
			require.True(t, proto.Equal(b.proposalMessage(), m))
		case *cmtcons.BlockPart:
			want := b.partMessage(t, int(m.Part.Index))
			require.Equal(t, want.Part.Bytes, m.Part.Bytes)
		default:
			t.Fatalf("%T", m)
		}
	})
}
