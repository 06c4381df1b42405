package iavlsynctest

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/internal/seeds"
)

// Chain is a multi-store of real IAVL trees.
type Chain interface {
	// Commit applies a block and saves its version. The operations of each store are applied in
	// order. New stores are added at this height. Stores without operations are also committed.
	Commit(t *testing.T, block map[string][]Op)
	// Root returns the root hash of a store.
	Root(t *testing.T, store string) []byte
	// AppHash returns the app hash, or nil if the chain has none.
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

// imported builds a naive tree from exported nodes. It also returns the keys of the inner nodes, in
// key order.
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

// Run compares the naive trees and iavlsync with the chains that open returns, on random blocks and
// on the blocks of the vectors in a file.
func Run(t *testing.T, vectors string, open func(t *testing.T) Chain) {
	for _, keys := range []int{5, 60, 3000} {
		t.Run(fmt.Sprintf("random/%d", keys), func(t *testing.T) { runRandom(t, open(t), keys) })
	}
	for _, v := range LoadVectors(t, vectors).States {
		t.Run("vectors/"+v.Name, func(t *testing.T) { v.check(t, open(t)) })
	}
}

func runRandom(t *testing.T, chain Chain, keys int) {
	n := NewNetwork(seeds.Rand(t), keys)
	for n.Height < 40 {
		chain.Commit(t, n.Block())
		s := n.State()
		for name, root := range s {
			require.Equal(t, chain.Root(t, name), root.Hash(), "store %s at height %d", name, n.Height)
		}
		if app := chain.AppHash(t); app != nil {
			require.Equal(t, app, s.AppHash())
		}
		if n.Height%5 == 0 {
			for _, f := range []iavlsync.Format{iavlsync.Format8192, iavlsync.Format512, iavlsync.Format32} {
				verifyExported(t, chain, f, n.Height, s)
			}
		}
	}
}

// verifyExported cuts the trees that the chain exports, and verifies the manifest and the chunks
// against the chain's hashes.
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
		var inner [][]byte // derived keys of all inner nodes, which are not sent
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
		require.Equal(t, keys[s.Name], inner, "the key of an inner node is the first key of its right subtree")
	}
}
