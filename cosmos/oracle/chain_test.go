package oracle

import (
	"errors"
	"testing"

	"github.com/cosmos/iavl"
	"github.com/cosmos/iavl/db"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync/iavlsynctest"
	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/cosmos/nodedb/nodedbtest"
)

// chain is a multi-store of iavl.MutableTree, without the map for the app hash. Its database uses
// the SDK's prefixes.
type chain struct {
	db     *db.MemDB
	height int64
	trees  map[string]*iavl.MutableTree
}

func newChain() *chain { return &chain{db: db.NewMemDB(), trees: map[string]*iavl.MutableTree{}} }

func (c *chain) DB() nodedb.DB { return nodedb.Of(c.db) }

func (c *chain) Load(t *testing.T, height int64, stores []string) nodedbtest.Chain {
	loaded := &chain{db: c.db, height: height, trees: map[string]*iavl.MutableTree{}}
	for _, name := range stores {
		tree := c.tree(name)
		version, err := tree.LoadVersion(height)
		require.NoError(t, err)
		require.Equal(t, height, version)
		loaded.trees[name] = tree
	}
	return loaded
}

func (c *chain) tree(store string, options ...iavl.Option) *iavl.MutableTree {
	prefixed := db.NewPrefixDB(c.db, []byte("s/k:"+store+"/"))
	return iavl.NewMutableTree(prefixed, 100, false, iavl.NewNopLogger(), options...)
}

func (c *chain) Commit(t *testing.T, block map[string][]iavlsynctest.Op) {
	c.height++
	commit := nodedb.Commit{Height: c.height}
	for _, name := range iavlsynctest.Keys(block) {
		if c.trees[name] == nil {
			c.trees[name] = c.tree(name, iavl.InitialVersionOption(uint64(c.height)))
			_, err := c.trees[name].Load()
			require.NoError(t, err)
		}
		hash, version := save(t, c.trees[name], block[name])
		require.Equal(t, c.height, version)
		commit.Stores = append(commit.Stores, nodedb.CommitStore{Name: name, Version: version, Hash: hash})
	}
	nodedbtest.WriteCommit(t, c.DB(), &commit)
}

// save applies operations to a tree, and saves a version.
func save(t *testing.T, tree *iavl.MutableTree, ops []iavlsynctest.Op) (hash []byte, version int64) {
	t.Helper()
	for _, op := range ops {
		var err error
		if op.Value == nil {
			_, _, err = tree.Remove(op.Key)
		} else {
			_, err = tree.Set(op.Key, op.Value)
		}
		require.NoError(t, err)
	}
	hash, version, err := tree.SaveVersion()
	require.NoError(t, err)
	return hash, version
}

func (c *chain) Root(_ *testing.T, store string) []byte { return c.trees[store].Hash() }

func (*chain) AppHash(*testing.T) []byte { return nil }

func (c *chain) Export(t *testing.T, store string) []iavlsynctest.Exported {
	return export(t, c.trees[store])
}

// export exports the last version of a tree.
func export(t *testing.T, tree *iavl.MutableTree) (nodes []iavlsynctest.Exported) {
	t.Helper()
	immutable, err := tree.GetImmutable(tree.Version())
	require.NoError(t, err)
	e, err := immutable.Export()
	require.NoError(t, err)
	defer e.Close()
	for {
		n, err := e.Next()
		if errors.Is(err, iavl.ErrorExportDone) {
			return nodes
		}
		require.NoError(t, err)
		nodes = append(nodes, iavlsynctest.Exported{Key: n.Key, Value: n.Value, Version: n.Version, Height: n.Height})
	}
}

func (c *chain) Prune(t *testing.T, height int64) {
	for _, tree := range c.trees {
		require.NoError(t, tree.DeleteVersionsTo(height))
	}
}

func (c *chain) Prove(t *testing.T, store string, key []byte, there bool) {
	tree, err := c.trees[store].GetImmutable(c.height)
	require.NoError(t, err)
	prove, verify := tree.GetNonMembershipProof, tree.VerifyNonMembership
	if there {
		prove, verify = tree.GetMembershipProof, tree.VerifyMembership
	}
	proof, err := prove(key)
	require.NoError(t, err)
	ok, err := verify(proof, key)
	require.NoError(t, err)
	require.True(t, ok)
}

func TestFormats(t *testing.T) {
	iavlsynctest.Run(t, "../iavlsync/testdata/vectors.json", func(*testing.T) iavlsynctest.Chain { return newChain() })
}

func TestInstalled(t *testing.T) {
	nodedbtest.Run(t, func(*testing.T) nodedbtest.Home { return newChain() })
}
