package oracle

import (
	"errors"
	"testing"

	"github.com/cosmos/iavl"
	"github.com/cosmos/iavl/db"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync/iavlsynctest"
)

// chain is a multi-store without its map.
type chain struct {
	height int64
	trees  map[string]*iavl.MutableTree
}

func (c *chain) Commit(t *testing.T, block map[string][]iavlsynctest.Op) {
	c.height++
	for _, name := range iavlsynctest.Keys(block) {
		if c.trees[name] == nil {
			c.trees[name] = iavl.NewMutableTree(db.NewMemDB(), 100, false, iavl.NewNopLogger(), iavl.InitialVersionOption(uint64(c.height)))
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
		_, version, err := tree.SaveVersion()
		require.NoError(t, err)
		require.Equal(t, c.height, version)
	}
}

func (c *chain) Root(_ *testing.T, store string) []byte { return c.trees[store].Hash() }

func (c *chain) AppHash(*testing.T) []byte { return nil }

func (c *chain) Export(t *testing.T, store string) (nodes []iavlsynctest.Exported) {
	tree, err := c.trees[store].GetImmutable(c.height)
	require.NoError(t, err)
	e, err := tree.Export()
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

func Test(t *testing.T) {
	iavlsynctest.Run(t, "../testdata/vectors.json", func(*testing.T) iavlsynctest.Chain {
		return &chain{trees: map[string]*iavl.MutableTree{}}
	})
}
