package rootmulti

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	pruningtypes "github.com/cosmos/cosmos-sdk/store/v2/pruning/types"
	"github.com/cosmos/cosmos-sdk/store/v2/types"

	dbm "github.com/cosmos/cosmos-db"

	"github.com/starling-kv/starling/cosmos/store/internal/disk"
)

// LatestVersion implements types.MultiStore.
func (rs *Store) LatestVersion() int64 { return rs.LastCommitID().Version }

// LastCommitID implements types.Committer.
func (rs *Store) LastCommitID() types.CommitID {
	if last := rs.last.Load(); last != nil {
		return last.CommitID()
	}
	return rs.sdkStore.LastCommitID()
}

// WorkingHash implements types.Committer. It returns the app hash that Commit would return.
func (rs *Store) WorkingHash() []byte {
	var info types.CommitInfo
	add := func(name string, s types.Committer) {
		info.StoreInfos = append(info.StoreInfos, types.StoreInfo{Name: name, CommitId: types.CommitID{Hash: s.WorkingHash()}})
	}
	for name, key := range rs.sdkStore.StoreKeysByName() {
		s, ok := rs.sdkStore.GetStoreByName(name).(types.CommitStore)
		if ok && s.GetStoreType() == types.StoreTypeIAVL && !rs.leaving[key] {
			add(name, s)
		}
	}
	for key, s := range rs.stores {
		if !rs.leaving[key] {
			add(key.Name(), s)
		}
	}
	return info.Hash()
}

// Commit implements types.Committer. All stores are durable when it returns. It panics if the
// version was committed before with other roots: after LoadVersion, the same blocks must be
// executed again.
func (rs *Store) Commit() types.CommitID {
	version := rs.LatestVersion() + 1
	if version == 1 {
		version = max(version, rs.initialVersion)
	}
	commits := rs.commitStarling(version)
	pruneTo := rs.pruning.GetPruningHeight(version)
	rs.pruneStarling(pruneTo)
	err := rs.db.merging(func(info *types.CommitInfo, b dbm.Batch) error {
		if info.Version != version {
			return fmt.Errorf("the SDK's multi-store commits version %d, expected %d", info.Version, version)
		}
		rs.addStarling(info)
		rs.last.Store(info)
		return rs.log(b, info, commits)
	}, func() error {
		rs.db.whole.Store(true)
		defer rs.db.whole.Store(false)
		rs.sdkStore.Commit()
		return nil
	})
	if err == nil && len(commits) > 0 {
		err = rs.disk.Write(version, commits)
	}
	if err != nil {
		panic(fmt.Errorf("failed to write the Starling stores: %w", err))
	}
	rs.flushed = max(rs.flushed, version)
	rs.leave()
	if err := rs.sdkStore.PruneStores(pruneTo); err != nil {
		rs.logger.Error("failed to prune stores: check the pruning configuration", "height", pruneTo, "err", err)
	}
	if version%lookEvery == 0 {
		rs.watchMemory(version)
	}
	return rs.LastCommitID()
}

// commitStarling commits the Starling stores in memory, and returns what they changed.
func (rs *Store) commitStarling(version int64) (commits []disk.Named) {
	for _, key := range rs.sortedKeys() {
		rs.stores[key].SetInitialVersion(version) // only affects a new store, which is at version 0
		rs.stores[key].Commit()
		if c, ok := rs.stores[key].TakeCommit(); ok {
			commits = append(commits, disk.Named{Name: key.Name(), Commit: c})
		}
	}
	return commits
}

func (rs *Store) sortedKeys() []types.StoreKey {
	return slices.SortedFunc(maps.Keys(rs.stores), func(a, b types.StoreKey) int { return strings.Compare(a.Name(), b.Name()) })
}

// addStarling adds the Starling stores to the commit info of the other stores.
func (rs *Store) addStarling(info *types.CommitInfo) {
	for key, s := range rs.stores {
		if !rs.leaving[key] {
			info.StoreInfos = append(info.StoreInfos, types.StoreInfo{Name: key.Name(), CommitId: s.LastCommitID()})
		}
	}
	sortInfos(info)
}

