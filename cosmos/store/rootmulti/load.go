package rootmulti

import (
	"errors"
	"fmt"

	dbm "github.com/cosmos/cosmos-db"

	"github.com/cosmos/cosmos-sdk/store/v2/rootmulti"
	"github.com/cosmos/cosmos-sdk/store/v2/types"

	"github.com/starling-kv/starling/cosmos/store"
	"github.com/starling-kv/starling/cosmos/store/internal/disk"
)

// LoadLatestVersion implements types.CommitMultiStore.
func (rs *Store) LoadLatestVersion() error { return rs.LoadLatestVersionAndUpgrade(nil) }

// LoadVersion implements types.CommitMultiStore.
func (rs *Store) LoadVersion(version int64) error { return rs.LoadVersionAndUpgrade(version, nil) }

// LoadLatestVersionAndUpgrade implements types.CommitMultiStore.
func (rs *Store) LoadLatestVersionAndUpgrade(u *types.StoreUpgrades) error {
	return rs.LoadVersionAndUpgrade(rootmulti.GetLatestVersion(rs.db), u)
}

// LoadVersionAndUpgrade implements types.CommitMultiStore.
func (rs *Store) LoadVersionAndUpgrade(version int64, u *types.StoreUpgrades) error {
	return rs.load(version, u, func() error { return rs.sdkStore.LoadVersionAndUpgrade(version, u) })
}

// load loads a version of the Starling stores, and calls others to load it in all other stores.
func (rs *Store) load(version int64, u *types.StoreUpgrades, others func() error) error {
	info := &types.CommitInfo{}
	if version != 0 {
		var err error
		if info, err = rs.GetCommitInfo(version); err != nil {
			return err
		}
	}
	states, err := rs.openStates(version, info, u)
	if err != nil {
		return err
	}
	l := loading{rs, version, info, u, states, map[types.StoreKey]*starling{}, map[types.StoreKey]bool{}}
	err = l.load()
	if err == nil {
		err = others()
	}
	if err == nil {
		err = rs.pruning.LoadSnapshotHeights(rs.db)
	}
	if err != nil {
		l.release()
		return err
	}
	for name, key := range rs.sdkStore.StoreKeysByName() {
		if u.IsDeleted(name) {
			l.leaving[key] = true
		}
	}
	rs.stores, rs.leaving = l.stores, l.leaving
	rs.last.Store(info)
	rs.watchMemory(version)
	return nil
}

// loading builds the Starling stores of a version.
type loading struct {
	rs      *Store
	version int64
	info    *types.CommitInfo
	u       *types.StoreUpgrades
	states  map[string][]store.Version // by name; only states that no store has taken over yet

	stores  map[types.StoreKey]*starling
	leaving map[types.StoreKey]bool
}

func (l *loading) load() error {
	for name, key := range l.rs.mounted {
		old := l.u.RenamedFrom(name)
		if l.version != 0 && old == "" && !l.u.IsAdded(name) && root(l.info, name) == nil {
			return fmt.Errorf("store %q is not in version %d: a new store must be listed in StoreUpgrades", name, l.version)
		}
		s, err := l.make(key)
		if err != nil {
			return err
		}
		switch {
		case l.u.IsDeleted(name):
			l.leaving[key] = true
			err = empty(s)
		case old != "":
			oldKey := types.NewKVStoreKey(old)
			var from *starling
			if from, err = l.make(oldKey); err != nil {
				return err
			}
			l.leaving[oldKey] = true
			err = errors.Join(copyAll(s, from), empty(from))
		}
		if err != nil {
			return fmt.Errorf("store %q: %w", name, err)
		}
	}
	return nil
}

func (l *loading) make(key types.StoreKey) (*starling, error) {
	o := l.rs.options
	s, err := store.New(store.Options{ChunkBytes: o.ChunkBytes, HistoryBytes: o.HistoryBytes}, l.states[key.Name()]...)
	if err != nil {
		return nil, err
	}
	delete(l.states, key.Name())
	l.stores[key] = s
	return s, nil
}

func (l *loading) release() {
	for _, versions := range l.states {
		for _, v := range versions {
			v.State.Release()
		}
	}
	for _, s := range l.stores {
		s.Close()
	}
}

