package relay

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cometbft/cometbft/consensus"
	cstypes "github.com/cometbft/cometbft/consensus/types"
	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/p2p"
	cmtcons "github.com/cometbft/cometbft/proto/tendermint/consensus"
	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"
	"github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"
)

// world is a validator's consensus at height 5, round 0, with three other validators.
type world struct {
	t    *testing.T
	keys []ed25519.PrivKey // keys[i] is that of the validator with index i
	rs   cstypes.RoundState
	push *pusher
	bus  *types.EventBus
	quit chan struct{}
}

func newWorld(t *testing.T, own int) *world {
	w := &world{t: t, bus: types.NewEventBusWithBufferCapacity(1000), quit: make(chan struct{})}
	require.NoError(t, w.bus.Start())
	byAddress := map[string]ed25519.PrivKey{}
	var vals []*types.Validator
	for _, name := range []string{"a", "b", "c", "d"} {
		key := ed25519.GenPrivKeyFromSecret([]byte(name))
		byAddress[string(key.PubKey().Address())] = key
		vals = append(vals, types.NewValidator(key.PubKey(), 1))
	}
	set := types.NewValidatorSet(vals)
	for _, v := range set.Validators {
		w.keys = append(w.keys, byAddress[string(v.Address)])
	}
	w.rs = cstypes.RoundState{Height: 5, Validators: set, Votes: cstypes.NewHeightVoteSet(testChain, 5, set)}
	key := ed25519.GenPrivKeyFromSecret([]byte("not a validator"))
	if own >= 0 {
		key = w.keys[own]
	}
	w.push = newPusher(key.PubKey().Address(), func() *cstypes.RoundState { return &w.rs }, w.quit, log.NewNopLogger())
	require.NoError(t, w.push.start(w.bus))
	return w
}

// end stops the bus and then the reactor, as CometBFT does. All goroutines of the world end.
func (w *world) end() {
	require.NoError(w.t, w.bus.Stop())
	close(w.quit)
}

// vote adds a vote, and publishes it as consensus does.
func (w *world) vote(of int, kind cmtproto.SignedMsgType) {
	v := &types.Vote{
		Type: kind, Height: 5, BlockID: types.BlockID{Hash: make([]byte, 32), PartSetHeader: types.PartSetHeader{Total: 1, Hash: make([]byte, 32)}},
		Timestamp: time.Unix(1_700_000_000, 0).UTC(), ValidatorAddress: w.keys[of].PubKey().Address(), ValidatorIndex: int32(of),
	}
	var err error
	v.Signature, err = w.keys[of].Sign(types.VoteSignBytes(testChain, v.ToProto()))
	require.NoError(w.t, err)
	added, err := w.rs.Votes.AddVote(v, "", false)
	require.NoError(w.t, err)
	require.True(w.t, added)
	require.NoError(w.t, w.bus.PublishEventVote(types.EventDataVote{Vote: v}))
	synctest.Wait()
}

// at returns a peer that is at a height, in round 0.
func (w *world) at(height int64, step cstypes.RoundStepType, lastRound int32) *fakePeer {
	peer := newFakePeer()
	w.add(peer, height, step, lastRound)
	return peer
}

func (w *world) add(peer *fakePeer, height int64, step cstypes.RoundStepType, lastRound int32) {
	state := consensus.NewPeerState(peer)
	state.ApplyNewRoundStepMessage(&consensus.NewRoundStepMessage{Height: height, Step: step, LastCommitRound: lastRound})
	peer.Set(types.PeerStateKey, state)
	w.push.add(peer)
}

func kinds(sent []p2p.Envelope) (all []string) {
	for _, e := range sent {
		switch m := e.Message.(type) {
		case *cmtcons.Proposal:
			all = append(all, "proposal")
		case *cmtcons.BlockPart:
			all = append(all, "part")
		case *cmtcons.Vote:
			all = append(all, m.Vote.Type.String())
		default:
			all = append(all, "other")
		}
	}
	return all
}

