package comet

import (
	"testing"
	"time"

	dbm "github.com/cometbft/cometbft-db"
	"github.com/cometbft/cometbft/crypto/ed25519"
	cmtversion "github.com/cometbft/cometbft/proto/tendermint/version"
	sm "github.com/cometbft/cometbft/state"
	"github.com/cometbft/cometbft/store"
	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/cometbft/cometbft/version"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/statesync/lightblocks"
)

// CometBFT's own stores read the written records: across validator changes, and across the heights
// at which they expect a full set.
func TestAncestorsAsCometReadsThem(t *testing.T) {
	const top, count = checkpointInterval + 3, 8
	set := func(powers ...int64) *cmttypes.ValidatorSet {
		var members []*cmttypes.Validator
		for i, power := range powers {
			members = append(members, cmttypes.NewValidator(ed25519.GenPrivKeyFromSecret([]byte{byte(i)}).PubKey(), power))
		}
		return cmttypes.NewValidatorSet(members)
	}
	one, two := set(10, 20, 30), set(10, 25, 30, 1)
	var found []lightblocks.Ancestor
	for i := range int64(count) {
		height := top - i
		validators := two
		if height%4 == 0 || height > checkpointInterval { // 100003…100000 and 99996 have one set
			validators = one
		}
		header := &cmttypes.Header{
			Version: cmtversion.Consensus{Block: version.BlockProtocol},
			ChainID: "test-chain", Height: height, Time: time.Unix(height, 0).UTC(), ValidatorsHash: validators.Hash(),
			LastBlockID:     cmttypes.BlockID{Hash: make([]byte, 32), PartSetHeader: cmttypes.PartSetHeader{Total: 1, Hash: make([]byte, 32)}},
			ProposerAddress: validators.Validators[0].Address,
		}
		commit := &cmttypes.Commit{
			Height: height, Round: 3,
			BlockID:    cmttypes.BlockID{Hash: header.Hash(), PartSetHeader: cmttypes.PartSetHeader{Total: 7, Hash: make([]byte, 32)}},
			Signatures: []cmttypes.CommitSig{cmttypes.NewCommitSigAbsent()},
		}
		found = append(found, lightblocks.Ancestor{SignedHeader: &cmttypes.SignedHeader{Header: header, Commit: commit}, Validators: validators})
	}
	blockDB, stateDB, evidenceDB := dbm.NewMemDB(), dbm.NewMemDB(), dbm.NewMemDB()
	for range 2 { // as after a kill
		require.NoError(t, saveAncestors(blockDB, stateDB, evidenceDB, found, true))
	}
	blocks, states := store.NewBlockStore(blockDB), sm.NewStore(stateDB, sm.StoreOptions{})
	require.True(t, blocks.IsEmpty(), "there are no blocks")
	for i, a := range found {
		meta := blocks.LoadBlockMeta(a.Height)
		require.NotNil(t, meta)
		require.Equal(t, a.Commit.BlockID, meta.BlockID)
		require.Equal(t, a.Hash().Bytes(), meta.Header.Hash().Bytes())
		require.Equal(t, a.Commit, blocks.LoadBlockCommit(a.Height))
		require.Nil(t, blocks.LoadBlock(a.Height))
		validators, err := states.LoadValidators(a.Height)
		if i == 0 {
			require.Error(t, err, "CometBFT's state has them")
			continue
		}
		require.NoError(t, err)
		require.Equal(t, a.Validators.Hash(), validators.Hash(), "height %d", a.Height)
	}
	require.Nil(t, blocks.LoadBlockMeta(top-count))
}
