package oracle

import (
	"encoding/binary"
	"testing"

	"github.com/cosmos/iavl"
	"github.com/cosmos/iavl/db"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync/iavlsynctest"
)

// fastVersions returns the versions in a database's fast index ("f" ‖ key → varint(version) ‖ …).
func fastVersions(t *testing.T, database *db.MemDB) map[string]int64 {
	versions := map[string]int64{}
	it, err := database.Iterator([]byte("f"), []byte("g"))
	require.NoError(t, err)
	defer it.Close()
	for ; it.Valid(); it.Next() {
		version, n := binary.Varint(it.Value())
		require.Positive(t, n)
		versions[string(it.Key()[1:])] = version
	}
	return versions
}

// leafVersions returns the versions that the hash covers.
func leafVersions(t *testing.T, tree *iavl.MutableTree) map[string]int64 {
	versions := map[string]int64{}
	for _, n := range export(t, tree) {
		if n.Height == 0 {
			versions[string(n.Key)] = n.Version
		}
	}
	return versions
}

// The versions in IAVL's fast index are not always those of the leaves; see docs/spec/iavl.md.
// Therefore a server verifies a chunk made from the index before it sends the chunk.
func TestFastIndexHasOtherVersions(t *testing.T) {
	set := func(tree *iavl.MutableTree, keys ...string) {
		var ops []iavlsynctest.Op
		for _, key := range keys {
			ops = append(ops, iavlsynctest.Op{Key: []byte(key), Value: []byte("value")})
		}
		save(t, tree, ops)
	}
	open := func(database *db.MemDB, options ...iavl.Option) *iavl.MutableTree {
		tree := iavl.NewMutableTree(database, 0, false, iavl.NewNopLogger(), options...)
		_, err := tree.Load()
		require.NoError(t, err)
		return tree
	}

	// The usual case.
	database := db.NewMemDB()
	tree := open(database)
	set(tree, "a", "b")
	set(tree, "b", "c")
	require.Equal(t, map[string]int64{"a": 1, "b": 2, "c": 2}, leafVersions(t, tree))
	require.Equal(t, leafVersions(t, tree), fastVersions(t, database))

	// A store that was added at height 10: the index has its first leaves at version 1.
	database = db.NewMemDB()
	tree = open(database, iavl.InitialVersionOption(10))
	set(tree, "a", "b")
	set(tree, "b", "c")
	require.Equal(t, map[string]int64{"a": 10, "b": 11, "c": 11}, leafVersions(t, tree))
	require.Equal(t, map[string]int64{"a": 1, "b": 11, "c": 11}, fastVersions(t, database))

	// A store that was restored by state sync: the index is built later, with one version for all
	// leaves.
	database = db.NewMemDB()
	importer, err := iavl.NewMutableTree(database, 0, false, iavl.NewNopLogger()).Import(tree.Version())
	require.NoError(t, err)
	for _, n := range export(t, tree) {
		require.NoError(t, importer.Add(&iavl.ExportNode{Key: n.Key, Value: n.Value, Version: n.Version, Height: n.Height}))
	}
	require.NoError(t, importer.Commit())
	joined := open(database)
	require.Equal(t, tree.Hash(), joined.Hash())
	require.Equal(t, leafVersions(t, tree), leafVersions(t, joined))
	require.Equal(t, map[string]int64{"a": 11, "b": 11, "c": 11}, fastVersions(t, database))
}
