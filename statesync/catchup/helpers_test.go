package catchup

import (
	"bytes"
	"fmt"
	"time"

	"github.com/cometbft/cometbft/crypto/ed25519"
	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"
	cmtversion "github.com/cometbft/cometbft/proto/tendermint/version"
	"github.com/cometbft/cometbft/types"
	"github.com/cometbft/cometbft/version"
)

const testChain = "test-chain"

// testBlocks is a chain with one validator. It implements Blocks.
type testBlocks struct {
	key    ed25519.PrivKey
	set    *types.ValidatorSet
	blocks []Block // blocks[h-1] has height h
	base   int64   // blocks below are pruned
	// genesis is the chain's start time, every the time between blocks.
	genesis time.Time
	every   time.Duration
	shown   func() int64 // if not nil: the number of blocks visible now
}

// newBlocks builds a chain with one transaction of size bytes in each block. Different names give
// different chains.
func newBlocks(name string, heights int64, size int) *testBlocks {
	return newBlocksAt(name, heights, size, time.Unix(900_000_000, 0), time.Second)
}

// newBlocksAt is newBlocks with a start time and a block interval.
func newBlocksAt(name string, heights int64, size int, genesis time.Time, every time.Duration) *testBlocks {
	c := &testBlocks{key: ed25519.GenPrivKeyFromSecret([]byte("validator")), base: 1, genesis: genesis, every: every}
	c.set = types.NewValidatorSet([]*types.Validator{types.NewValidator(c.key.PubKey(), 10)})
	for h := int64(1); h <= heights; h++ {
		c.blocks = append(c.blocks, c.block(h, types.Tx(bytes.Repeat(fmt.Appendf(nil, "%s%d", name, h), size)[:size])))
	}
	return c
}

// block builds the block of a height on top of the existing ones.
func (c *testBlocks) block(h int64, txs ...types.Tx) Block {
	last, lastID := new(types.Commit), types.BlockID{}
	if h > 1 {
		last, lastID = c.blocks[h-2].Commit, c.blocks[h-2].ID
	}
	b := types.MakeBlock(h, txs, last, nil)
	hash := func(s string) []byte { return types.Tx(s).Hash() }
	b.Header = types.Header{
		Version: cmtversion.Consensus{Block: version.BlockProtocol, App: 1}, ChainID: testChain, Height: h,
		Time: c.genesis.Add(time.Duration(h) * c.every).UTC(), LastBlockID: lastID, LastCommitHash: b.LastCommitHash, DataHash: b.DataHash,
		EvidenceHash: b.EvidenceHash, ValidatorsHash: c.set.Hash(), NextValidatorsHash: c.set.Hash(), ConsensusHash: hash("params"),
		AppHash: hash(fmt.Sprint("app", h)), LastResultsHash: hash("results"), ProposerAddress: c.set.Proposer.Address,
	}
	return c.sign(b)
}

// sign returns a block with its validator's commit.
func (c *testBlocks) sign(b *types.Block) Block {
	parts, err := b.MakePartSet(types.BlockPartSizeBytes)
	if err != nil {
		panic(err)
	}
	made := Block{Block: b, Parts: parts, Bytes: b.Size(), ID: types.BlockID{Hash: b.Hash(), PartSetHeader: parts.Header()}}
	vote := types.Vote{Type: cmtproto.PrecommitType, Height: b.Height, BlockID: made.ID, Timestamp: b.Time, ValidatorAddress: c.key.PubKey().Address()}
	if vote.Signature, err = c.key.Sign(types.VoteSignBytes(testChain, vote.ToProto())); err != nil {
		panic(err)
	}
	made.Commit = &types.Commit{Height: b.Height, BlockID: made.ID, Signatures: []types.CommitSig{vote.CommitSig()}}
	return made
}

func (c *testBlocks) height() int64 {
	if c.shown != nil {
		return c.shown()
	}
	return int64(len(c.blocks))
}

func (c *testBlocks) at(h int64) *Block {
	if h < c.base || h > c.height() {
		return nil
	}
	return &c.blocks[h-1]
}

func (c *testBlocks) LoadBlockMeta(h int64) *types.BlockMeta {
	if b := c.at(h); b != nil {
		return &types.BlockMeta{BlockID: b.ID, BlockSize: b.Bytes, Header: b.Header}
	}
	return nil
}

func (c *testBlocks) LoadBlockPart(h int64, index int) *types.Part {
	if b := c.at(h); b != nil {
		return b.Parts.GetPart(index)
	}
	return nil
}

func (c *testBlocks) LoadBlockCommit(h int64) *types.Commit {
	if b := c.at(h); b != nil && h < c.height() {
		return b.Commit
	}
	return nil
}
