package papersbench

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// check checks the tree, Property 1, the sizes and ids of all chunks, and the stamps of the hashes.
func (t *chunked) check(tb testing.TB) {
	tb.Helper()
	seen, leaves := map[*chunk]int{}, 0
	var walk func(n *node, c *chunk) (least string, height int)
	walk = func(n *node, c *chunk) (string, int) {
		if n.chunk != nil {
			require.Nil(tb, c, "a chunk's root below another one's")
			c = n.chunk
			require.Same(tb, n, c.root)
			require.Same(tb, c, t.chunks[c.id])
		}
		if n.left == nil {
			require.NotNil(tb, c, "a leaf outside all chunks")
			seen[c]++
			leaves++
			return n.key, 0
		}
		least, left := walk(n.left, c)
		key, right := walk(n.right, c)
		require.Equal(tb, key, n.key, "an inner node has the least key on its right")
		require.Less(tb, least, key)
		require.InDelta(tb, left, right, 1, "the tree is not balanced")
		require.Equal(tb, max(left, right)+1, n.height)
		if n.left.hashed == t.block || n.right.hashed == t.block {
			require.Equal(tb, t.block, n.hashed, "a node is hashed, but not the one above it")
		}
		return least, n.height
	}
	if t.root != nil {
		walk(t.root, nil)
	}
	require.Equal(tb, t.leaves, leaves)
	require.Len(tb, seen, len(t.chunks))
	for c, n := range seen {
		require.Equal(tb, c.size, n)
		require.LessOrEqual(tb, n, t.limit)
	}
}

func TestChunkedTree(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	rotations := 0 // rare with large chunks
	for _, limit := range []int{2, 3, 10, 100} {
		tree := newChunked(limit)
		var keys []string
		for i := range 3000 {
			switch n := len(keys); {
			case n > 0 && (rng.IntN(3) == 0 || i > 2000 && rng.IntN(3) > 0):
				k := rng.IntN(n)
				tree.remove(keys[k])
				keys[k] = keys[n-1]
				keys = keys[:n-1]
			case n > 0 && rng.IntN(4) == 0:
				tree.update(keys[rng.IntN(n)])
			default:
				key := fmt.Sprintf("%016x", rng.Uint64())
				tree.insert(key)
				keys = append(keys, key)
			}
			if i%7 == 0 {
				tree.check(t)
				tree.endBlock()
			}
		}
		for _, key := range keys {
			tree.remove(key)
			tree.check(t)
		}
		require.Empty(t, tree.chunks)
		require.Nil(t, tree.root)
		rotations += tree.rotation
		require.Greater(t, tree.splits, tree.rotation)
	}
	require.Positive(t, rotations)
}

// A block copies each chunk that it changes once, and hashes the paths to its changes.
func TestChunkedWork(t *testing.T) {
	tree := newChunked(4)
	for i := range 8 {
		tree.insert(fmt.Sprint(i))
	}
	require.Len(t, tree.chunks, 3)
	tree.endBlock()
	require.Equal(t, work{}, tree.endBlock())
	tree.update("7")
	tree.update("7")
	got := tree.endBlock()
	require.Equal(t, 4, got.hashed)
	require.Equal(t, 4, got.plain)
	require.Equal(t, 4, got.copied)
}
