package storage_test

import (
	"bytes"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/spectest"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/sgc"
	"github.com/starling-kv/starling/storage/treestore"
)

// TestSpecExample: docs/spec/state.md has all records of a database.
func TestSpecExample(t *testing.T) {
	fs := vfs.NewMem()
	zone, err := storage.Open("zone", storage.Options{FS: fs})
	require.NoError(t, err)
	empty, err := avlstar.Empty(10)
	require.NoError(t, err)
	defer empty.Release()
	var changes []avlstar.Change
	for _, leaf := range []string{"a1", "b2", "c3"} {
		changes = append(changes, avlstar.Change{Key: []byte(leaf[:1]), Value: []byte(leaf[1:])})
	}
	v, err := empty.Apply(changes)
	require.NoError(t, err)
	defer v.Release()
	store := treestore.New(treestore.Options{Zone: zone, ChainID: "demo-1", Cache: sgc.New(1 << 20)})
	require.NoError(t, store.Commit(1, v, nil, changes))
	require.NoError(t, zone.Close())

	db, err := pebble.Open("zone", &pebble.Options{FS: fs, ReadOnly: true, Merger: storage.LeafMerger, Logger: storage.Quiet})
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	it, err := db.NewIter(nil)
	require.NoError(t, err)
	var records [][]byte
	for it.First(); it.Valid(); it.Next() {
		records = append(records, bytes.Clone(it.Key()), bytes.Clone(it.Value()))
	}
	require.NoError(t, it.Close())
	spectest.Require(t, "state.md", records...)
}
