package old

import (
	"flag"
	"os"
	"testing"

	dbm "github.com/cometbft/cometbft-db"
	"github.com/cosmos/iavl"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync/iavlsynctest"
	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/cosmos/nodedb/nodedbtest"
)

var update = flag.Bool("update", false, "write the file that nodedbtest embeds")

// chain is a multi-store without its map.
type chain struct {
	db     dbm.DB
	height int64
	trees  map[string]*iavl.MutableTree
}

func (c *chain) Commit(t *testing.T, block map[string][]iavlsynctest.Op) {
	c.height++
	commit := nodedb.Commit{Height: c.height}
	for _, name := range iavlsynctest.Keys(block) {
		if c.trees[name] == nil {
			tree, err := iavl.NewMutableTree(dbm.NewPrefixDB(c.db, []byte("s/k:"+name+"/")), 100, false)
			require.NoError(t, err)
			_, err = tree.Load()
			require.NoError(t, err)
			c.trees[name] = tree
		}
		tree := c.trees[name]
		for _, op := range block[name] {
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
		require.Equal(t, c.height, version)
		commit.Stores = append(commit.Stores, nodedb.CommitStore{Name: name, Version: version, Hash: hash})
	}
	nodedbtest.WriteCommit(t, nodedb.Of(c.db), &commit)
}

func (c *chain) Root(t *testing.T, store string) []byte {
	hash, err := c.trees[store].Hash()
	require.NoError(t, err)
	return hash
}

func (c *chain) Prune(t *testing.T, height int64) {
	for _, tree := range c.trees {
		require.NoError(t, tree.DeleteVersionsRange(1, height+1))
	}
}

func (*chain) Prove(*testing.T, string, []byte, bool) {}

// TestHome: the file is what iavl v0.20 makes.
func TestHome(t *testing.T) {
	c := &chain{db: dbm.NewMemDB(), trees: map[string]*iavl.MutableTree{}}
	nodedbtest.RunOld(t, c)
	b := nodedbtest.Dump(t, nodedb.Of(c.db))
	if *update {
		require.NoError(t, os.WriteFile("../../../nodedb/nodedbtest/testdata/iavl-v0.20.gz", b, 0o600))
		return
	}
	require.Equal(t, nodedbtest.Records(t, b), nodedbtest.Records(t, nodedbtest.OldHome), "run it with -update")
}
