package lightblocks

import (
	"fmt"

	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"
	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/internal/protowalk"
	"github.com/starling-kv/starling/lightclient"
)

var (
	// A transaction has no shortest form that CometBFT would keep to. One of no bytes costs its
	// reader 24, which is what an attacker gets for the two that it sends.
	dataTable = protowalk.Message{Name: "data of a block", Fields: []protowalk.Field{
		repeated(1, "transactions", nil, int(types.MaxBlockSizeBytes), 0),
	}}

	blockTable = protowalk.Message{Name: "block", Fields: []protowalk.Field{
		sub(1, "header", &headerTable), sub(2, "data", &dataTable), sub(3, "evidence", &evidenceListTable), sub(4, "last commit", &commitTable),
	}}
)

// DecodeBlock decodes a block of a peer as CometBFT encodes it (message Block of
// proto/tendermint/types/block.proto). It is consistent in itself: its header names its data, its
// evidence and its last commit. No signature is checked. body may be used again afterwards.
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

// BlockMemory returns about how many bytes DecodeBlock takes at most, what becomes garbage included
// and body not. It allocates nothing.
func BlockMemory(body []byte) int64 {
	const (
		transaction = 200 // twice a slice, and the tree of their hashes
		signature   = 500 // twice, and the tree of their hashes
		evidence    = 14  // for each byte
	)
	return int64(len(body)) + transaction*int64(protowalk.Count(body, 2, 1)) + signature*int64(protowalk.Count(body, 4, 4)) + evidence*int64(protowalk.Size(body, 3))
}

// LastCommit returns the bytes of the last commit that a block's bytes hold, for DecodeCommit; nil:
// none. It allocates nothing, and the block need not be well-formed.
func LastCommit(body []byte) []byte { return protowalk.First(body, 4) }

// DecodeCommit decodes a commit of a peer. Its form is checked, and no signature.
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
