package avlstar

import (
	"bytes"
	"crypto/sha256"
)

// proveRange makes RangeProof.Tree for what ProveRange answers, nil in the empty tree.
func (v *Version) proveRange(start, end, next []byte) []byte {
	if v.root == nil {
		return nil
	}
	// The leaves to show are those from lo to hi, both included: the neighbours. nil: there is none, on to the tree's end.
	lo, hi := v.below(start), next
	if hi == nil && len(end) != 0 {
		for key := range v.Ascend(end, nil) {
			hi = key
			break
		}
	}
	c := v.Commitment()
	t := rangeTree{chunkBytes: c.ChunkBytes, chunks: c.Chunks}
	t.cover(v.root, 0, nil, nil, lo, hi)
	for i := range t.items {
		if it := &t.items[i]; it.key != nil && (bytes.Compare(it.key, start) < 0 || bytes.Equal(it.key, hi)) {
			it.kind = neighbourKind
		}
	}
	return t.encode()
}

// cover appends the items for the subtree n: its leaves from lo to hi, stubs for all else. first is the key of the inner node of the
// given height before n (nil: n is the first), after that of the one behind it (nil: n is the last). Both are keys of leaves,
// so that n has a leaf to show exactly if lo < after and first <= hi.
func (t *rangeTree) cover(n *node, height uint8, first, after, lo, hi []byte) {
	outside := after != nil && bytes.Compare(after, lo) <= 0 || first != nil && hi != nil && bytes.Compare(first, hi) > 0
	switch {
	case outside:
		t.items = append(t.items, rangeItem{kind: stubKind, item: stubItem(height, sha256.Sum256(first), n.stub())})
	case !n.isInner():
		t.items = append(t.items, newRangeLeaf(resultKind, height, n.key, len(n.value), sha256.Sum256(n.value)))
	default:
		t.cover(n.left, height, first, n.key, lo, hi)
		t.cover(n.right, n.height, n.key, after, lo, hi)
	}
}
