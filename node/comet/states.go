package comet

import (
	"fmt"

	dbm "github.com/cometbft/cometbft-db"
	cmtstate "github.com/cometbft/cometbft/proto/tendermint/state"
	sm "github.com/cometbft/cometbft/state"

	"github.com/starling-kv/starling/statesync/lightblocks"
)

// storedStates is CometBFT's state store. It also reports the heights at which full validator sets
// are stored, which CometBFT's interface does not.
type storedStates struct {
	sm.Store
	db dbm.DB
}

var _ lightblocks.Stored = storedStates{}

// validatorsKey is the key of a height's record (state/store.go, calcValidatorsKey).
func validatorsKey(height int64) string { return fmt.Sprintf("validatorsKey:%v", height) }

// ValidatorsStoredAt implements lightblocks.Stored. It reads the record that CometBFT's
// loadValidatorsAtHeight reads first (v0.40.0, state/store.go).
func (s storedStates) ValidatorsStoredAt(height int64) (int64, error) {
	value, err := s.db.Get([]byte(validatorsKey(height)))
	if err != nil {
		return 0, err
	}
	if len(value) == 0 {
		return 0, fmt.Errorf("no validators of height %d", height)
	}
	var info cmtstate.ValidatorsInfo
	if err := info.Unmarshal(value); err != nil {
		return 0, fmt.Errorf("validators of height %d: %w", height, err)
	}
	if info.ValidatorSet != nil {
		return height, nil
	}
	stored := max(height-height%checkpointInterval, info.LastHeightChanged)
	if stored < 1 || stored >= height {
		return 0, fmt.Errorf("validators of height %d: the full set should be stored at height %d", height, stored)
	}
	return stored, nil
}
