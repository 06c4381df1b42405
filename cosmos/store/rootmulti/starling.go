package rootmulti

import (
	"bytes"
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"
	dbm "github.com/cosmos/cosmos-db"

	"cosmossdk.io/store/iavl"
	"cosmossdk.io/store/types"

	"github.com/starling-kv/starling/cosmos/store"
	"github.com/starling-kv/starling/cosmos/store/internal/disk"
)

// Options of the stores of type store.Type. They do nothing where none is mounted.
type Options struct {
	// Dir is the folder of their leaves on disk, which belongs to the multi-store's database: who
	// copies or restores one does so with the other. Required.
	Dir string
	FS  vfs.FS // default: the operating system's
	// ChunkBytes is the chunk limit of every tree; 0: 1 MiB. App hashes depend on it, so it is the
	// same at all nodes, for ever.
	ChunkBytes uint64
	// HistoryBytes limits, for each store, the memory of versions before the last, beyond which the
	// oldest are given up before they are pruned; 0: store.DefaultHistoryBytes.
	HistoryBytes uint64
	// MemoryBytes is the memory that the node has for everything. The log has a warning when the
	// stores take half of it, and an error at three quarters. 0: the least of GOMEMLIMIT, the
	// control group's limit and the machine's memory.
	MemoryBytes uint64
	// PinEvery is the number of heights between two states that stay on disk, for RollbackToVersion
	// and LoadVersion; 0: 1,000. The last two stay.
	PinEvery int64

	flushBlocks int // disk.Options.FlushBlocks, for tests
}

type starling = store.Store

// versioned reports whether stores of a type have versions and a root in the app hash.
func versioned(typ types.StoreType) bool { return typ == types.StoreTypeIAVL || typ == store.Type }

func immutable(s types.CommitKVStore, version int64) (types.KVStore, error) {
	if s, ok := s.(*starling); ok {
		return s.GetImmutable(version)
	}
	return s.(*iavl.Store).GetImmutable(version)
}

