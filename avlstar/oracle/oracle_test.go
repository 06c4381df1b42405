package oracle

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/cosmos/iavl"
	"github.com/cosmos/iavl/db"

	"github.com/starling-kv/starling/avlstar"
)

// operations is the number of random operations in the test, a third of them deletions.
const operations = 250_000

// kinds is the number of key spaces.
const kinds = 5

// checkEvery is the number of blocks from one comparison of shapes to the next.
const checkEvery = 5

// node is a node in export order (depth first, children before their parent, left before right).
type node struct {
	key    string
	height uint8
}

func TestShape(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("STARLING_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("to repeat, in avlstar/oracle: STARLING_SEED=%d go test -run TestShape", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))

	// Small key spaces are emptied and filled again, large ones make deep trees.
	for _, keys := range [kinds]int{10, 200, 5_000, 100_000, hashed} {
		t.Run(fmt.Sprint(keys), func(t *testing.T) {
			ours, err := avlstar.Empty(1000)
			if err != nil {
				t.Fatal(err)
			}
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
				if err != nil {
					t.Fatal(err)
				}
				// The memory of released versions is reused.
				if pinned = append(pinned, ours); len(pinned) > 1+block%7 {
					i := rnd.IntN(len(pinned))
					pinned[i].Release()
					pinned = slices.Delete(pinned, i, i+1)
				}
				ours = next
				applyIAVL(t, theirs, changes)
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

// hashed stands for keys of 20 bytes that are spread evenly.
const hashed = 50_000

// randomBlock returns changes in ascending key order, sometimes enough of them that several
// goroutines make them.
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

func applyIAVL(t *testing.T, tree *iavl.MutableTree, changes []avlstar.Change) {
	t.Helper()
	for _, c := range changes {
		var err error
		if c.Value == nil {
			_, _, err = tree.Remove(c.Key)
		} else {
			_, err = tree.Set(c.Key, c.Value)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := tree.SaveVersion(); err != nil {
		t.Fatal(err)
	}
}

func compareShape(t *testing.T, block int, ours *avlstar.Version, theirs *iavl.MutableTree) {
	t.Helper()
	a, b := exportOurs(t, ours), exportIAVL(t, theirs)
	if !slices.Equal(a, b) {
		for i := range min(len(a), len(b)) {
			if a[i] != b[i] {
				t.Fatalf("block %d, node %d in export order: ours is %x of height %d, iavl's %x of height %d",
					block, i, a[i].key, a[i].height, b[i].key, b[i].height)
			}
		}
		t.Fatalf("block %d: we have %d nodes, iavl %d", block, len(a), len(b))
	}
}

// exportOurs rebuilds the export order from the leaves and the heights between them: before a leaf,
// all inner nodes are complete that are lower than the one with its key.
func exportOurs(t *testing.T, v *avlstar.Version) (nodes []node) {
	t.Helper()
	var open []node // inner nodes whose right subtree is still growing, heights descending
	first := true
	for l, err := range v.Leaves() {
		if err != nil {
			t.Fatal(err)
		}
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
	e, err := tree.ImmutableTree.Export()
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for {
		n, err := e.Next()
		if errors.Is(err, iavl.ErrorExportDone) {
			return nodes
		}
		if err != nil {
			t.Fatal(err)
		}
		if (n.Height == 0) == bytes.Equal(n.Value, nil) {
			t.Fatalf("node %x of height %d with value %x", n.Key, n.Height, n.Value)
		}
		nodes = append(nodes, node{string(n.Key), uint8(n.Height)})
	}
}
