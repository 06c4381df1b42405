package comet

import (
	"testing"

	dbm "github.com/cometbft/cometbft-db"
	"github.com/cometbft/cometbft/crypto/ed25519"
	cmtstate "github.com/cometbft/cometbft/proto/tendermint/state"
	sm "github.com/cometbft/cometbft/state"
	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"
)

// The height is the one from which CometBFT's own store computes.
func TestValidatorsStoredAt(t *testing.T) {
	db := dbm.NewMemDB()
	var members []*cmttypes.Validator
	for i := range byte(3) {
		members = append(members, cmttypes.NewValidator(ed25519.GenPrivKeyFromSecret([]byte{i}).PubKey(), 10+int64(i)))
	}
	set := cmttypes.NewValidatorSet(members)
	put := func(height, changed int64, whole *cmttypes.ValidatorSet) {
		info := &cmtstate.ValidatorsInfo{LastHeightChanged: changed}
		if whole != nil {
			var err error
			info.ValidatorSet, err = whole.ToProto()
			require.NoError(t, err)
		}
		batch := db.NewBatch()
		defer batch.Close()
		require.NoError(t, setProto(batch, validatorsKey(height), info))
		require.NoError(t, batch.Write())
	}
	states := storedStates{sm.NewStore(db, sm.StoreOptions{}), db}
	put(90_000, 90_000, set)
	put(95_000, 90_000, nil)
	put(checkpointInterval, 90_000, set.CopyIncrementProposerPriority(10_000))
	put(checkpointInterval+7, 90_000, nil)
	put(checkpointInterval+9, checkpointInterval+9, set)
	put(checkpointInterval+10, checkpointInterval+9, nil)
	for height, want := range map[int64]int64{
		90_000: 90_000, 95_000: 90_000, checkpointInterval: checkpointInterval, checkpointInterval + 7: checkpointInterval,
		checkpointInterval + 9: checkpointInterval + 9, checkpointInterval + 10: checkpointInterval + 9,
	} {
		stored, err := states.ValidatorsStoredAt(height)
		require.NoError(t, err)
		require.Equal(t, want, stored, "height %d", height)
		got, err := states.LoadValidators(height)
		require.NoError(t, err)
		from, err := states.LoadValidators(stored)
		require.NoError(t, err)
		if height > stored {
			from.IncrementProposerPriority(int32(height - stored))
		}
		require.Equal(t, got.ProposerPriorityHash(), from.ProposerPriorityHash(), "height %d", height)
	}
	for _, height := range []int64{1, 90_001, -1, 0} {
		_, err := states.ValidatorsStoredAt(height)
		require.Error(t, err)
	}
	put(50, 60, nil) // damaged
	_, err := states.ValidatorsStoredAt(50)
	require.Error(t, err)
	require.NoError(t, db.Set([]byte(validatorsKey(51)), []byte{0xff}))
	_, err = states.ValidatorsStoredAt(51)
	require.Error(t, err)
}
