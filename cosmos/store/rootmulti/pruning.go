// Copied from cosmossdk.io/store v1.1.2, rootmulti/store.go (Apache License 2.0, the Cosmos SDK's
// authors), and changed: see doc.go.

package rootmulti

import (
	"errors"

	iavltree "github.com/cosmos/iavl"

	"cosmossdk.io/store/iavl"
	pruningtypes "cosmossdk.io/store/pruning/types"
	"cosmossdk.io/store/types"
)

// GetPruning fetches the pruning strategy from the root store.
func (rs *Store) GetPruning() pruningtypes.PruningOptions {
	return rs.pruningManager.GetOptions()
}

// SetPruning sets the pruning strategy on the root store and all the sub-stores.
// Note, calling SetPruning on the root store prior to LoadVersion or
// LoadLatestVersion performs a no-op as the stores aren't mounted yet.
func (rs *Store) SetPruning(pruningOpts pruningtypes.PruningOptions) {
	rs.pruningManager.SetOptions(pruningOpts)
}

// SetSnapshotInterval sets the interval at which the snapshots are taken. It is used by the store
// to determine which heights to retain until after the snapshot is complete.
func (rs *Store) SetSnapshotInterval(snapshotInterval uint64) {
	rs.pruningManager.SetSnapshotInterval(snapshotInterval)
}

func (rs *Store) SetIAVLSyncPruning(syncPruning bool) {
	rs.iavlSyncPruning = syncPruning
}

// PruneSnapshotHeight prunes the given height according to the prune strategy.
// If the strategy is PruneNothing, this is a no-op.
// For other strategies, this height is persisted until the snapshot is operated.
func (rs *Store) PruneSnapshotHeight(height int64) {
	rs.pruningManager.HandleSnapshotHeight(height)
}

func (rs *Store) handlePruning(version int64) error {
	pruneHeight := rs.pruningManager.GetPruningHeight(version)
	rs.logger.Debug("prune start", "height", version)
	defer rs.logger.Debug("prune end", "height", version)
	return rs.PruneStores(pruneHeight)
}

// PruneStores prunes all history upto the specific height of the multi store.
func (rs *Store) PruneStores(pruningHeight int64) (err error) {
	if pruningHeight <= 0 {
		rs.logger.Debug("pruning skipped, height is less than or equal to 0")
		return nil
	}

	rs.logger.Debug("pruning store", "heights", pruningHeight)

	for key, store := range rs.stores {
		rs.logger.Debug("pruning store", "key", key) // Also log store.name (a private variable)?

		// If the store is wrapped with an inter-block cache, we must first unwrap
		// it to get the underlying IAVL store.
		if s, ok := store.(*starling); ok {
			s.Prune(pruningHeight)
			rs.pruned = pruningHeight
			continue
		}
		if store.GetStoreType() != types.StoreTypeIAVL {
			continue
		}

		store = rs.GetCommitKVStore(key)

		err := store.(*iavl.Store).DeleteVersionsTo(pruningHeight)
		if err == nil {
			continue
		}

		if errors.Is(err, iavltree.ErrVersionDoesNotExist) {
			return err
		}

		rs.logger.Error("failed to prune store", "key", key, "err", err)
	}
	return nil
}
