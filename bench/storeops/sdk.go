package main

import (
	"errors"
	"fmt"
	"path/filepath"

	dbm "github.com/cosmos/cosmos-db"

	"cosmossdk.io/log"
	"cosmossdk.io/store/metrics"
	"cosmossdk.io/store/rootmulti"
	"cosmossdk.io/store/types"

	"github.com/starling-kv/starling/bench/ops"
	"github.com/starling-kv/starling/cosmos/store"
	starlingmulti "github.com/starling-kv/starling/cosmos/store/rootmulti"
)

// iavlCacheSize is the default of the SDK's server (app.toml, iavl-cache-size).
const iavlCacheSize = 781_250

var storeKey = types.NewKVStoreKey("kv")

// sdkStore is a multi-store of the SDK, or ours, whose one store is called "kv".
type sdkStore struct {
	ms      types.CommitMultiStore
	kv      types.CommitKVStore
	last    []byte
	closers []func() error
}

func openIAVL(dir string) (ops.Store, error) {
	db, err := dbm.NewGoLevelDB("application", dir, nil)
	if err != nil {
		return nil, err
	}
	ms := rootmulti.NewStore(db, log.NewNopLogger(), metrics.NewNoOpMetrics())
	ms.SetIAVLCacheSize(iavlCacheSize)
	return load(ms, types.StoreTypeIAVL, db.Close)
}

// openStarling opens ours. Without sync, what a commit writes is on its way to the disk only, as
// with memiavl.
func openStarling(dir string, sync bool) (ops.Store, error) {
	level, err := dbm.NewGoLevelDB("application", dir, nil)
	if err != nil {
		return nil, err
	}
	db := dbm.DB(level)
	if !sync {
		db = unsynced{level}
	}
	ms := starlingmulti.NewStore(db, log.NewNopLogger(), metrics.NewNoOpMetrics(), starlingmulti.Options{Dir: filepath.Join(dir, "starling")})
	return load(ms, store.Type, ms.Close, level.Close)
}

func load(ms types.CommitMultiStore, typ types.StoreType, closers ...func() error) (ops.Store, error) {
	s := &sdkStore{ms: ms, closers: closers}
	ms.MountStoreWithDB(storeKey, typ, nil)
	if err := ms.LoadLatestVersion(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.kv = ms.GetCommitKVStore(storeKey)
	s.last = s.kv.LastCommitID().Hash
	return s, nil
}

func (s *sdkStore) Change(changes []ops.Change) error {
	for _, c := range changes {
		if c.Value == nil {
			s.kv.Delete(c.Key)
		} else {
			s.kv.Set(c.Key, c.Value)
		}
	}
	return nil
}

// commit is what baseapp calls: the app hash in FinalizeBlock, then Commit.
func (s *sdkStore) Commit() error {
	s.ms.WorkingHash()
	s.ms.Commit()
	s.last = s.kv.LastCommitID().Hash
	return nil
}

func (s *sdkStore) Root() []byte          { return s.last }
func (s *sdkStore) Get(key []byte) []byte { return s.kv.Get(key) }
func (s *sdkStore) Settle() error         { return nil }

func (s *sdkStore) Iterate(n int) (read int, err error) {
	it := s.kv.Iterator(nil, nil)
	for ; read < n && it.Valid(); it.Next() {
		if len(it.Key()) > 0 && len(it.Value()) > 0 {
			read++
		}
	}
	return read, errors.Join(it.Error(), it.Close())
}

func (s *sdkStore) Prove(key []byte) (n int, err error) {
	q, ok := s.kv.(types.Queryable)
	if !ok {
		return 0, errors.New("it cannot be queried")
	}
	r, err := q.Query(&types.RequestQuery{Path: "/key", Data: key, Height: s.kv.LastCommitID().Version, Prove: true})
	if err != nil {
		return 0, err
	}
	if r.ProofOps == nil {
		return 0, fmt.Errorf("key %x: no proof: %s", key, r.Log)
	}
	for _, op := range r.ProofOps.Ops {
		n += len(op.Data)
	}
	return n, nil
}

func (s *sdkStore) Close() (err error) {
	for _, f := range s.closers {
		err = errors.Join(err, f())
	}
	return err
}

// unsynced is a database that waits for no disk.
type unsynced struct{ dbm.DB }

func (u unsynced) SetSync(key, value []byte) error { return u.Set(key, value) }
func (u unsynced) NewBatch() dbm.Batch             { return unsyncedBatch{u.DB.NewBatch()} }

type unsyncedBatch struct{ dbm.Batch }

func (b unsyncedBatch) WriteSync() error { return b.Write() }

// starlingTree is our store without a multi-store: no record, no disk, one version.
type starlingTree struct{ sdkStore }

func openStarlingTree() (ops.Store, error) {
	s, err := store.New(store.Options{})
	if err != nil {
		return nil, err
	}
	return &starlingTree{sdkStore{kv: s}}, nil
}

func (t *starlingTree) Commit() error {
	id := t.kv.Commit()
	t.last = id.Hash
	t.kv.(*store.Store).Prune(id.Version - 1)
	return nil
}

func (t *starlingTree) Close() error {
	t.kv.(*store.Store).Close()
	return nil
}
