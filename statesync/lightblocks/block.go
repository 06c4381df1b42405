package lightblocks

import (
	"fmt"

	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"
	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/internal/protowalk"
	"github.com/starling-kv/starling/statesync/lightclient"
)

var (
	// CometBFT has no minimum size of a transaction. An empty one takes 2 bytes in the message and
	// 24 bytes once decoded, so an attacker gains a factor of 12.
	dataTable = protowalk.Message{Name: "data of a block", Fields: []protowalk.Field{
		repeated(1, "transactions", nil, int(types.MaxBlockSizeBytes), 0),
	}}

	blockTable = protowalk.Message{Name: "block", Fields: []protowalk.Field{
		sub(1, "header", &headerTable), sub(2, "data", &dataTable), sub(3, "evidence", &evidenceListTable), sub(4, "last commit", &commitTable),
	}}
)

// DecodeBlock decodes a peer's block in CometBFT's encoding (message Block of
// proto/tendermint/types/block.proto). The block is self-consistent: its header matches its data,
// its evidence and its last commit. DecodeBlock checks no signature, and does not keep body.
func DecodeBlock(body []byte) (block *types.Block, err error) {
	if len(body) > int(types.MaxBlockSizeBytes) {
		return nil, fmt.Errorf("a block of %d bytes is longer than %d", len(body), types.MaxBlockSizeBytes)
	}
	err = lightclient.Guard(func() error {
		if err := protowalk.Walk(body, &blockTable); err != nil {
			return err
		}
		var pb cmtproto.Block
		if n := protowalk.Count(body, 2, 1); n > 0 {
			pb.Data.Txs = make([][]byte, 0, n)
		}
		if n := protowalk.Count(body, 4, 4); n > 0 {
			pb.LastCommit = &cmtproto.Commit{Signatures: make([]cmtproto.CommitSig, 0, n)}
		}
		if err := pb.Unmarshal(body); err != nil {
			return err
		}
		block, err = types.BlockFromProto(&pb)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("block: %w", err)
	}
	return block, nil
}

// BlockMemory returns an approximate upper bound on the bytes that DecodeBlock allocates, including
// garbage and excluding body. It allocates nothing itself.
func BlockMemory(body []byte) int64 {
	const (
		transaction = 200 // two slice headers, and the Merkle tree's hashes
		signature   = 500 // two copies, and the Merkle tree's hashes
		evidence    = 14  // per byte
	)
	return int64(len(body)) + transaction*int64(protowalk.Count(body, 2, 1)) + signature*int64(protowalk.Count(body, 4, 4)) + evidence*int64(protowalk.Size(body, 3))
}

// LastCommit returns the bytes of the last commit in an encoded block, for DecodeCommit, or nil if
// there is no last commit. It allocates nothing, and the block need not be well-formed.
func LastCommit(body []byte) []byte { return protowalk.First(body, 4) }

// DecodeCommit decodes a peer's commit. It checks the form but no signature.
func DecodeCommit(body []byte) (commit *types.Commit, err error) {
	if len(body) > MaxLightBlock {
		return nil, fmt.Errorf("a commit of %d bytes is longer than %d", len(body), MaxLightBlock)
	}
	err = lightclient.Guard(func() error {
		if err := protowalk.Walk(body, &commitTable); err != nil {
			return err
		}
		pb := cmtproto.Commit{Signatures: make([]cmtproto.CommitSig, 0, protowalk.Count(body, 4))}
		if err := pb.Unmarshal(body); err != nil {
			return err
		}
		commit, err = types.CommitFromProto(&pb)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("commit: %w", err)
	}
	return commit, nil
}