func copyAll(to, from types.KVStore) error {
	it := from.Iterator(nil, nil)
	for ; it.Valid(); it.Next() {
		to.Set(it.Key(), it.Value())
	}
	return errors.Join(it.Error(), it.Close())
}

// empty deletes all keys of a store. The iterator is a snapshot and does not see the deletions.
func empty(s *starling) error {
	it := s.Iterator(nil, nil)
	for ; it.Valid(); it.Next() {
		s.Delete(it.Key())
	}
	return errors.Join(it.Error(), it.Close())
}

// openStates opens the disk of the Starling stores, if any is mounted, and returns their states at
// a version, and earlier ones, by name.
func (rs *Store) openStates(version int64, info *types.CommitInfo, u *types.StoreUpgrades) (map[string][]store.Version, error) {
	rs.flushed = rootmulti.GetLatestVersion(rs.db)
	if len(rs.mounted) == 0 {
		return nil, nil
	}
	for name := range rs.mounted {
		if err := disk.Check(name); err != nil {
			return nil, err
		}
	}
	if err := rs.openDisk(); err != nil {
		return nil, fmt.Errorf("failed to open the Starling stores: %w", err)
	}
	names := rs.committedNames(u)
	has, err := rs.hasStarling(rs.flushed, names)
	if err != nil {
		return nil, err
	}
	if err := rs.disk.Begin(rs.flushed, has); err != nil {
		return nil, err
	}
	others := rs.sdkStore.StoreKeysByName()
	roots, inInfo := map[string][]byte{}, map[string]bool{}
	for _, s := range info.StoreInfos {
		if names[s.Name] {
			roots[s.Name] = s.CommitId.Hash
		}
		// The type of a store that is not mounted now is unknown, so it may be a Starling store.
		inInfo[s.Name] = others[s.Name] == nil
	}
	return rs.disk.Load(version, roots, inInfo)
}

// committedNames returns the names under which the mounted Starling stores may have been committed
// before the upgrades.
func (rs *Store) committedNames(u *types.StoreUpgrades) map[string]bool {
	names := map[string]bool{}
	for name := range rs.mounted {
		if old := u.RenamedFrom(name); old != "" {
			names[old] = true
		} else if !u.IsAdded(name) {
			names[name] = true
		}
	}
	return names
}

// hasStarling reports whether the commit info of a version has one of these stores.
func (rs *Store) hasStarling(version int64, names map[string]bool) (bool, error) {
	if version == 0 {
		return false, nil
	}
	info, err := rs.GetCommitInfo(version)
	if err != nil {
		return false, err
	}
	for name := range names {
		if root(info, name) != nil {
			return true, nil
		}
	}
	return false, nil
}

func (rs *Store) openDisk() (err error) {
	if rs.disk != nil {
		return nil
	}
	o := rs.options
	if o.Dir == "" {
		return errors.New("a Starling store is mounted, but Options.Dir is empty")
	}
	if rs.memory.limit = o.MemoryBytes; rs.memory.limit == 0 {
		rs.memory.limit = availableMemory("/")
	}
	rs.disk, err = disk.Open(rs.db, disk.Options{Dir: o.Dir, FS: o.FS, Logger: rs.logger, ChunkBytes: o.ChunkBytes, PinEvery: o.PinEvery, FlushBlocks: o.flushBlocks})
	return err
}

// RollbackToVersion implements types.CommitMultiStore. It deletes all versions after target.
func (rs *Store) RollbackToVersion(target int64) error {
	complete := func(*types.CommitInfo, dbm.Batch) error { return nil }
	if rs.disk != nil && target > 0 {
		was, err := rs.GetCommitInfo(target)
		if err != nil {
			return err
		}
		has, err := rs.hasStarling(target, rs.committedNames(nil))
		if err != nil {
			return err
		}
		if err := rs.disk.Rollback(target, has); err != nil {
			return err
		}
		complete = func(info *types.CommitInfo, b dbm.Batch) error {
			*info = *was
			return rs.disk.ForgetAfter(b, target)
		}
	}
	if err := rs.db.merging(complete, func() error { return rs.sdkStore.RollbackToVersion(target) }); err != nil {
		return err
	}
	return rs.load(target, nil, func() error { return nil })
}
