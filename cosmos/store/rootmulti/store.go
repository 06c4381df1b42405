package rootmulti

import (
	"fmt"
	"maps"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cometbft/cometbft/crypto/merkle"
	dbm "github.com/cosmos/cosmos-db"

	"cosmossdk.io/log/v2"
	"github.com/cosmos/cosmos-sdk/store/v2/pruning"
	"github.com/cosmos/cosmos-sdk/store/v2/rootmulti"
	snapshottypes "github.com/cosmos/cosmos-sdk/store/v2/snapshots/types"
	"github.com/cosmos/cosmos-sdk/store/v2/types"

	"github.com/starling-kv/starling/cosmos/store"
	"github.com/starling-kv/starling/cosmos/store/internal/disk"
)

// Options are the options of the Starling stores (type store.Type). They have no effect if no such
// store is mounted.
type Options struct {
	// Dir is the folder in which the stores keep their leaves. It belongs to the multi-store's
	// database: copy and restore both together. Required.
	Dir string
	FS  vfs.FS // default: the operating system's
	// ChunkBytes is the chunk limit of every tree; 0: 1 MiB. App hashes depend on it, so all nodes
	// must use the same value and never change it.
	ChunkBytes uint64
	// HistoryBytes limits, for each store, the memory of the versions before the last. Beyond it
	// the oldest versions are dropped, even if they were not pruned; 0: store.DefaultHistoryBytes.
	HistoryBytes uint64
	// MemoryBytes is the memory available to the whole node. A warning is logged when the stores
	// take half of it, and an error at three quarters. 0: the minimum of GOMEMLIMIT, the cgroup
	// limit and the machine's memory.
	MemoryBytes uint64
	// PinEvery is the number of heights between two states that are kept on disk for
	// RollbackToVersion and LoadVersion; 0: 1,000. The last two such states are kept.
	PinEvery int64

	flushBlocks int // disk.Options.FlushBlocks, for tests
}

type (
	sdkStore = rootmulti.Store
	starling = store.Store
)

// Store is a types.CommitMultiStore. Its concurrency rules are those of the SDK's multi-store: one
// goroutine changes and commits it, while others may query it and take snapshots.
type Store struct {
	// sdkStore has all stores except the Starling stores. Its pruning is "nothing" because this
	// package decides what is pruned. Its commit info in memory does not have the Starling stores.
	*sdkStore

	db      *database
	logger  log.Logger
	options Options
	pruning *pruning.Manager

	mounted        map[string]types.StoreKey // keys of the Starling stores, by name
	stores         map[types.StoreKey]*starling
	leaving        map[types.StoreKey]bool // stores of any type that the next commit removes
	initialVersion int64
	last           atomic.Pointer[types.CommitInfo] // has all stores; nil: nothing was loaded

	listeners map[types.StoreKey]*types.MemoryListener

	disk    *disk.Disk // nil: no Starling store was mounted when a version was loaded
	flushed int64      // last version whose commit info is on disk
	pruned  int64      // height pruned in memory, not yet passed to disk.Prune; 0: none
	memory  memoryWatch
}

var (
	_ types.CommitMultiStore          = (*Store)(nil)
	_ types.Queryable                 = (*Store)(nil)
	_ snapshottypes.SnapshotAnnouncer = (*Store)(nil)
)

// NewStore returns a multi-store over a database, without stores and with pruning "nothing". The
// caller mounts stores, loads a version, and calls Close at the end.
func NewStore(db dbm.DB, logger log.Logger, options Options) *Store {
	wrapped := &database{DB: db}
	return &Store{
		sdkStore:  rootmulti.NewStore(wrapped, logger),
		db:        wrapped,
		logger:    logger,
		options:   options,
		pruning:   pruning.NewManager(db, logger),
		mounted:   map[string]types.StoreKey{},
		listeners: map[types.StoreKey]*types.MemoryListener{},
	}
}

// Close flushes the Starling stores to their folder and closes the folder. It does not close the
// multi-store's database or the IAVL stores. A process that exits without calling Close loses no
// data.
func (rs *Store) Close() error {
	if rs.disk == nil {
		return nil
	}
	d := rs.disk
	rs.disk = nil
	return d.Close()
}

// MountStoreWithDB implements types.CommitMultiStore. For a store of type store.Type, db is
// ignored: the store uses the multi-store's database and folder.
func (rs *Store) MountStoreWithDB(key types.StoreKey, typ types.StoreType, db dbm.DB) {
	if key != nil && rs.mounted[key.Name()] != nil {
		panic(fmt.Errorf("store %q is already mounted", key.Name()))
	}
	if key == nil || typ != store.Type {
		rs.sdkStore.MountStoreWithDB(key, typ, db)
		return
	}
	if rs.sdkStore.StoreKeysByName()[key.Name()] != nil {
		panic(fmt.Errorf("store %q is already mounted", key.Name()))
	}
	rs.mounted[key.Name()] = key
}

// StoreKeysByName returns the keys of all stores.
func (rs *Store) StoreKeysByName() map[string]types.StoreKey {
	all := maps.Clone(rs.sdkStore.StoreKeysByName())
	maps.Copy(all, rs.mounted)
	return all
}

// GetStore implements types.MultiStore.
func (rs *Store) GetStore(key types.StoreKey) types.Store {
	if s := rs.stores[key]; s != nil {
		return s
	}
	return rs.sdkStore.GetStore(key)
}

// GetStoreByName returns the store with a name, or nil if no store has that name.
func (rs *Store) GetStoreByName(name string) types.Store {
	if s := rs.stores[rs.mounted[name]]; s != nil {
		return s
	}
	return rs.sdkStore.GetStoreByName(name)
}

// DefaultProofRuntime returns a runtime that verifies the proofs of IAVL stores and of Starling
// stores.
func DefaultProofRuntime() *merkle.ProofRuntime { return store.ProofRuntime() }
