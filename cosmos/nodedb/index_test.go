package nodedb_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/iavlsync/iavlsynctest"
	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/internal/seeds"
)

// versions is a history with the trees of all its versions.
type versions struct {
	*history
	tree  *iavlsynctest.Tree
	roots []*iavlsynctest.Node // by version
}

func newVersions() *versions {
	return &versions{history: newHistory(), tree: &iavlsynctest.Tree{}, roots: make([]*iavlsynctest.Node, 1)}
}

func (v *versions) next(t *testing.T, ops []iavlsynctest.Op) {
	t.Helper()
	v.tree.Apply(ops)
	v.tree.Save()
	v.save(t, v.tree)
	v.roots = append(v.roots, v.tree.Root)
}

// move moves the root of an old version as pruning does: nodes written afterwards reference the new
// place, nodes written before the old place.
func (v *versions) move(version int64) {
	root := v.roots[version]
	if root == nil || root.Version != version || v.Written[root][11] != 1 {
		return
	}
	record, _ := v.Mem.Get(v.NodeKey(version, 1))
	v.Delete(v.NodeKey(version, 1))
	v.Set(v.NodeKey(version, 0), record)
	v.Written[root] = bytes.Clone(v.Written[root])
	v.Written[root][11] = 0
}

// answered requests all chunks of a height twice, once from the nodes and once from their shapes.
// It returns the number of keys by which the fast index was corrected; used is false if the index
// was not used.
func (v *versions) answered(t *testing.T, height, limit int64) (changes int, used bool) {
	t.Helper()
	s, err := nodedb.Open(v.history, height)
	require.NoError(t, err)
	for _, answer := range []func(*iavlsync.Request) ([]byte, error){s.AnswerSoon, s.Answer, s.Answer, s.AnswerSoon} {
		first := int64(0)
		for k, c := range v.roots[height].Chunks(limit) {
			b, err := answer(&iavlsync.Request{Height: height, Store: "bank", First: first, Leaves: c.Size()})
			require.NoError(t, err)
			require.True(t, bytes.Equal(append([]byte{0}, c.Chunk()...), b), "chunk %d at height %d", k, height)
			first += c.Size()
		}
	}
	changes, used = s.Changes("bank")
	s.Close()
	if _, after := s.Changes("bank"); after {
		require.Zero(t, changes, "changes are kept after Close")
	}
	return changes, used
}

// TestEarlierState: the database has the fast index of a later version. Each earlier state is
// served from this index and the difference of the trees, whatever has changed between them, and
// wherever pruning has moved roots.
func TestEarlierState(t *testing.T) {
	rnd := seeds.Rand(t)
	right := func(v int64) int64 { return v }
	for round := range 30 {
		v := newVersions()
		keys := []int{1, 5, 60, 600}[rnd.IntN(4)]
		const last = 12
		for n := int64(1); n <= last; n++ {
			var ops []iavlsynctest.Op
			switch rnd.IntN(6) {
			case 0: // the same tree
			case 1: // an empty tree
				v.tree.Root.Leaves(func(leaf *iavlsynctest.Node) { ops = append(ops, iavlsynctest.Op{Key: leaf.Key}) })
			case 2: // change most keys
				ops = iavlsynctest.RandomOps(rnd, keys, 2*keys, 0.1)
			default:
				ops = iavlsynctest.RandomOps(rnd, keys, 1+rnd.IntN(1+keys/10), []float64{0, 0.4, 0.9}[rnd.IntN(3)])
			}
			v.next(t, ops)
			if rnd.IntN(2) == 0 && n > 4 {
				v.move(1 + rnd.Int64N(n-4))
			}
		}
		for range 3 { // the index belongs to any of the versions
			indexed := last - rnd.Int64N(2)
			for _, key := range v.Keys() {
				if bytes.HasPrefix([]byte(key), []byte("s/k:bank/f")) {
					v.Delete([]byte(key))
				}
			}
			v.root = v.roots[indexed]
			v.index(indexed, right)
			for height := int64(last - 3); height <= last; height++ {
				changes, used := v.answered(t, height, 2+rnd.Int64N(40))
				// Otherwise no chunk has more than one leaf, or the trees may differ too much.
				if root := v.roots[height]; root != nil && root.Height() > 0 && keys <= 60 {
					require.Equal(t, height <= indexed, used, "round %d: height %d, indexed %d", round, height, indexed)
				}
				if height == indexed {
					require.Zero(t, changes)
				}
			}
		}
	}
}

// TestEarlierStateIsSwept: in a large store, serving the state before the latest costs as much as
// the latest: one pass over all records, and the index.
func TestEarlierStateIsSwept(t *testing.T) {
	rnd := seeds.Rand(t)
	v := newVersions()
	const last = 6
	for n := range last {
		ops := iavlsynctest.RandomOps(rnd, 20_000, 300, 0.2)
		if n == 0 {
			ops = iavlsynctest.RandomOps(rnd, 20_000, 60_000, 0)
		}
		v.next(t, ops)
	}
	v.index(last, func(version int64) int64 { return version })
	v.root = v.roots[last-1]
	require.Greater(t, len(v.root.Chunks(8192)), 1)
	before := v.gets
	swept, _ := v.answers(t, last-1)
	require.True(t, swept)
	require.Less(t, v.gets-before, 5000, "only nodes that differ are read by key")
	changes, used := v.answered(t, last-1, 8192)
	require.True(t, used)
	require.Less(t, changes, 600)
}