// starlingNames returns the names under which Starling stores that are mounted, or were renamed to
// one that is, can have been committed.
func (rs *Store) starlingNames(upgrades *types.StoreUpgrades) map[string]bool {
	names := map[string]bool{}
	for key, params := range rs.storesParams {
		if params.typ != store.Type {
			continue
		}
		if old := upgrades.RenamedFrom(key.Name()); old != "" {
			names[old] = true
		} else if !upgrades.IsAdded(key.Name()) {
			names[key.Name()] = true
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
	for _, s := range info.StoreInfos {
		if names[s.Name] {
			return true, nil
		}
	}
	return false, nil
}

// loadStarling opens the disk of the Starling stores, if any is mounted, and reads those of ver.
func (rs *Store) loadStarling(ver int64, infos map[string]types.StoreInfo, upgrades *types.StoreUpgrades) (map[string][]store.Version, error) {
	rs.flushed = GetLatestVersion(rs.db)
	mounted := false
	for key, params := range rs.storesParams {
		if params.typ != store.Type {
			continue
		}
		mounted = true
		if err := disk.Check(key.Name()); err != nil {
			return nil, err
		}
	}
	if !mounted {
		return nil, nil
	}
	if err := rs.openDisk(); err != nil {
		return nil, fmt.Errorf("failed to open the Starling stores: %w", err)
	}
	names := rs.starlingNames(upgrades)
	has, err := rs.hasStarling(rs.flushed, names)
	if err != nil {
		return nil, err
	}
	if err := rs.disk.Begin(rs.flushed, has); err != nil {
		return nil, err
	}
	roots, inInfo := map[string][]byte{}, map[string]bool{}
	for name, info := range infos {
		if names[name] {
			roots[name] = info.CommitId.Hash
		}
		// Of a store that is not mounted now, the type is not known.
		key, mounted := rs.keysByName[name]
		inInfo[name] = !mounted || rs.storesParams[key].typ == store.Type
	}
	return rs.disk.Load(ver, roots, inInfo)
}

func (rs *Store) openDisk() (err error) {
	if rs.disk != nil {
		return nil
	}
	o := rs.options
	if o.Dir == "" {
		return fmt.Errorf("a Starling store is mounted, and Options.Dir has no folder")
	}
	if rs.memory.limit = o.MemoryBytes; rs.memory.limit == 0 {
		rs.memory.limit = availableMemory("/")
	}
	rs.disk, err = disk.Open(rs.db, disk.Options{Dir: o.Dir, FS: o.FS, Logger: rs.logger, ChunkBytes: o.ChunkBytes, PinEvery: o.PinEvery, FlushBlocks: o.flushBlocks})
	return err
}

func (rs *Store) newStarling(params storeParams, versions []store.Version) (*store.Store, error) {
	return store.New(store.Options{
		ChunkBytes: rs.options.ChunkBytes, HistoryBytes: rs.options.HistoryBytes,
		InitialVersion: int64(params.initialVersion), Metrics: rs.metrics,
	}, versions...)
}

// Close makes durable what the Starling stores have not written yet, and releases their folder. It
// closes neither the multi-store's database, nor anything of IAVL. A process that ends without it
// loses nothing.
func (rs *Store) Close() error {
	if rs.disk == nil {
		return nil
	}
	d := rs.disk
	rs.disk = nil
	return d.Close()
}

// commits are what a commit changed in the Starling stores.
type commits struct {
	rs      *Store
	version int64
	again   bool // that version was committed before
	of      []disk.Named
}

// takeCommits takes what the stores have just committed. It panics if that version was committed
// before, with another root: as IAVL's stores, these take the same blocks again, and no others.
func (rs *Store) takeCommits(version int64) commits {
	c := commits{rs: rs, version: version, again: version <= rs.flushed}
	for _, key := range keysFromStoreKeyMap(rs.stores) {
		if s, ok := rs.stores[key].(*starling); ok {
			if taken, ok := s.TakeCommit(); ok {
				c.of = append(c.of, disk.Named{Name: key.Name(), Commit: taken})
			}
		}
	}
	if c.again && len(c.of) > 0 {
		prior, err := rs.GetCommitInfo(version)
		if err != nil {
			panic(err)
		}
		for _, info := range rs.lastCommitInfo.StoreInfos {
			for _, before := range prior.StoreInfos {
				if before.Name == info.Name && versioned(rs.stores[rs.keysByName[info.Name]].GetStoreType()) && !bytes.Equal(before.CommitId.Hash, info.CommitId.Hash) {
					panic(fmt.Errorf("version %d of store %q was committed before with root %X, now it has %X: roll back before other blocks are executed", version, info.Name, before.CommitId.Hash, info.CommitId.Hash))
				}
			}
		}
	}
	return c
}

// log adds to the batch that makes the version durable.
func (c commits) log(batch dbm.Batch) error {
	switch {
	case len(c.of) == 0:
		return nil
	case c.again:
		c.rs.disk.Skip(c.version)
	default:
		if err := c.rs.disk.Log(batch, c.version, c.of); err != nil {
			return err
		}
	}
	if c.rs.pruned == 0 {
		return nil
	}
	pruned := c.rs.pruned
	c.rs.pruned = 0
	return c.rs.disk.Prune(batch, pruned)
}

// write hands the version over to the disk, when it is durable.
func (c commits) write() {
	if len(c.of) == 0 {
		return
	}
	if err := c.rs.disk.Write(c.version, c.of); err != nil {
		panic(fmt.Errorf("failed to write the Starling stores: %w", err))
	}
}

// rollbackStarling brings the disk of the Starling stores back to a version, if any is mounted;
// back adds what is left to do to the batch that makes cInfo the last one. cInfo is nil if there is
// none.
func (rs *Store) rollbackStarling(target int64) (cInfo *types.CommitInfo, back func(dbm.Batch) error, err error) {
	if rs.disk == nil {
		return nil, func(dbm.Batch) error { return nil }, nil
	}
	if cInfo, err = rs.GetCommitInfo(target); err != nil {
		return nil, nil, err
	}
	has, err := rs.hasStarling(target, rs.starlingNames(nil))
	if err != nil {
		return nil, nil, err
	}
	if err := rs.disk.Rollback(target, has); err != nil {
		return nil, nil, err
	}
	return cInfo, func(batch dbm.Batch) error { return rs.disk.ForgetAfter(batch, target) }, nil
}
