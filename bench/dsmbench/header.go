package dsmbench

import (
	"time"

	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"
	cmtversion "github.com/cometbft/cometbft/proto/tendermint/version"
)

// headerValidators is the number of validators that sign the measured header.
const headerValidators = 4

// headerBytes returns the bytes that prove a block's app hash to a light client that knows the
// validators: a header and a commit of headerValidators validators.
func headerBytes() int {
	hash := make([]byte, 32)
	for i := range hash {
		hash[i] = 0xff // no zero bytes, which an encoding might omit
	}
	id := cmtproto.BlockID{Hash: hash, PartSetHeader: cmtproto.PartSetHeader{Total: 10, Hash: hash}}
	now := time.Date(2026, 1, 2, 3, 4, 5, 678_901_234, time.UTC)
	h := &cmtproto.SignedHeader{
		Header: &cmtproto.Header{
			Version: cmtversion.Consensus{Block: 11, App: 1}, ChainID: chainID, Height: 1_000_000, Time: now, LastBlockId: id,
			LastCommitHash: hash, DataHash: hash, ValidatorsHash: hash, NextValidatorsHash: hash, ConsensusHash: hash, AppHash: hash,
			LastResultsHash: hash, EvidenceHash: hash, ProposerAddress: hash[:20],
		},
		Commit: &cmtproto.Commit{Height: 1_000_000, BlockID: id},
	}
	for range headerValidators {
		h.Commit.Signatures = append(h.Commit.Signatures, cmtproto.CommitSig{
			BlockIdFlag: cmtproto.BlockIDFlagCommit, ValidatorAddress: hash[:20], Timestamp: now, Signature: make([]byte, 64),
		})
	}
	return h.Size()
}
