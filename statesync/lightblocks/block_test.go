package lightblocks

import (
	"bytes"
	"runtime"
	"testing"
	"time"

	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/cometbft/cometbft/crypto/tmhash"
	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"
	cmtversion "github.com/cometbft/cometbft/proto/tendermint/version"
	"github.com/cometbft/cometbft/types"
	"github.com/cometbft/cometbft/version"
	"github.com/stretchr/testify/require"
)

// Decoding a block never takes more memory than BlockMemory returned for it.
func TestBlockMemory(t *testing.T) {
	hash := tmhash.Sum([]byte("hash"))
	id := types.BlockID{Hash: hash, PartSetHeader: types.PartSetHeader{Total: 1, Hash: hash}}
	key := ed25519.GenPrivKeyFromSecret([]byte("key"))
	members := make([]*types.Validator, 300)
	for i := range members {
		members[i] = types.NewValidator(ed25519.GenPrivKeyFromSecret([]byte{byte(i), byte(i >> 8)}).PubKey(), 10)
	}
	set := types.NewValidatorSet(members)
	vote := func(fill byte) *types.Vote {
		other := tmhash.Sum([]byte{fill})
		return &types.Vote{
			Type: cmtproto.PrecommitType, Height: 1, BlockID: types.BlockID{Hash: other, PartSetHeader: types.PartSetHeader{Total: 1, Hash: other}},
			ValidatorAddress: members[0].Address, Signature: make([]byte, 64), Timestamp: time.Unix(1, 0).UTC(),
		}
	}
	twice, err := types.NewDuplicateVoteEvidence(vote(1), vote(2), time.Unix(1, 0), set)
	require.NoError(t, err)
	block := func(txs, absent, evidence int, length int) *types.Block {
		commit := &types.Commit{Height: 1, BlockID: id, Signatures: make([]types.CommitSig, absent+1)}
		for i := range commit.Signatures {
			commit.Signatures[i] = types.NewCommitSigAbsent()
		}
		list := make(types.EvidenceList, evidence)
		for i := range list {
			list[i] = twice
		}
		all := make(types.Txs, txs)
		for i := range all {
			all[i] = bytes.Repeat([]byte{1}, length)
		}
		b := types.MakeBlock(2, all, commit, list)
		b.Header = types.Header{
			Version: cmtversion.Consensus{Block: version.BlockProtocol}, ChainID: "test-chain", Height: 2, Time: time.Unix(2, 0).UTC(), LastBlockID: id,
			LastCommitHash: b.LastCommitHash, DataHash: b.DataHash, EvidenceHash: b.EvidenceHash, ValidatorsHash: hash, NextValidatorsHash: hash,
			ConsensusHash: hash, AppHash: hash, LastResultsHash: hash, ProposerAddress: key.PubKey().Address(),
		}
		return b
	}
	for name, b := range map[string]*types.Block{
		"nothing":          block(0, 0, 0, 0),
		"empty":            block(100_000, 0, 0, 0),
		"short":            block(100_000, 0, 0, 5),
		"long":             block(3, 0, 0, 1<<20),
		"signatures":       block(0, types.MaxVotesCount-1, 0, 0),
		"evidence":         block(0, 0, 3000, 0),
		"some of each one": block(1000, 1000, 100, 100),
	} {
		pb, err := b.ToProto()
		require.NoError(t, err)
		body, err := pb.Marshal()
		require.NoError(t, err)
		said := BlockMemory(body)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		decoded, err := DecodeBlock(body)
		runtime.ReadMemStats(&after)
		require.NoError(t, err, name)
		require.Len(t, decoded.Txs, len(b.Txs))
		took := int64(after.TotalAlloc - before.TotalAlloc)
		t.Logf("%s: %d bytes, said %d, took %d", name, len(body), said, took)
		if took > said+64<<10 {
			t.Errorf("%s: it took more", name)
		}
	}
}
