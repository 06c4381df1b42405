package kv

import (
	"errors"
	"math"
	"os"
	"path/filepath"

	"github.com/crypto-org-chain/cronos/memiavl"

	"github.com/starling-kv/starling/internal/child"
)

// memiavlStore is memiavl.DB with one store. Its log is never synced: a goroutine writes it, which
// is the default, or the commit waits for the write call. It starts in memory, where its commits
// are fastest; Settle writes the snapshot from which it reopens.
type memiavlStore struct {
	db *memiavl.DB
	memiavlTree
}

// syncedMemiavl syncs memiavl's log after each commit. memiavl has no option for this.
type syncedMemiavl struct {
	*memiavlStore
	log string // folder of the segments of the log, whose names are in order
}

func openSyncedMemiavl(dir string) (Store, error) {
	s, err := openMemiavl(dir, -1)
	if err != nil {
		return nil, err
	}
	return &syncedMemiavl{s, filepath.Join(dir, "memiavl", "wal")}, nil
}

func (m *syncedMemiavl) Commit() error {
	if err := m.memiavlStore.Commit(); err != nil {
		return err
	}
	segments, err := os.ReadDir(m.log)
	if err != nil {
		return err
	}
	newest, err := os.Open(filepath.Join(m.log, segments[len(segments)-1].Name()))
	if err != nil {
		return err
	}
	return errors.Join(newest.Sync(), newest.Close())
}

// memiavlTree is memiavl's tree without a log.
type memiavlTree struct{ tree *memiavl.Tree }

func openMemiavl(dir string, buffer int) (*memiavlStore, error) {
	db, err := memiavl.Load(filepath.Join(dir, "memiavl"), memiavl.Options{
		CreateIfMissing: true, InitialStores: []string{"kv"}, AsyncCommitBuffer: buffer, SnapshotInterval: math.MaxUint32,
	})
	if err != nil {
		return nil, err
	}
	return &memiavlStore{db, memiavlTree{db.TreeByName("kv")}}, nil
}

func changeSet(changes []child.Change) memiavl.ChangeSet {
	array := make([]memiavl.KVPair, len(changes))
	set := memiavl.ChangeSet{Pairs: make([]*memiavl.KVPair, len(changes))}
	for i, c := range changes {
		array[i] = memiavl.KVPair{Delete: c.Value == nil, Key: c.Key, Value: c.Value}
		set.Pairs[i] = &array[i]
	}
	return set
}

func (m *memiavlStore) Change(changes []child.Change) error {
	return m.db.ApplyChangeSet("kv", changeSet(changes))
}

func (m *memiavlStore) Commit() error {
	_, err := m.db.Commit()
	return err
}

func (m *memiavlStore) Settle() error {
	if err := errors.Join(m.db.WaitAsyncCommit(), m.db.RewriteSnapshot(), m.db.Reload()); err != nil {
		return err
	}
	m.tree = m.db.TreeByName("kv")
	return nil
}

func (m *memiavlStore) Close() error { return m.db.Close() }

func (m *memiavlTree) Change(changes []child.Change) error {
	m.tree.ApplyChangeSet(changeSet(changes))
	return nil
}

func (m *memiavlTree) Commit() error {
	_, _, err := m.tree.SaveVersion(true)
	return err
}

func (m *memiavlTree) Root() []byte          { return m.tree.RootHash() }
func (m *memiavlTree) Get(key []byte) []byte { return m.tree.Get(key) }
func (m *memiavlTree) Settle() error         { return nil }
func (m *memiavlTree) Close() error          { return m.tree.Close() }

func (m *memiavlTree) Iterate(n int) (read int, err error) {
	it := m.tree.Iterator(nil, nil, true)
	for ; read < n && it.Valid(); it.Next() {
		if len(it.Key()) > 0 && len(it.Value()) > 0 {
			read++
		}
	}
	return read, it.Close()
}

func (m *memiavlTree) Prove(key []byte) (int, error) {
	proof, err := m.tree.GetMembershipProof(key)
	if err != nil {
		return 0, err
	}
	b, err := proof.Marshal()
	return len(b), err
}
