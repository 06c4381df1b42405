package nodedb_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/iavlsync/iavlsynctest"
	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/cosmos/nodedb/nodedbtest"
	"github.com/starling-kv/starling/internal/seeds"
)

// reads counts reads by key.
type reads struct {
	*nodedbtest.Mem
	gets int
}

func (r *reads) Get(key []byte) ([]byte, error) {
	r.gets++
	return r.Mem.Get(key)
}

// TestServedBefore: a chunk that was served once is served again from the fast index alone, whether
// or not the index has the right versions, and however it is damaged meanwhile.
func TestServedBefore(t *testing.T) {
	rnd := seeds.Rand(t)
	tree := &iavlsynctest.Tree{}
	for h := int64(1); h <= height; h++ {
		tree.Apply(iavlsynctest.RandomOps(rnd, 4000, 1500, 0.1))
		tree.SaveAs(h)
	}
	naive := iavlsynctest.State{"bank": tree.Root}
	leaves := tree.Root.Size()
	require.Greater(t, leaves, int64(2048))
	require.Less(t, leaves, int64(8192))
	m := nodedbtest.Manifest(t, iavlsync.Format8192, height, naive)
	for _, right := range []bool{true, false} {
		db := &reads{Mem: nodedbtest.NewMem()}
		_, err := install(rnd, db.Mem, m, nodedbtest.Chunks(t, m, naive))
		require.NoError(t, err)
		if !right {
			tree.Root.Leaves(func(n *iavlsynctest.Node) {
				db.Set(append([]byte("s/k:bank/f"), n.Key...), nodedb.AppendFast(nil, 1+int64(n.Key[0])%height, n.Value))
			})
		}
		s, err := nodedb.Open(db, height)
		require.NoError(t, err)
		answer := func() (gets int) {
			before := db.gets
			b, err := s.Answer(&iavlsync.Request{Height: height, Store: "bank", Leaves: leaves})
			require.NoError(t, err)
			require.True(t, bytes.Equal(append([]byte{0}, tree.Root.Chunk()...), b))
			return db.gets - before
		}
		require.Positive(t, answer())
		require.Zero(t, answer())
		tree.Root.Leaves(func(n *iavlsynctest.Node) {
			if rnd.IntN(1000) == 0 {
				db.Set(append([]byte("s/k:bank/f"), n.Key...), nodedb.AppendFast(nil, n.Version, []byte("damaged")))
			}
		})
		first := append([]byte("s/k:bank/f"), tree.Root.Least()...)
		value, _ := db.Mem.Get(first)
		db.Set(first, append(bytes.Clone(value), 0))
		require.Positive(t, answer())
		db.Delete(first)
		require.Positive(t, answer())
	}
}
