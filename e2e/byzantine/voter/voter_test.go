package voter_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/cometbft/cometbft/consensus"
	"github.com/cometbft/cometbft/crypto"
	"github.com/cometbft/cometbft/p2p"
	"github.com/cometbft/cometbft/privval"
	cmtconsensus "github.com/cometbft/cometbft/proto/tendermint/consensus"
	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"
	"github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/e2e/byzantine/liar"
	"github.com/starling-kv/starling/e2e/byzantine/voter"
)

const chain = "test-chain"

// hears is a peer that records the messages sent to it.
type hears struct {
	p2p.Peer
	name string
	got  []p2p.Envelope
}

func (h *hears) ID() p2p.ID { return p2p.ID(h.name) }

func (h *hears) TrySend(e p2p.Envelope) bool {
	h.got = append(h.got, e)
	return true
}

// local is a validator whose key is in its home.
type local struct{ *privval.FilePV }

func (l local) PrivKey() crypto.PrivKey { return l.Key.PrivKey }

// network is a misbehaving validator with peers.
func network(t *testing.T, peers int, modes ...liar.Mode) (types.PrivValidator, []*hears, *[]liar.Lie) {
	t.Helper()
	dir := t.TempDir()
	honest := local{privval.GenFilePV(filepath.Join(dir, "key"), filepath.Join(dir, "state"))}
	honest.Save()
	var all []*hears
	for i := range peers {
		all = append(all, &hears{name: fmt.Sprint(i)})
	}
	lies := new([]liar.Lie)
	v := voter.Wrap(honest, modes, 1, func() (list []p2p.Peer) {
		for _, peer := range all {
			list = append(list, peer)
		}
		return list
	}, func(l liar.Lie) { *lies = append(*lies, l) })
	return v, all, lies
}

func voteFor(height int64, hash byte) *cmtproto.Vote {
	vote := &cmtproto.Vote{Type: cmtproto.PrevoteType, Height: height, Timestamp: time.Unix(1<<30, 0), ValidatorAddress: make([]byte, 20)}
	if hash != 0 {
		part := cmtproto.PartSetHeader{Total: 1, Hash: make([]byte, 32)}
		vote.BlockID = cmtproto.BlockID{Hash: append(make([]byte, 31), hash), PartSetHeader: part}
	}
	return vote
}

// Every second peer receives two signed, different votes of the same round, which is what evidence
// consists of.
func TestDoubleVote(t *testing.T) {
	for _, hash := range []byte{7, 0} { // for a block, and for nil
		for peers := range 5 {
			v, all, lies := network(t, peers, liar.DoubleVote)
			public, err := v.GetPubKey()
			require.NoError(t, err)
			vote := voteFor(3, hash)
			require.NoError(t, v.SignVote(chain, vote))
			heard := 0
			for _, peer := range all {
				if len(peer.got) == 0 {
					continue
				}
				heard++
				require.Len(t, peer.got, 2)
				var both []*cmtproto.Vote
				for _, e := range peer.got {
					require.Equal(t, consensus.VoteChannel, e.ChannelID)
					got := e.Message.(*cmtconsensus.Vote).Vote
					require.True(t, public.VerifySignature(types.VoteSignBytes(chain, got), got.Signature))
					parsed, err := types.VoteFromProto(got)
					require.NoError(t, err)
					require.NoError(t, parsed.ValidateBasic())
					both = append(both, got)
				}
				require.Equal(t, vote, both[0])
				require.NotEqual(t, both[0].BlockID, both[1].BlockID)
				both[1].BlockID, both[1].Signature = both[0].BlockID, both[0].Signature
				require.Equal(t, both[0], both[1], "all other fields are the same")
			}
			require.Equal(t, (peers+1)/2, heard)
			require.Len(t, *lies, heard)
		}
	}
}

func TestOneVoteAtOtherHeights(t *testing.T) {
	v, all, lies := network(t, 4, liar.DoubleVote)
	require.NoError(t, v.SignVote(chain, voteFor(4, 7)))
	require.Empty(t, *lies)
	require.Empty(t, all[0].got)
}

func TestDoublePropose(t *testing.T) {
	v, all, _ := network(t, 3, liar.DoublePropose)
	public, err := v.GetPubKey()
	require.NoError(t, err)
	proposal := &cmtproto.Proposal{
		Type: cmtproto.ProposalType, Height: 5, PolRound: -1, BlockID: voteFor(5, 7).BlockID, Timestamp: time.Unix(1<<30, 0),
	}
	require.NoError(t, v.SignProposal(chain, proposal))
	require.True(t, public.VerifySignature(types.ProposalSignBytes(chain, proposal), proposal.Signature), "the requested proposal")
	heard := 0
	for _, peer := range all {
		for _, e := range peer.got {
			heard++
			other := e.Message.(*cmtconsensus.Proposal).Proposal
			require.NotEqual(t, proposal.BlockID, other.BlockID)
			require.True(t, public.VerifySignature(types.ProposalSignBytes(chain, &other), other.Signature))
			parsed, err := types.ProposalFromProto(&other)
			require.NoError(t, err)
			require.NoError(t, parsed.ValidateBasic())
		}
	}
	require.Equal(t, 2, heard)
}

func TestMute(t *testing.T) {
	v, _, _ := network(t, 0, liar.Mute)
	for height := int64(1); height < 40; height++ {
		err := v.SignVote(chain, voteFor(height, 7))
		require.Equal(t, height/10%2 == 1, err != nil, "height %d: %v", height, err)
	}
	require.Error(t, v.SignProposal(chain, &cmtproto.Proposal{Type: cmtproto.ProposalType, Height: 50}))
}

func TestOthersKeepTheirSigner(t *testing.T) {
	require.Nil(t, voter.Wrap(nil, liar.Set{liar.DoubleVote}, 1, nil, nil))
	mock := types.NewMockPV()
	require.Equal(t, mock, voter.Wrap(mock, liar.Set{liar.DoubleVote}, 1, nil, nil))
}