// A validator pushes its own votes, once, to peers at its height.
func TestPushVotes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		here, behind := w.at(5, cstypes.RoundStepPropose, 0), w.at(4, cstypes.RoundStepPropose, 0)
		synctest.Wait()
		w.vote(0, cmtproto.PrevoteType)
		require.Empty(t, here.got(), "the vote of another validator")
		w.vote(1, cmtproto.PrevoteType)
		w.push.moved(here)
		synctest.Wait()
		require.Equal(t, []string{"SIGNED_MSG_TYPE_PREVOTE"}, kinds(here.got()))
		round := w.push.round
		w.push.round = func() *cstypes.RoundState { t.Error("a precommit waited for consensus"); return round() }
		w.vote(1, cmtproto.PrecommitType)
		require.Equal(t, []string{"SIGNED_MSG_TYPE_PREVOTE", "SIGNED_MSG_TYPE_PRECOMMIT"}, kinds(here.got()))
		w.push.round = round
		require.Empty(t, behind.got(), "it could not use them")

		state := behind.Get(types.PeerStateKey).(*consensus.PeerState)
		state.ApplyNewRoundStepMessage(&consensus.NewRoundStepMessage{Height: 5, Step: cstypes.RoundStepPropose, LastCommitRound: 0})
		w.push.moved(behind)
		synctest.Wait()
		require.Equal(t, kinds(here.got()), kinds(behind.got()))
		require.NoError(t, here.Stop())
		require.NoError(t, behind.Stop())
		synctest.Wait()
		require.Empty(t, w.push.peers)
		w.end()
	})
}

// The proposer pushes its proposal and all parts, once. Other nodes push neither.
func TestPushProposal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for own := -1; own < 4; own++ {
			w := newWorld(t, own)
			block := newBlock(t, w.keys[max(0, own)], 5, 0, 3*int(types.BlockPartSizeBytes)-1)
			w.rs.Proposal, w.rs.ProposalBlockParts = block.proposal, block.parts
			peer := w.at(5, cstypes.RoundStepPropose, 0)
			synctest.Wait()
			w.push.moved(peer)
			synctest.Wait()
			var want []string
			if string(w.rs.Validators.GetProposer().Address) == w.push.own {
				want = []string{"proposal", "part", "part", "part"}
			}
			require.Equal(t, want, kinds(peer.got()))
			require.NoError(t, peer.Stop())
			w.end()
		}
	})
}

// A validator connects to a peer at its height before it has anything to send. So its first block
// takes the link. Other nodes do not connect.
func TestValidatorsConnectEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for own := -1; own < 4; own++ {
			p, w := newPair(t, nil, nil), newWorld(t, own)
			p.peer.Set(linkKey, p.link)
			w.add(p.peer, 5, cstypes.RoundStepNewHeight, 0)
			synctest.Wait()
			p.sendBlock(t)
			synctest.Wait()
			all := 1 + int(p.block.parts.Total())
			if own < 0 {
				require.Len(t, p.peer.got(), all)
			} else {
				require.Len(t, p.calls(), all)
				require.Empty(t, p.peer.got())
			}
			require.NoError(t, p.peer.Stop())
			w.end()
			p.close()
		}
	})
}

// Consensus that has not begun, or has no validators, is not pushed.
func TestPushNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0)
		peer := w.at(5, cstypes.RoundStepPropose, 0)
		for _, rs := range []cstypes.RoundState{{}, {Height: 5, Validators: types.NewValidatorSet(nil), Votes: &cstypes.HeightVoteSet{}}} {
			synctest.Wait()
			w.rs = rs
			w.push.moved(peer)
		}
		synctest.Wait()
		require.Empty(t, peer.got())
		require.NoError(t, peer.Stop())
		w.end()
	})
}

// The precommit of a slow validator goes to peers that have the block and still collect precommits,
// and to no other peers.
func TestPushLatePrecommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		pausing := w.at(6, cstypes.RoundStepNewHeight, 0)
		other := w.at(6, cstypes.RoundStepNewHeight, 1)
		gone := w.at(6, cstypes.RoundStepPropose, 0)
		synctest.Wait()
		w.vote(1, cmtproto.PrevoteType)
		w.vote(1, cmtproto.PrecommitType)
		require.Equal(t, []string{"SIGNED_MSG_TYPE_PRECOMMIT"}, kinds(pausing.got()))
		require.Empty(t, other.got(), "the block is of another round")
		require.Empty(t, gone.got(), "it has begun the next block")
		w.end()
	})
}
