package lightclient

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/cometbft/cometbft/light"
	"github.com/cometbft/cometbft/types"
)

// IsFirst reports whether a trusted header is that of the first block of the chain.
func IsFirst(header *types.Header) bool { return len(header.LastBlockID.Hash) == 0 }

// Below checks a header against child, the trusted header directly above it, which contains its
// hash. It needs no trust period. The error is ErrInvalid. Below refuses every header below the
// first block, whose LastBlockID is empty: the hash of any header without ValidatorsHash is empty,
// too, and would match.
func Below(header, child *types.Header) error {
	err := Guard(func() error {
		if IsFirst(child) {
			return errors.New("it is the first of the chain")
		}
		return light.VerifyBackwards(header, child)
	})
	if err != nil {
		return invalid{fmt.Errorf("block %d (%X) is not below block %d: %w", header.Height, header.Hash(), child.Height, err)}
	}
	return nil
}

// CheckAncestor checks a header and the commit of its block against child, the trusted header
// directly above it. LastCommitHash covers the commit's signatures, and LastBlockID everything else
// except the round. The error is ErrInvalid.
func CheckAncestor(signed *types.SignedHeader, child *types.Header) error {
	if err := Below(signed.Header, child); err != nil {
		return err
	}
	err := Guard(func() error {
		if !signed.Commit.BlockID.Equals(child.LastBlockID) {
			return fmt.Errorf("its commit is for %v, the header above says %v", signed.Commit.BlockID, child.LastBlockID)
		}
		if hash := signed.Commit.Hash(); !bytes.Equal(hash, child.LastCommitHash) {
			return fmt.Errorf("its commit has hash %X, the header above says %X", hash, child.LastCommitHash)
		}
		return nil
	})
	if err != nil {
		return invalid{fmt.Errorf("block %d (%X) is not below block %d: %w", signed.Height, signed.Hash(), child.Height, err)}
	}
	return nil
}

// CheckRound checks the round of an ancestor's commit using one signature, the first one for the
// block. validators is the set that the header names. One signature is enough: CheckAncestor has
// shown that the signatures are those that the chain accepted, and they all belong to one round.
// The error is ErrInvalid.
func CheckRound(chainID string, signed *types.SignedHeader, validators *types.ValidatorSet) error {
	err := Guard(func() error {
		for i, sig := range signed.Commit.Signatures {
			if sig.BlockIDFlag != types.BlockIDFlagCommit {
				continue
			}
			_, val := validators.GetByIndex(int32(i))
			if val == nil || !val.PubKey.VerifySignature(signed.Commit.VoteSignBytes(chainID, int32(i)), sig.Signature) {
				return fmt.Errorf("signature %d is not of round %d", i, signed.Commit.Round)
			}
			return nil
		}
		return errors.New("nobody signed it")
	})
	if err != nil {
		return invalid{fmt.Errorf("commit of block %d: %w", signed.Height, err)}
	}
	return nil
}
