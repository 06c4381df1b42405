package store

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"cosmossdk.io/log/v2"
	dbm "github.com/cosmos/cosmos-db"
	"github.com/cosmos/cosmos-sdk/store/v2/rootmulti"
	"github.com/cosmos/cosmos-sdk/store/v2/snapshots"
	snapshottypes "github.com/cosmos/cosmos-sdk/store/v2/snapshots/types"
	"github.com/cosmos/cosmos-sdk/store/v2/types"

	"github.com/starling-kv/starling/bench/sdk/usage"
	"github.com/starling-kv/starling/cosmos/packed"
	"github.com/starling-kv/starling/internal/child"
)

// iavlCacheSize is the default of the SDK's server (app.toml, iavl-cache-size).
const iavlCacheSize = 781_250

var storeKey = types.NewKVStoreKey("kv")

// end is one side of a join: an application's store and its snapshots.
type end struct {
	db      dbm.DB
	state   *rootmulti.Store
	meta    dbm.DB // snapshot metadata
	files   *snapshots.Store
	manager *snapshots.Manager
}

func openEnd(dir string, backend dbm.BackendType) (e *end, err error) {
	e = &end{}
	if e.db, err = dbm.NewDB("application", backend, dir); err != nil {
		return nil, err
	}
	e.state = rootmulti.NewStore(e.db, log.NewNopLogger())
	e.state.SetIAVLCacheSize(iavlCacheSize)
	e.state.MountStoreWithDB(storeKey, types.StoreTypeIAVL, nil)
	if err := e.state.LoadLatestVersion(); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	folder := filepath.Join(dir, "snapshots")
	if err := os.MkdirAll(folder, 0o750); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	if e.meta, err = dbm.NewGoLevelDB("metadata", folder, nil); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	if e.files, err = snapshots.NewStore(e.meta, folder); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	e.manager = snapshots.NewManager(e.files, snapshottypes.NewSnapshotOptions(0, 0), e.state, nil, log.NewNopLogger())
	return e, nil
}

// Close implements child.Worker.
func (e *end) Close() (err error) {
	if e.meta != nil {
		err = e.meta.Close()
	}
	return errors.Join(err, e.db.Close())
}

// node is the source, and what a join from it needs.
type node struct {
	*end
	dir      string
	joins    int
	backend  dbm.BackendType
	records  bool // Begin.Records
	packer   *packed.Packer
	unpacker *packed.Unpacker
	snapshot *snapshottypes.Snapshot // nil: none created

	busy atomic.Bool // a background snapshot is in progress
	made atomic.Int64
	err  atomic.Pointer[error]
}

func openNode(b Begin) (*node, error) {
	backend := dbm.BackendType(b.Backend)
	e, err := openEnd(filepath.Join(b.Dir, "source"), backend)
	if err != nil {
		return nil, err
	}
	return &node{end: e, dir: b.Dir, backend: backend, records: b.Records, packer: packed.NewPacker(), unpacker: packed.NewUnpacker()}, nil
}

// commit makes a block of changes, which are in key order, as the SDK's cache hands them to IAVL.
func (n *node) commit(changes []child.Change, snapshot bool) (Answer, error) {
	if n.records {
		for i, c := range changes {
			changes[i] = record(c)
		}
	}
	from := time.Now()
	slices.SortFunc(changes, func(a, b child.Change) int { return bytes.Compare(a.Key, b.Key) })
	kv := n.state.GetKVStore(storeKey)
	for _, c := range changes {
		if c.Value == nil {
			kv.Delete(c.Key)
		} else {
			kv.Set(c.Key, c.Value)
		}
	}
	id := n.state.Commit()
	a := Answer{Nanos: time.Since(from).Nanoseconds(), Root: id.Hash}
	if snapshot && n.busy.CompareAndSwap(false, true) {
		go n.background(id.Version)
	}
	a.Snapshots, a.Busy = int(n.made.Load()), n.busy.Load()
	if err := n.err.Load(); err != nil {
		return a, *err
	}
	return a, nil
}

// background makes a snapshot concurrently with commits, like Manager.SnapshotIfApplicable. It
// makes one at a time, because the manager requires it, and removes the previous one first.
func (n *node) background(height int64) {
	defer n.busy.Store(false)
	_, err := n.manager.Prune(0)
	if err == nil {
		_, err = n.manager.Create(uint64(height))
	}
	if err != nil {
		n.err.Store(&err)
		return
	}
	n.made.Add(1)
}

// create makes a snapshot of the newest height.
func (n *node) create() (a Answer, err error) {
	debug.FreeOSMemory() // free the load's garbage, so that it does not count for the snapshot
	cpu, from := usage.CPUSeconds(), time.Now()
	if n.snapshot, err = n.manager.Create(uint64(n.state.LastCommitID().Version)); err != nil {
		return a, err
	}
	a.Seconds, a.CPUS = time.Since(from).Seconds(), usage.CPUSeconds()-cpu
	return a, nil
}

// restore restores the snapshot of create into an empty store, with ABCI's snapshot calls but
// without a network.
func (n *node) restore() (a Answer, err error) {
	if n.snapshot == nil {
		return a, errors.New("no snapshot has been created")
	}
	n.joins++
	dir := filepath.Join(n.dir, fmt.Sprintf("target-%d", n.joins))
	target, err := openEnd(dir, n.backend)
	if err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, target.Close(), os.RemoveAll(dir)) }()
	debug.FreeOSMemory() // free the load's garbage, so that it does not count for the restore
	s := n.snapshot
	cpu, from := usage.CPUSeconds(), time.Now()
	if err := target.manager.Restore(*s); err != nil {
		return a, err
	}
	for done := false; !done; a.Chunks++ {
		chunk, err := n.manager.LoadChunk(s.Height, s.Format, uint32(a.Chunks))
		if err != nil {
			return a, err
		}
		if chunk == nil {
			return a, fmt.Errorf("chunk %d of %d is missing", a.Chunks, s.Chunks)
		}
		a.Bytes += int64(len(chunk))
		if done, err = target.manager.RestoreChunk(chunk); err != nil {
			return a, err
		}
	}
	a.Root = target.state.LastCommitID().Hash
	a.Seconds, a.CPUS = time.Since(from).Seconds(), usage.CPUSeconds()-cpu
	if want := n.state.LastCommitID().Hash; !bytes.Equal(a.Root, want) {
		return a, fmt.Errorf("the restored state has the hash %x, the snapshot has %x", a.Root, want)
	}
	return a, nil
}