// TestDifferentTrees: if the trees differ too much, or the later one cannot be read, the earlier
// state is read without the index.
func TestDifferentTrees(t *testing.T) {
	const keys = 3000
	v := newVersions()
	for n := range 3 {
		var ops []iavlsynctest.Op
		for k := range keys {
			ops = append(ops, iavlsynctest.Op{Key: fmt.Appendf(nil, "%06d", k), Value: []byte{byte(n)}})
		}
		v.next(t, ops)
	}
	right := func(version int64) int64 { return version }
	v.index(3, right)
	_, used := v.answered(t, 2, 8192)
	require.False(t, used)

	v.next(t, []iavlsynctest.Op{{Key: []byte("000000"), Value: []byte("changed")}})
	v.index(4, right)
	changes, used := v.answered(t, 3, 8192)
	require.True(t, used)
	require.Equal(t, 1, changes)
	v.Delete(v.NodeKey(4, 2))
	_, used = v.answered(t, 3, 8192)
	require.False(t, used)
	v.Set([]byte("s/k:bank/mstorage_version"), []byte("1.1.0-5"))
	_, used = v.answered(t, 3, 8192)
	require.False(t, used)
}

// TestTreeWithALoop: a damaged record of either tree that references its own ancestor ends the
// comparison immediately instead of at its limit, which is a quarter of a store's leaves, each a
// stack frame deep.
func TestTreeWithALoop(t *testing.T) {
	const keys = 60
	for _, damaged := range []int64{1, 2} {
		v := newVersions()
		for n := range 2 {
			var ops []iavlsynctest.Op
			for k := range keys {
				ops = append(ops, iavlsynctest.Op{Key: fmt.Appendf(nil, "%06d", k), Value: []byte{byte(n)}})
			}
			v.next(t, ops)
		}
		v.index(2, func(version int64) int64 { return version })
		root := v.roots[damaged]
		require.Greater(t, root.Height(), 3)
		below := root.Left.Left
		v.Set(append([]byte("s/k:bank/s"), v.Written[below]...), nodedb.AppendNode(nil, &iavlsync.Node{Height: uint8(below.Height()), Size: below.Size(),
			Key: below.Right.Least(), Hash: iavlsync.Hash(below.Hash()), Left: v.Written[root], Right: v.Written[below.Right]}))
		s, err := nodedb.Open(v.history, 1)
		require.NoError(t, err)
		before := v.gets
		b, err := s.Answer(&iavlsync.Request{Height: 1, Store: "bank", Leaves: keys})
		if damaged == 1 {
			require.ErrorIs(t, err, iavlsync.ErrDamagedStore)
		} else {
			require.NoError(t, err)
			require.True(t, bytes.Equal(append([]byte{0}, v.roots[1].Chunk()...), b))
		}
		require.Less(t, v.gets-before, 4*keys, "version %d is damaged", damaged)
	}
}

// TestMemoryOfAComparison: everything that a comparison keeps is counted, including small changes
// and the roots of shared subtrees.
func TestMemoryOfAComparison(t *testing.T) {
	const keys, entry = 4000, 128
	v := newVersions()
	var all, some []iavlsynctest.Op
	for k := range keys {
		op := iavlsynctest.Op{Key: fmt.Appendf(nil, "%06d", k), Value: []byte{1}}
		if all = append(all, op); k%40 == 0 {
			some = append(some, iavlsynctest.Op{Key: op.Key, Value: []byte{2}})
		}
	}
	v.next(t, all)
	v.next(t, some)
	v.index(2, func(version int64) int64 { return version })
	s, err := nodedb.Open(v.history, 1)
	require.NoError(t, err)
	require.NoError(t, s.Compare("bank", 1<<20))
	require.Error(t, s.Compare("bank", 4*len(some)*entry), "each of these leaves differs, and shares its siblings and its uncles")
	v.next(t, nil)
	v.index(3, func(version int64) int64 { return version })
	s, err = nodedb.Open(v.history, 2)
	require.NoError(t, err)
	require.Error(t, s.Compare("bank", entry), "the root of the shared subtree")
	require.NoError(t, s.Compare("bank", 2*entry))
}

// heldDB is a database in which reads of the nodes of a version wait until release is closed.
type heldDB struct {
	nodedb.DB
	prefix  []byte        // of these nodes' records
	began   chan struct{} // gets an element when such a read begins
	release chan struct{}
}

func (d *heldDB) Get(key []byte) ([]byte, error) {
	if bytes.HasPrefix(key, d.prefix) {
		select {
		case d.began <- struct{}{}:
		default: // a read has begun before
		}
		<-d.release
	}
	return d.DB.Get(key)
}

// TestRequestsDoNotWaitForAComparison: requests are answered while another one compares the state
// with a newer tree. Otherwise a few would hold all workers of a server.
func TestRequestsDoNotWaitForAComparison(t *testing.T) {
	rnd := seeds.Rand(t)
	v := newVersions()
	const height, newer = 1, 2
	v.next(t, iavlsynctest.RandomOps(rnd, 60, 120, 0))
	v.next(t, iavlsynctest.RandomOps(rnd, 60, 5, 0))
	v.root = v.roots[newer]
	v.index(newer, func(version int64) int64 { return version })
	db := &heldDB{DB: v.history, prefix: bytes.TrimSuffix(v.NodeKey(newer, 1), []byte{0, 0, 0, 1}), began: make(chan struct{}, 1), release: make(chan struct{})}
	s, err := nodedb.Open(db, height)
	require.NoError(t, err)
	root := v.roots[height]
	q := &iavlsync.Request{Height: height, Store: "bank", Leaves: root.Size()}
	want := append([]byte{0}, root.Chunk()...)
	compared := make(chan []byte)
	go func() {
		b, _ := s.Answer(q) // checked below
		compared <- b
	}()
	<-db.began
	b, err := s.Answer(q)
	require.NoError(t, err)
	require.Equal(t, want, b)
	close(db.release)
	require.Equal(t, want, <-compared)
	_, used := s.Changes("bank")
	require.True(t, used)
}
