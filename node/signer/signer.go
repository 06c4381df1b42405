// Package signer signs votes and proposals with the key of a home folder, and never signs two
// different ones at a height, round and step.
//
//	SignVote ──► rules ──► signature ──► slot A or B, fdatasync ──► priv_validator_state.json ──► consensus
//
// The rules are those of CometBFT's privval.FilePV. FilePV creates, syncs and renames a file for
// each signature, which commits the file system's journal, and it does not sync the folder. Here
// the last signature is written over the older of two slots of a file whose blocks exist, so only
// data is synced (decision 0073). priv_validator_state.json remains what FilePV writes, for
// operators and for other programs: it is written in place after the slot, and synced when the node
// stops.
package signer

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cometbft/cometbft/crypto"
	"github.com/cometbft/cometbft/libs/protoio"
	"github.com/cometbft/cometbft/privval"
	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"
	"github.com/cometbft/cometbft/types"
	"github.com/cosmos/gogoproto/proto"
)

// ErrConflict is returned by requests to sign something else at a height, round and step that the
// key has signed at.
var ErrConflict = errors.New("another vote or proposal is signed at this height, round and step")

// ErrClosed is returned by a signer after Close.
var ErrClosed = errors.New("the signer is closed")

// The steps of a round, as in privval.FilePV.
const (
	stepPropose   int8 = 1
	stepPrevote   int8 = 2
	stepPrecommit int8 = 3
)

// Signer implements types.PrivValidator. It is safe for concurrent use.
type Signer struct {
	key crypto.PrivKey

	mu     sync.Mutex // held during each signature
	files  files
	last   privval.FilePVLastSignState
	closed bool
}

var _ types.PrivValidator = (*Signer)(nil)

// Open returns a signer whose last signature is the newest in priv_validator_state.json, at the
// path state, and in the slots of SlotsFile. It writes nothing: the first signature makes the
// slots.
func Open(fs vfs.FS, key crypto.PrivKey, state string) (*Signer, error) {
	s := &Signer{key: key, files: files{fs: fs, path: state, owner: key.PubKey().Address()}}
	var err error
	s.last, err = s.files.load()
	return s, err
}

// Close makes priv_validator_state.json durable. Afterwards nothing is signed.
func (s *Signer) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return s.files.close()
}

// Height returns the height of the last signature.
func (s *Signer) Height() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last.Height
}

// PrivKey returns the private key.
func (s *Signer) PrivKey() crypto.PrivKey { return s.key }

// GetPubKey implements types.PrivValidator.
func (s *Signer) GetPubKey() (crypto.PubKey, error) { return s.key.PubKey(), nil }

// SignVote implements types.PrivValidator. If the same vote is signed already, except for its time,
// the vote gets the former time and signature. A vote extension is signed each time: it may differ.
func (s *Signer) SignVote(chainID string, vote *cmtproto.Vote) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	step := stepPrevote
	switch {
	case vote.Type == cmtproto.PrecommitType:
		step = stepPrecommit
	case vote.Type != cmtproto.PrevoteType:
		return fmt.Errorf("a vote of the unknown type %d", vote.Type)
	}
	var extension []byte
	var err error
	if vote.Type == cmtproto.PrecommitType && !types.ProtoBlockIDIsNil(&vote.BlockID) {
		if extension, err = s.key.Sign(types.VoteExtensionSignBytes(chainID, vote)); err != nil {
			return err
		}
	} else if len(vote.Extension) > 0 {
		return errors.New("a vote extension outside of a precommit for a block")
	}
	var last, now cmtproto.CanonicalVote
	signature, err := s.sign(vote.Height, vote.Round, step, types.VoteSignBytes(chainID, vote), &vote.Timestamp,
		canonical{&last, &last.Timestamp}, canonical{&now, &now.Timestamp})
	if err != nil {
		return fmt.Errorf("sign a vote: %w", err)
	}
	vote.Signature, vote.ExtensionSignature = signature, extension
	return nil
}

// SignProposal implements types.PrivValidator. If the same proposal is signed already, except for
// its time, it gets the former time and signature.
func (s *Signer) SignProposal(chainID string, proposal *cmtproto.Proposal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var last, now cmtproto.CanonicalProposal
	signature, err := s.sign(proposal.Height, proposal.Round, stepPropose, types.ProposalSignBytes(chainID, proposal), &proposal.Timestamp,
		canonical{&last, &last.Timestamp}, canonical{&now, &now.Timestamp})
	if err != nil {
		return fmt.Errorf("sign a proposal: %w", err)
	}
	proposal.Signature = signature
	return nil
}

// canonical is an empty message to decode a signed one into, and its time.
type canonical struct {
	message proto.Message
	time    *time.Time
}

// sign returns the signature of a message. If the message is signed already with another time, sign
// sets at, the time of the vote or proposal, to that one. last and now are used to compare the two.
// A signature is durable when sign returns. It panics if it cannot be, as FilePV does: CometBFT's
// consensus then ends.
func (s *Signer) sign(height int64, round int32, step int8, message []byte, at *time.Time, last, now canonical) (signature []byte, err error) {
	if s.closed {
		return nil, ErrClosed
	}
	if s.files.slots == nil {
		// Since Open, another process may have signed. By now this one has locked the databases.
		// What it finds may not be on the disk if a process was killed, so it is made durable.
		if s.last, err = s.files.load(); err == nil {
			err = s.files.begin(&s.last)
		}
		if err != nil {
			panic(fmt.Errorf("nothing is signed, because the last signature cannot be made durable: %w", err))
		}
	}
	again, err := s.last.CheckHRS(height, round, step)
	if err != nil {
		return nil, fmt.Errorf("%w (the last signature is in %s, or in %s)", err, s.files.path, SlotsFile(s.files.path))
	}
	if !again {
		if signature, err = s.key.Sign(message); err != nil {
			return nil, err
		}
		state := privval.FilePVLastSignState{Height: height, Round: round, Step: step, Signature: signature, SignBytes: message}
		if err := s.files.save(&state); err != nil {
			panic(fmt.Errorf("the signature at height %d is not durable, so it is not sent: %w", height, err))
		}
		s.last = state
		return signature, nil
	}
	if bytes.Equal(message, s.last.SignBytes) {
		return s.last.Signature, nil
	}
	if err := errors.Join(protoio.UnmarshalDelimited(s.last.SignBytes, last.message), protoio.UnmarshalDelimited(message, now.message)); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConflict, err)
	}
	if *now.time = *last.time; !proto.Equal(last.message, now.message) {
		return nil, ErrConflict
	}
	*at = *last.time
	return s.last.Signature, nil
}
