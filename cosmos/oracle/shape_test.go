package oracle

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cosmos/iavl"
	"github.com/cosmos/iavl/db"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/cosmos/iavlsync/iavlsynctest"
	"github.com/starling-kv/starling/internal/seeds"
)

// operations is the number of random operations in the test; a third of them are deletions.
const operations = 250_000

// kinds is the number of key spaces.
const kinds = 5

// checkEvery is the number of blocks between two comparisons of shapes.
const checkEvery = 5

// node is a node in export order (depth first, children before their parent, left before right).
type node struct {
	key    string
	height uint8
}

func TestShape(t *testing.T) {
	rnd := seeds.Rand(t)

	// Small key spaces are emptied and refilled; large ones make deep trees.
	for _, keys := range [kinds]int{10, 200, 5_000, 100_000, hashed} {
		t.Run(fmt.Sprint(keys), func(t *testing.T) {
			ours, err := avlstar.Empty(1000)
			require.NoError(t, err)
			theirs := iavl.NewMutableTree(db.NewMemDB(), 0, true, iavl.NewNopLogger())
			deletes, compared, deepest := 0.1, 0, uint8(0)
			var pinned []*avlstar.Version
			for done, block := 0, 0; done < operations/kinds; block++ {
				if rnd.IntN(30) == 0 {
					deletes = []float64{0.05, 0.3, 0.5, 0.7, 0.95}[rnd.IntN(5)]
				}
				changes := randomBlock(rnd, keys, deletes)
				done += len(changes)
				next, err := ours.Apply(changes)
				require.NoError(t, err)
				// Reuse the memory of released versions.
				if pinned = append(pinned, ours); len(pinned) > 1+block%7 {
					i := rnd.IntN(len(pinned))
					pinned[i].Release()
					pinned = slices.Delete(pinned, i, i+1)
				}
				ours = next
				save(t, theirs, operationsOf(changes))
				if block%checkEvery == 0 || done >= operations/kinds {
					compareShape(t, block, ours, theirs)
					compared++
				}
				deepest = max(deepest, ours.Root().Height)
			}
			t.Logf("%d shapes compared, %d leaves at the end, deepest tree of height %d", compared, ours.Len(), deepest)
		})
	}
}

// hashed stands for evenly distributed keys of 20 bytes.
const hashed = 50_000

// randomBlock returns changes in ascending key order, sometimes enough of them for several
// goroutines to apply.
func randomBlock(rnd *rand.Rand, keys int, deletes float64) (changes []avlstar.Change) {
	block := map[string][]byte{}
	n := 1 + rnd.IntN(100)
	if rnd.IntN(20) == 0 {
		n = 1 + rnd.IntN(2000)
	}
	for range n {
		var key [4]byte
		binary.BigEndian.PutUint32(key[:], uint32(rnd.IntN(keys)))
		value := binary.AppendUvarint(nil, rnd.Uint64())
		if rnd.Float64() < deletes {
			value = nil
		}
		if keys == hashed {
			sum := sha256.Sum256(key[:])
			block[string(sum[:20])] = value
			continue
		}
		block[string(key[4-1-rnd.IntN(4):])] = value
	}
	for _, key := range slices.Sorted(maps.Keys(block)) {
		changes = append(changes, avlstar.Change{Key: []byte(key), Value: block[key]})
	}
	return changes
}

func operationsOf(changes []avlstar.Change) (ops []iavlsynctest.Op) {
	for _, c := range changes {
		ops = append(ops, iavlsynctest.Op{Key: c.Key, Value: c.Value})
	}
	return ops
}

func compareShape(t *testing.T, block int, ours *avlstar.Version, theirs *iavl.MutableTree) {
	t.Helper()
	a, b := exportOurs(t, ours), exportIAVL(t, theirs)
	if !slices.Equal(a, b) {
		for i := range min(len(a), len(b)) {
			if a[i] != b[i] {
				t.Fatalf("block %d, node %d in export order: ours is %x of height %d, iavl's is %x of height %d",
					block, i, a[i].key, a[i].height, b[i].key, b[i].height)
			}
		}
		t.Fatalf("block %d: we have %d nodes, iavl %d", block, len(a), len(b))
	}
}

// exportOurs rebuilds the export order from the leaves and the heights between them. Before a leaf,
// all inner nodes that are lower than the one with the leaf's key are complete.
func exportOurs(t *testing.T, v *avlstar.Version) (nodes []node) {
	t.Helper()
	var open []node // inner nodes with an incomplete right subtree, heights descending
	first := true
	for l, err := range v.Leaves() {
		require.NoError(t, err)
		if !first {
			for len(open) > 0 && open[len(open)-1].height < l.Height {
				nodes, open = append(nodes, open[len(open)-1]), open[:len(open)-1]
			}
			open = append(open, node{string(l.Key), l.Height})
		}
		nodes, first = append(nodes, node{string(l.Key), 0}), false
	}
	slices.Reverse(open)
	return append(nodes, open...)
}

func exportIAVL(t *testing.T, tree *iavl.MutableTree) (nodes []node) {
	t.Helper()
	if tree.Size() == 0 {
		return nil
	}
	for _, n := range export(t, tree) {
		nodes = append(nodes, node{string(n.Key), uint8(n.Height)})
	}
	return nodes
}
