package kv

import (
	"errors"
	"fmt"
	"path/filepath"

	dbm "github.com/cosmos/cosmos-db"

	"cosmossdk.io/log/v2"
	"github.com/cosmos/cosmos-sdk/store/v2/rootmulti"
	"github.com/cosmos/cosmos-sdk/store/v2/types"

	"github.com/starling-kv/starling/cosmos/store"
	starlingmulti "github.com/starling-kv/starling/cosmos/store/rootmulti"
	"github.com/starling-kv/starling/internal/child"
)

// iavlCacheSize is the default of the SDK's server (app.toml, iavl-cache-size).
const iavlCacheSize = 781_250

var storeKey = types.NewKVStoreKey("kv")

// sdkStore is the SDK's multi-store or ours, with one store called "kv".
type sdkStore struct {
	ms      types.CommitMultiStore
	kv      types.CommitKVStore
	last    []byte
	closers []func() error
}

func openIAVL(dir string) (Store, error) {
	db, err := dbm.NewGoLevelDB("application", dir, nil)
	if err != nil {
		return nil, err
	}
	ms := rootmulti.NewStore(db, log.NewNopLogger())
	ms.SetIAVLCacheSize(iavlCacheSize)
	return load(ms, types.StoreTypeIAVL, db.Close)
}

// openStarling opens our store. Without sync, a commit does not wait for the disk, as with memiavl.
func openStarling(dir string, sync bool) (Store, error) {
	level, err := dbm.NewGoLevelDB("application", dir, nil)
	if err != nil {
		return nil, err
	}
	db := dbm.DB(level)
	if !sync {
		db = unsynced{level}
	}
	ms := starlingmulti.NewStore(db, log.NewNopLogger(), starlingmulti.Options{Dir: filepath.Join(dir, "starling")})
	return load(ms, store.Type, ms.Close, level.Close)
}

func load(ms types.CommitMultiStore, typ types.StoreType, closers ...func() error) (Store, error) {
	s := &sdkStore{ms: ms, closers: closers}
	ms.MountStoreWithDB(storeKey, typ, nil)
	if err := ms.LoadLatestVersion(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.kv = ms.GetStore(storeKey).(types.CommitKVStore)
	s.last = s.kv.LastCommitID().Hash
	return s, nil
}

func (s *sdkStore) Change(changes []child.Change) error {
	for _, c := range changes {
		if c.Value == nil {
			s.kv.Delete(c.Key)
		} else {
			s.kv.Set(c.Key, c.Value)
		}
	}
	return nil
}

// Commit does what baseapp does: the app hash in FinalizeBlock, then Commit.
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
		return 0, errors.New("the store cannot be queried")
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

// unsynced is a database whose writes do not wait for the disk.
type unsynced struct{ dbm.DB }

func (u unsynced) SetSync(key, value []byte) error { return u.Set(key, value) }
func (u unsynced) NewBatch() dbm.Batch             { return unsyncedBatch{u.DB.NewBatch()} }

type unsyncedBatch struct{ dbm.Batch }

func (b unsyncedBatch) WriteSync() error { return b.Write() }

// starlingTree is our store without a multi-store: no records, no disk, one version.
type starlingTree struct{ sdkStore }

func openStarlingTree() (Store, error) {
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
