package iavlsynctest

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync"
)

// Chain is a multi-store of real IAVL trees.
type Chain interface {
	// Commit applies a block, each store's operations in their order, and saves its version. A
	// store that is new is added at this height. A store without operations is committed as well.
	Commit(t *testing.T, block map[string][]Op)
	// Root returns the root hash of a store.
	Root(t *testing.T, store string) []byte
	// AppHash returns the app hash; nil if it has none.
	AppHash(t *testing.T) []byte
	// Export returns the nodes of a store, children before their parent, left before right.
	Export(t *testing.T, store string) []Exported
}

// Exported is a node as IAVL exports it.
type Exported struct {
	Key, Value []byte
	Version    int64
	Height     int8
}

// imported makes the tree of exported nodes. It also returns the inner nodes' keys, in key order.
func imported(t *testing.T, nodes []Exported) (root *Node, keys [][]byte) {
	t.Helper()
	var stack []*Node
	for _, e := range nodes {
		n := newLeaf(e.Key, e.Value)
		if e.Height > 0 {
			last := len(stack) - 2
			n = newInner(stack[last], stack[last+1])
			stack = stack[:last]
			keys = append(keys, e.Key)
		}
		n.Version = e.Version
		require.EqualValues(t, e.Height, n.height)
		stack = append(stack, n)
	}
	if len(stack) == 0 {
		return nil, nil
	}
	require.Len(t, stack, 1)
	slices.SortFunc(keys, bytes.Compare)
	return stack[0], keys
}

// Run compares the naive trees, and all of iavlsync, with the chains that open makes: random ones,
// and those of the vectors in a file.
func Run(t *testing.T, vectors string, open func(t *testing.T) Chain) {
	for _, keys := range []int{5, 60, 3000} {
		t.Run(fmt.Sprintf("random/%d", keys), func(t *testing.T) { runRandom(t, open(t), keys) })
	}
	for _, v := range LoadVectors(t, vectors).States {
		t.Run("vectors/"+v.Name, func(t *testing.T) { v.check(t, open(t)) })
	}
}

func runRandom(t *testing.T, chain Chain, keys int) {
	rnd := Rand(t)
	trees := map[string]*Tree{"bank": {}, "gov": {}, "empty": {}}
	next := 0
	const versions, late = 40, 13
	for v := int64(1); v <= versions; v++ {
		block := map[string][]Op{}
		removes := []float64{0.05, 0.3, 0.7, 0.97}[rnd.IntN(4)]
		if v < 3 {
			block["bank"] = RandomOps(rnd, keys, keys, 0.05)
		}
		block["bank"] = append(block["bank"], RandomOps(rnd, keys, rnd.IntN(1+keys/10), removes)...)
		for range rnd.IntN(30) {
			block["gov"] = append(block["gov"], Op{[]byte(fmt.Sprintf("%06d", next)), []byte{byte(v)}})
			next++
		}
		if v == late {
			trees["upgrade"] = &Tree{}
			block["upgrade"] = RandomOps(rnd, 100, 50, 0)
		}
		if v > late && rnd.IntN(3) == 0 {
			block["upgrade"] = RandomOps(rnd, 100, rnd.IntN(50), 0.9)
		}
		for name := range trees {
			if block[name] == nil {
				block[name] = []Op{}
			}
		}
		chain.Commit(t, block)
		s := State{}
		for name, tree := range trees {
			tree.Apply(block[name])
			tree.SaveAs(v)
			s[name] = tree.Root
			require.Equal(t, chain.Root(t, name), tree.Root.Hash(), "store %s at height %d", name, v)
		}
		if app := chain.AppHash(t); app != nil {
			require.Equal(t, app, s.AppHash())
		}
		if v%5 == 0 {
			for _, f := range []iavlsync.Format{iavlsync.Format8192, iavlsync.Format512, iavlsync.Format32} {
				verifyExported(t, chain, f, v, s)
			}
		}
	}
}

// verifyExported cuts what the chain exports, and verifies it against the chain's hashes.
func verifyExported(t *testing.T, chain Chain, f iavlsync.Format, height int64, naive State) {
	t.Helper()
	exported, keys := State{}, map[string][][]byte{}
	for _, name := range naive.Names() {
		exported[name], keys[name] = imported(t, chain.Export(t, name))
	}
	r := &Reader{}
	cut, err := r.Cut(f, height, exported)
	require.NoError(t, err)
	limit, _ := f.Leaves()
	require.Equal(t, naive.Manifest(height, limit), cut.Encode())
	app := chain.AppHash(t)
	if app == nil {
		app = naive.AppHash()
	}
	m, err := iavlsync.VerifyManifest(f, cut.Encode(), height, iavlsync.Hash(app))
	require.NoError(t, err)
	for i, s := range m.Stores {
		u, err := m.Upper(i)
		require.NoError(t, err)
		require.Equal(t, chain.Root(t, s.Name), u.Hash[:])
		var leaves []*Node
		exported[s.Name].Leaves(func(leaf *Node) { leaves = append(leaves, leaf) })
		var inner [][]byte // keys of all inner nodes, none of which has travelled
		for k, e := range s.Entries {
			q := &iavlsync.Request{Height: height, Store: s.Name, First: u.First[k], Leaves: e.Root.Size}
			answer, err := iavlsync.Answer(q, r.Key(exported[s.Name]), r)
			require.NoError(t, err)
			kind, data, err := iavlsync.SplitAnswer(answer)
			require.NoError(t, err)
			require.Equal(t, iavlsync.AnswerWhole, kind)
			c, err := iavlsync.VerifyChunk(&e.Root, data)
			require.NoError(t, err)
			for j, leaf := range c.Leaves {
				require.Equal(t, leaves[0].Key, leaf.Key)
				require.Equal(t, leaves[0].Value, bytes.Clone(leaf.Value))
				require.Equal(t, leaves[0].Version, leaf.Version)
				leaves = leaves[1:]
				if j > 0 || k > 0 {
					inner = append(inner, leaf.Key)
				}
			}
		}
		require.Empty(t, leaves)
		require.Equal(t, keys[s.Name], inner, "an inner node's key is the first of its right subtree")
	}
}
