package lightclient

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/cometbft/cometbft/crypto"
	"github.com/cometbft/cometbft/crypto/ed25519"
	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"
	cmtversion "github.com/cometbft/cometbft/proto/tendermint/version"
	"github.com/cometbft/cometbft/types"
	"github.com/cometbft/cometbft/version"
)

const testChain = "lightclient-test"

var (
	chainStart = time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC)
	now        = chainStart.Add(time.Hour) // after the last block of every chain
)

func sum(format string, args ...any) []byte {
	h := sha256.Sum256(fmt.Appendf(nil, format, args...))
	return h[:]
}

// chain has one block per second; blocks[h-1] has height h. Every turnover heights a new validator
// replaces the oldest one.
type chain struct {
	blocks []*types.LightBlock
	keys   map[string]crypto.PrivKey
}

func makeChain(heights, validators, turnover int64) *chain {
	return makeSalted("", heights, validators, turnover)
}

func makeSalted(salt string, heights, validators, turnover int64) *chain {
	c := &chain{keys: map[string]crypto.PrivKey{}}
	made := 0
	join := func() *types.Validator {
		key := ed25519.GenPrivKeyFromSecret(fmt.Appendf(nil, "%svalidator %d", salt, made))
		c.keys[string(key.PubKey().Address())] = key
		made++
		return types.NewValidator(key.PubKey(), 10)
	}
	var members []*types.Validator
	for range validators {
		members = append(members, join())
	}
	lastCommit := new(types.Commit)
	for h := int64(1); h <= heights; h++ {
		set := types.NewValidatorSet(members)
		if h%turnover == 0 {
			members = append(members[1:], join())
		}
		header := &types.Header{
			Version: cmtversion.Consensus{Block: version.BlockProtocol}, ChainID: testChain, Height: h,
			Time: chainStart.Add(time.Duration(h) * time.Second), LastBlockID: lastCommit.BlockID, LastCommitHash: lastCommit.Hash(),
			ValidatorsHash: set.Hash(), NextValidatorsHash: types.NewValidatorSet(members).Hash(),
			ConsensusHash: sum("params"), AppHash: sum("app %d", h), ProposerAddress: set.GetProposer().Address,
		}
		lb := c.sign(header, set)
		c.blocks, lastCommit = append(c.blocks, lb), lb.Commit
	}
	return c
}

func (c *chain) at(h int64) *types.LightBlock { return c.blocks[h-1] }

func (c *chain) sign(header *types.Header, set *types.ValidatorSet) *types.LightBlock {
	commit := &types.Commit{Height: header.Height, Round: 1, BlockID: types.BlockID{
		Hash: header.Hash(), PartSetHeader: types.PartSetHeader{Total: 1, Hash: sum("parts %X", header.Hash())}}}
	for i, val := range set.Validators {
		vote := &types.Vote{Type: cmtproto.PrecommitType, Height: header.Height, Round: 1, BlockID: commit.BlockID,
			Timestamp: header.Time, ValidatorAddress: val.Address, ValidatorIndex: int32(i)}
		var err error
		if vote.Signature, err = c.keys[string(val.Address)].Sign(types.VoteSignBytes(testChain, vote.ToProto())); err != nil {
			panic(err)
		}
		commit.Signatures = append(commit.Signatures, vote.CommitSig())
	}
	return &types.LightBlock{SignedHeader: &types.SignedHeader{Header: header, Commit: commit}, ValidatorSet: set}
}

// genesis returns the document that names the first validators.
func (c *chain) genesis() *types.GenesisDoc {
	doc := &types.GenesisDoc{ChainID: testChain, InitialHeight: 1, GenesisTime: c.at(1).Time}
	for _, v := range c.at(1).ValidatorSet.Validators {
		doc.Validators = append(doc.Validators, types.GenesisValidator{PubKey: v.PubKey, Power: v.VotingPower})
	}
	return doc
}

// clone copies everything that tests change. The copy of the commit has no memoized hash.
func clone(lb *types.LightBlock) *types.LightBlock {
	header := *lb.Header
	commit := &types.Commit{Height: lb.Commit.Height, Round: lb.Commit.Round, BlockID: lb.Commit.BlockID}
	for _, sig := range lb.Commit.Signatures {
		sig.Signature = bytes.Clone(sig.Signature)
		commit.Signatures = append(commit.Signatures, sig)
	}
	return &types.LightBlock{SignedHeader: &types.SignedHeader{Header: &header, Commit: commit}, ValidatorSet: lb.ValidatorSet.Copy()}
}
