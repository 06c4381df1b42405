package oracle

import (
	"fmt"
	"testing"

	"github.com/cosmos/iavl"
	"github.com/cosmos/iavl/db"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/iavlsync/iavlsynctest"
	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/cosmos/nodedb/nodedbtest"
)

// home is a database of trees with the prefixes of the SDK's multi-store.
type home struct{ db *db.MemDB }

func (h *home) DB() nodedb.DB { return nodedb.Of(h.db) }

// running is a multi-store without its map.
type running struct {
	home   *home
	height int64
	trees  map[string]*iavl.MutableTree
}

func (h *home) Load(t *testing.T, height int64, stores []string) nodedbtest.Chain {
	c := &running{home: h, height: height, trees: map[string]*iavl.MutableTree{}}
	for _, name := range stores {
		c.trees[name] = h.tree(name)
		version, err := c.trees[name].LoadVersion(height)
		require.NoError(t, err)
		require.Equal(t, height, version)
	}
	return c
}

func (h *home) tree(store string, options ...iavl.Option) *iavl.MutableTree {
	prefixed := db.NewPrefixDB(h.db, []byte("s/k:"+store+"/"))
	return iavl.NewMutableTree(prefixed, 100, false, iavl.NewNopLogger(), options...)
}

func (c *running) Commit(t *testing.T, block map[string][]iavlsynctest.Op) {
	c.height++
	commit := nodedb.Commit{Height: c.height}
	for _, name := range iavlsynctest.Keys(block) {
		if c.trees[name] == nil {
			c.trees[name] = c.home.tree(name, iavl.InitialVersionOption(uint64(c.height)))
			_, err := c.trees[name].Load()
			require.NoError(t, err)
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
	nodedbtest.WriteCommit(t, c.home.DB(), &commit)
}

func (c *running) Root(_ *testing.T, store string) []byte { return c.trees[store].Hash() }

func (c *running) Prune(t *testing.T, height int64) {
	for _, tree := range c.trees {
		require.NoError(t, tree.DeleteVersionsTo(height))
	}
}

func (c *running) Prove(t *testing.T, store string, key []byte, there bool) {
	tree, err := c.trees[store].GetImmutable(c.height)
	require.NoError(t, err)
	if there {
		proof, err := tree.GetMembershipProof(key)
		require.NoError(t, err)
		ok, err := tree.VerifyMembership(proof, key)
		require.NoError(t, err)
		require.True(t, ok)
		return
	}
	proof, err := tree.GetNonMembershipProof(key)
	require.NoError(t, err)
	ok, err := tree.VerifyNonMembership(proof, key)
	require.NoError(t, err)
	require.True(t, ok)
}

// counting counts reads by key.
type counting struct {
	nodedb.DB
	gets int
}

func (c *counting) Get(key []byte) ([]byte, error) {
	c.gets++
	return c.DB.Get(key)
}

// TestReadsInOrder: IAVL numbers nodes in the order in which they are read, so most reads are steps
// of an iterator, at the newest height, which the fast index is of, and at an older one.
func TestReadsInOrder(t *testing.T) {
	h := &home{db.NewMemDB()}
	chain := h.Load(t, 0, nil)
	for v := range 6 {
		ops := make([]iavlsynctest.Op, 2000)
		for i := range ops {
			ops[i] = iavlsynctest.Op{Key: fmt.Appendf(nil, "%08d", (v*2000+i)*7919%12000), Value: []byte("value")}
		}
		chain.Commit(t, map[string][]iavlsynctest.Op{"bank": ops})
	}
	for _, height := range []int64{6, 5} {
		c := &counting{DB: h.DB()}
		s, err := nodedb.Open(c, height)
		require.NoError(t, err)
		m, err := s.Manifest(iavlsync.Format8192)
		require.NoError(t, err)
		u, err := m.Upper(0)
		require.NoError(t, err)
		for k, e := range m.Stores[0].Entries {
			_, err := s.Answer(&iavlsync.Request{Height: height, Store: "bank", First: u.First[k], Leaves: e.Root.Size})
			require.NoError(t, err)
		}
		require.Less(t, c.gets, 2000, "for %d leaves", 2000*height)
	}
}

func TestInstalled(t *testing.T) {
	nodedbtest.Run(t, func(*testing.T) nodedbtest.Home { return &home{db.NewMemDB()} })
}

// TestSweptAfterPruning: what IAVL leaves of its older versions does not keep a server from one
// pass over all records: there are few reads by key, where a walk has one or more for each of the
// many versions that the nodes of a chunk have.
func TestSweptAfterPruning(t *testing.T) {
	h := &home{db.NewMemDB()}
	chain := h.Load(t, 0, nil)
	rnd := iavlsynctest.Rand(t)
	const height = 60
	for v := range height {
		ops := make([]iavlsynctest.Op, 400)
		if v == 0 {
			ops = make([]iavlsynctest.Op, 16000)
		}
		for i := range ops {
			ops[i] = iavlsynctest.Op{Key: fmt.Appendf(nil, "%08d", rnd.IntN(20000)), Value: fmt.Appendf(nil, "value %d", v)}
			if v > 0 && i%5 == 0 {
				ops[i].Value = nil
			}
		}
		chain.Commit(t, map[string][]iavlsynctest.Op{"bank": ops})
	}
	chain.Prune(t, height-3)
	c := &counting{DB: h.DB()}
	s, err := nodedb.Open(c, height)
	require.NoError(t, err)
	m, err := s.Manifest(iavlsync.Format8192)
	require.NoError(t, err)
	u, err := m.Upper(0)
	require.NoError(t, err)
	large := 0
	for k, e := range m.Stores[0].Entries {
		c.gets = 0
		b, err := s.Answer(&iavlsync.Request{Height: height, Store: "bank", First: u.First[k], Leaves: e.Root.Size})
		require.NoError(t, err)
		kind, b, err := iavlsync.SplitAnswer(b)
		require.NoError(t, err)
		require.Equal(t, iavlsync.AnswerWhole, kind)
		_, err = iavlsync.VerifyChunk(&e.Root, b)
		require.NoError(t, err)
		if e.Root.Size >= 2048 { // smaller ones are always walked
			large++
			require.Less(t, c.gets, 60, "chunk %d of %d leaves", k, e.Root.Size)
		}
	}
	require.Positive(t, large)
}
