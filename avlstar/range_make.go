package avlstar

import (
	"bytes"
	"crypto/sha256"
)

// proveRange returns RangeProof.Tree for a result of ProveRange, or nil in the empty tree.
func (v *Version) proveRange(start, end, next []byte) ([]byte, error) {
	if v.root == 0 {
		return nil, nil
	}
	// The leaves to show are those from lo to hi inclusive: the neighbours. If a neighbour is nil,
	// it does not exist, and the leaves to show extend to that end of the tree.
	lo, err := v.below(start)
	if err != nil {
		return nil, err
	}
	hi := next
	if hi == nil && len(end) != 0 {
		for kv, err := range v.Ascend(end, nil) {
			if err != nil {
				return nil, err
			}
			hi = bytes.Clone(kv.Key)
			break
		}
	}
	c := v.Commitment()
	t := rangeTree{chunkBytes: c.ChunkBytes, chunks: c.Chunks}
	if err := v.cover(&t, &v.view, sub{v.top, v.root}, boundary{}, nil, lo, hi); err != nil {
		return nil, err
	}
	for i := range t.items {
		if it := &t.items[i]; it.key != nil && (bytes.Compare(it.key, start) < 0 || bytes.Equal(it.key, hi)) {
			it.kind = neighbourKind
		}
	}
	return t.encode(), nil
}

// boundary is the inner node before a subtree: its height and its key, the least key of the
// subtree. The first subtree has none.
type boundary struct {
	height uint8
	key    []byte
	hash   *Hash
}

// cover appends the items for the subtree s to t: its leaves from lo to hi, and stubs for the rest.
// first is the inner node before s, and after the key of the one behind it (nil: s is the last).
// Both are keys of leaves, so s has a leaf to show exactly if lo < after and first <= hi.
func (v *Version) cover(t *rangeTree, w nodes, s sub, first boundary, after, lo, hi []byte) error {
	outside := after != nil && bytes.Compare(after, lo) <= 0 || first.key != nil && hi != nil && bytes.Compare(first.key, hi) > 0
	switch {
	case outside:
		it := rangeItem{kind: stubKind, boundary: first.height, stub: s.Stub}
		if first.hash != nil {
			it.keyHash = *first.hash
		}
		t.items = append(t.items, it)
	case s.n == 0:
		page, err := v.page(Subtree{s.Stub, first.key, after}, first.key)
		if err != nil {
			return err
		}
		r := page.nodes()
		return v.cover(t, runNodes{r}, r.root, first, after, lo, hi)
	case s.n.isLeaf():
		key, value := w.leaf(s.n)
		t.items = append(t.items, newRangeLeaf(resultKind, first.height, key, len(value), sha256.Sum256(value)))
	default:
		key := w.keyOf(s.n)
		if err := v.cover(t, w, childOf(w, s.n, left), first, key, lo, hi); err != nil {
			return err
		}
		return v.cover(t, w, childOf(w, s.n, right), boundary{s.Height, key, w.image(s.n).keyHash()}, after, lo, hi)
	}
	return nil
}