func sortInfos(info *types.CommitInfo) {
	slices.SortFunc(info.StoreInfos, func(a, b types.StoreInfo) int { return strings.Compare(a.Name, b.Name) })
}

// log adds the changes of the Starling stores, as a record, to the batch that makes a version
// durable. If the version is already on disk, it only checks that the roots are the same.
func (rs *Store) log(b dbm.Batch, info *types.CommitInfo, commits []disk.Named) error {
	if len(commits) == 0 {
		return nil
	}
	if info.Version <= rs.flushed {
		if err := rs.assertSame(info); err != nil {
			return err
		}
		rs.disk.Skip(info.Version)
	} else if err := rs.disk.Log(b, info.Version, commits); err != nil {
		return err
	}
	if rs.pruned == 0 {
		return nil
	}
	pruned := rs.pruned
	rs.pruned = 0
	return rs.disk.Prune(b, pruned)
}

// assertSame returns an error if the version was committed before with another root of any store.
func (rs *Store) assertSame(info *types.CommitInfo) error {
	before, err := rs.GetCommitInfo(info.Version)
	if err != nil {
		return err
	}
	for _, s := range info.StoreInfos {
		if was := root(before, s.Name); was != nil && !bytes.Equal(was, s.CommitId.Hash) {
			return fmt.Errorf("version %d of store %q was committed before with root %X, now it has %X: roll back before executing other blocks",
				info.Version, s.Name, was, s.CommitId.Hash)
		}
	}
	return nil
}

// root returns a store's root in a commit info, or nil if the store is not in it.
func root(info *types.CommitInfo, name string) []byte {
	for _, s := range info.StoreInfos {
		if s.Name == name {
			return s.CommitId.Hash
		}
	}
	return nil
}

// leave drops the Starling stores that an upgrade removed, after the first commit without them. The
// SDK's multi-store drops stores of other types itself.
func (rs *Store) leave() {
	for key := range rs.leaving {
		if rs.stores[key] != nil {
			delete(rs.stores, key)
			delete(rs.mounted, key.Name())
		}
	}
	rs.leaving = nil
}

// SetInitialVersion implements types.CommitMultiStore.
func (rs *Store) SetInitialVersion(version int64) error {
	rs.initialVersion = version
	return rs.sdkStore.SetInitialVersion(version)
}

// GetPruning implements types.CommitMultiStore.
func (rs *Store) GetPruning() pruningtypes.PruningOptions { return rs.pruning.GetOptions() }

// SetPruning implements types.CommitMultiStore.
func (rs *Store) SetPruning(o pruningtypes.PruningOptions) { rs.pruning.SetOptions(o) }

// SetSnapshotInterval sets the number of heights between two snapshots. Pruning keeps such heights
// until their snapshots are taken.
func (rs *Store) SetSnapshotInterval(interval uint64) { rs.pruning.SetSnapshotInterval(interval) }

// PruneSnapshotHeight implements snapshottypes.Snapshotter. It is called after the snapshot of a
// height was taken.
func (rs *Store) PruneSnapshotHeight(height int64) { rs.pruning.HandleSnapshotHeight(height) }

// AnnounceSnapshotHeight implements snapshottypes.SnapshotAnnouncer. It announces that a snapshot
// of a height is in progress.
func (rs *Store) AnnounceSnapshotHeight(height int64) { rs.pruning.AnnounceSnapshotHeight(height) }

// PruneStores prunes the versions of all stores up to a height.
func (rs *Store) PruneStores(height int64) error {
	rs.pruneStarling(height)
	return rs.sdkStore.PruneStores(height)
}

func (rs *Store) pruneStarling(height int64) {
	if height <= 0 {
		return
	}
	for _, s := range rs.stores {
		s.Prune(height)
		rs.pruned = height
	}
}
