package rootmulti

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	dbm "github.com/cosmos/cosmos-db"
	"github.com/stretchr/testify/require"

	"cosmossdk.io/log/v2"
	"github.com/cosmos/cosmos-sdk/store/v2/types"
)

// mortal is a database whose process seems to be killed after a number of batches: later ones are
// lost. It returns no errors, since iavl unlocks a mutex twice after one.
type mortal struct {
	dbm.DB
	writes int // left
}

func (m *mortal) NewBatch() dbm.Batch { return &mortalBatch{m.DB.NewBatch(), m} }

func (m *mortal) NewBatchWithSize(n int) dbm.Batch { return &mortalBatch{m.DB.NewBatchWithSize(n), m} }

type mortalBatch struct {
	dbm.Batch
	of *mortal
}

func (b *mortalBatch) Write() error {
	if b.of.writes--; b.of.writes < 0 {
		return nil
	}
	return b.Batch.Write()
}

func (b *mortalBatch) WriteSync() error { return b.Write() }

// TestKilledBetweenBatches kills the commit of large IAVL stores between any two batches. Entries
// and hashes after a restart must be the same as without the kill.
func TestKilledBetweenBatches(t *testing.T) {
	names := []string{"a", "b"}
	open := func(db dbm.DB) *Store {
		s := NewStore(db, log.NewNopLogger(), Options{})
		for _, name := range names {
			s.MountStoreWithDB(types.NewKVStoreKey(name), types.StoreTypeIAVL, nil)
		}
		require.NoError(t, s.LoadLatestVersion())
		return s
	}
	commit := func(s *Store) types.CommitID {
		version := uint64(s.LatestVersion() + 1)
		for _, name := range names {
			st := s.GetKVStore(s.StoreKeysByName()[name])
			for i := range uint64(1000) {
				if key := binary.BigEndian.AppendUint64(nil, i); i%version == 1 {
					st.Delete(key)
				} else {
					size := 300
					if i%400 == 0 {
						size = 150_000 // more than iavl's limit of a batch
					}
					st.Set(key, bytes.Repeat([]byte{byte(version)}, size))
				}
			}
		}
		return s.Commit()
	}
	entries := func(s types.MultiStore, keys map[string]types.StoreKey) (all [][]byte) {
		for _, name := range names {
			it := s.GetKVStore(keys[name]).Iterator(nil, nil)
			for ; it.Valid(); it.Next() {
				all = append(all, it.Key(), it.Value())
			}
			require.NoError(t, it.Close())
		}
		return all
	}

	const versions = 4
	var want []types.CommitID
	reference := open(dbm.NewMemDB())
	for range versions + 1 {
		want = append(want, commit(reference))
	}
	for writes := 0; ; writes++ {
		db := &mortal{dbm.NewMemDB(), 1 << 30}
		s := open(db)
		for range versions - 1 {
			commit(s)
		}
		db.writes = writes
		commit(s)
		if db.writes >= 0 {
			require.Equal(t, len(names)+1, writes, "batches of a commit")
			return
		}
		db.writes = 1 << 30
		s = open(db)
		last := s.LastCommitID()
		require.Equal(t, want[versions-2], last)
		then, err := reference.CacheMultiStoreWithVersion(last.Version)
		require.NoError(t, err)
		if !slices.EqualFunc(entries(then, reference.StoreKeysByName()), entries(s, s.StoreKeysByName()), bytes.Equal) {
			t.Errorf("killed after %d batches: other entries", writes)
		}
		for last.Version <= versions {
			last = commit(s)
			require.Equal(t, want[last.Version-1], last, "killed after %d batches", writes)
		}
	}
}
