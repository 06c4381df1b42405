package oracle

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/cosmos/iavl"
	"github.com/cosmos/iavl/db"
	"github.com/stretchr/testify/require"
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

// leafVersions returns the versions that the hash binds.
func leafVersions(t *testing.T, tree *iavl.MutableTree, exported func(n *iavl.ExportNode)) map[string]int64 {
	versions := map[string]int64{}
	immutable, err := tree.GetImmutable(tree.Version())
	require.NoError(t, err)
	e, err := immutable.Export()
	require.NoError(t, err)
	defer e.Close()
	for {
		n, err := e.Next()
		if errors.Is(err, iavl.ErrorExportDone) {
			return versions
		}
		require.NoError(t, err)
		exported(n)
		if n.Height == 0 {
			versions[string(n.Key)] = n.Version
		}
	}
}

// The versions in IAVL's fast index are not always those of the leaves, as docs/spec/iavl.md warns.
// So a server proves a chunk that it made from the index before it sends it.
func TestFastIndexHasOtherVersions(t *testing.T) {
	ignore := func(*iavl.ExportNode) {}
	set := func(tree *iavl.MutableTree, keys ...string) {
		for _, key := range keys {
			_, err := tree.Set([]byte(key), []byte("value"))
			require.NoError(t, err)
		}
		_, _, err := tree.SaveVersion()
		require.NoError(t, err)
	}

	// The usual case.
	database := db.NewMemDB()
	tree := iavl.NewMutableTree(database, 0, false, iavl.NewNopLogger())
	_, err := tree.Load()
	require.NoError(t, err)
	set(tree, "a", "b")
	set(tree, "b", "c")
	require.Equal(t, map[string]int64{"a": 1, "b": 2, "c": 2}, leafVersions(t, tree, ignore))
	require.Equal(t, leafVersions(t, tree, ignore), fastVersions(t, database))

	// A store that was added at height 10: the index has its first leaves at version 1.
	database = db.NewMemDB()
	tree = iavl.NewMutableTree(database, 0, false, iavl.NewNopLogger(), iavl.InitialVersionOption(10))
	_, err = tree.Load()
	require.NoError(t, err)
	set(tree, "a", "b")
	set(tree, "b", "c")
	require.Equal(t, map[string]int64{"a": 10, "b": 11, "c": 11}, leafVersions(t, tree, ignore))
	require.Equal(t, map[string]int64{"a": 1, "b": 11, "c": 11}, fastVersions(t, database))

	// A store that came by state sync: the index is built later, with one version for all.
	var nodes []*iavl.ExportNode
	want := leafVersions(t, tree, func(n *iavl.ExportNode) { nodes = append(nodes, n) })
	database = db.NewMemDB()
	joined := iavl.NewMutableTree(database, 0, false, iavl.NewNopLogger())
	importer, err := joined.Import(tree.Version())
	require.NoError(t, err)
	for _, n := range nodes {
		require.NoError(t, importer.Add(n))
	}
	require.NoError(t, importer.Commit())
	joined = iavl.NewMutableTree(database, 0, false, iavl.NewNopLogger())
	_, err = joined.Load()
	require.NoError(t, err)
	require.Equal(t, tree.Hash(), joined.Hash())
	require.Equal(t, want, leafVersions(t, joined, ignore))
	require.Equal(t, map[string]int64{"a": 11, "b": 11, "c": 11}, fastVersions(t, database))
}
