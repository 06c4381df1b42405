// Package voter signs votes and proposals that an honest validator never signs.
//
//	CometBFT's consensus ──SignVote──► Voter ──► signer.Signer ──► the requested vote
//	                                     │
//	                                     └─ double-vote, double-propose: the requested one and another one, sent directly to every second peer
//
// The signer's record of its signatures does not protect the key: the second signature is made
// without it. The network is protected by CometBFT's evidence (two votes), by its rounds (two
// proposals), and because less than a third of the power misbehaves.
package voter

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/cometbft/cometbft/consensus"
	"github.com/cometbft/cometbft/crypto"
	"github.com/cometbft/cometbft/p2p"
	cmtconsensus "github.com/cometbft/cometbft/proto/tendermint/consensus"
	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"
	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/e2e/byzantine/liar"
	"github.com/starling-kv/starling/transport"
)

const (
	// The validator signs twice at one of every doubleEvery heights: evidence needs only one such
	// height, and the others serve the load.
	doubleEvery = 3
	// In mode Mute, muteFor heights with signatures alternate with muteFor heights without.
	muteFor = 10
)

var errMute = errors.New("mode mute: this validator signs nothing at this height")

// Voter is a validator that misbehaves.
type Voter struct {
	types.PrivValidator // that of the home folder
	key                 crypto.PrivKey
	set                 liar.Set
	seed                uint64
	peers               func() []p2p.Peer
	onLie               func(liar.Lie)
}

// Wrap makes a validator misbehave in those modes of the set that concern votes. peers returns the
// peers that it is connected to. A validator whose key is not available (a remote signer's, or
// none) is returned unchanged.
func Wrap(honest types.PrivValidator, set liar.Set, seed uint64, peers func() []p2p.Peer, onLie func(liar.Lie)) types.PrivValidator {
	local, ok := honest.(interface{ PrivKey() crypto.PrivKey })
	if !ok {
		return honest
	}
	if onLie == nil {
		onLie = func(liar.Lie) {}
	}
	return &Voter{PrivValidator: honest, key: local.PrivKey(), set: set, seed: seed, peers: peers, onLie: onLie}
}

// mute reports whether the validator signs nothing at a height.
func (v *Voter) mute(height int64) bool { return v.set.Has(liar.Mute) && height/muteFor%2 == 1 }

// SignVote implements types.PrivValidator.
func (v *Voter) SignVote(chainID string, vote *cmtproto.Vote) error {
	if v.mute(vote.Height) {
		return errMute
	}
	if err := v.PrivValidator.SignVote(chainID, vote); err != nil {
		return err
	}
	if !v.set.Has(liar.DoubleVote) || vote.Height%doubleEvery != 0 {
		return nil
	}
	other := *vote
	other.Extension, other.ExtensionSignature = nil, nil
	if len(vote.BlockID.Hash) > 0 {
		other.BlockID = cmtproto.BlockID{}
	} else {
		other.BlockID = v.noBlock(vote.Height, vote.Round)
	}
	signature, err := v.key.Sign(types.VoteSignBytes(chainID, &other))
	if err != nil {
		return err
	}
	other.Signature = signature
	// A peer that receives one of the votes announces it to all others, and they then send it no
	// other vote of this validator: so it must receive both from here.
	for _, peer := range v.some(vote.Height) {
		sent := true
		for _, both := range []*cmtproto.Vote{vote, &other} {
			copied := *both
			sent = peer.TrySend(p2p.Envelope{ChannelID: consensus.VoteChannel, Message: &cmtconsensus.Vote{Vote: &copied}}) && sent
		}
		if sent {
			v.report(liar.DoubleVote, "vote", vote.Height, peer)
		}
	}
	return nil
}

// SignProposal implements types.PrivValidator. CometBFT sends the requested proposal to all peers.
// Peers that have already accepted the other one ignore it, wait for parts of a block that does not
// exist, and get the right block with the precommits of the other validators.
func (v *Voter) SignProposal(chainID string, proposal *cmtproto.Proposal) error {
	if v.mute(proposal.Height) {
		return errMute
	}
	if err := v.PrivValidator.SignProposal(chainID, proposal); err != nil {
		return err
	}
	if !v.set.Has(liar.DoublePropose) {
		return nil
	}
	other := *proposal
	other.BlockID = v.noBlock(proposal.Height, proposal.Round)
	signature, err := v.key.Sign(types.ProposalSignBytes(chainID, &other))
	if err != nil {
		return err
	}
	other.Signature = signature
	for _, peer := range v.some(proposal.Height) {
		if peer.TrySend(p2p.Envelope{ChannelID: consensus.DataChannel, Message: &cmtconsensus.Proposal{Proposal: other}}) {
			v.report(liar.DoublePropose, "proposal", proposal.Height, peer)
		}
	}
	return nil
}

// some returns every second peer, at least one, and different peers at consecutive heights.
func (v *Voter) some(height int64) []p2p.Peer {
	peers := v.peers()
	slices.SortFunc(peers, func(a, b p2p.Peer) int { return cmp.Compare(a.ID(), b.ID()) })
	var chosen []p2p.Peer
	for i := 0; i < len(peers); i += 2 {
		chosen = append(chosen, peers[(uint64(i)+uint64(height))%uint64(len(peers))])
	}
	return chosen
}

// noBlock returns the ID of a block that does not exist.
func (v *Voter) noBlock(height int64, round int32) cmtproto.BlockID {
	of := func(what byte) []byte {
		b := binary.BigEndian.AppendUint64([]byte{what}, v.seed)
		b = binary.BigEndian.AppendUint64(b, uint64(height))
		hash := sha256.Sum256(binary.BigEndian.AppendUint32(b, uint32(round)))
		return hash[:]
	}
	return cmtproto.BlockID{Hash: of(0), PartSetHeader: cmtproto.PartSetHeader{Total: 1, Hash: of(1)}}
}

func (v *Voter) report(how liar.Mode, about string, height int64, to p2p.Peer) {
	v.onLie(liar.Lie{How: how, About: about, Height: uint64(height), To: transport.ID(to.ID())})
}
