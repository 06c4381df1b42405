package avlstar

import (
	"bytes"
	"iter"
	"slices"
	"sort"
)

// These methods examine a multiproof without a tree, before it is grafted.

// Only returns the multiproof without the trees whose roots keep rejects. The result shares b's
// memory, and is b itself if all trees are kept.
func (b *Multiproof) Only(keep func(root Stub) bool) *Multiproof {
	if !slices.ContainsFunc(b.trees, func(t multiproofTree) bool { return !keep(t.root.Stub) }) {
		return b
	}
	some := *b
	some.trees, some.keys, some.leaves = nil, nil, 0
	rest := b.keys
	for _, t := range b.trees {
		n := sort.Search(len(rest), func(i int) bool { return rest[i] >= t.to })
		if keep(t.root.Stub) {
			some.trees = append(some.trees, t)
			some.keys = append(some.keys, rest[:n]...)
			for k := t.from; k < t.to; k++ {
				if b.isLeaf(int(k)) {
					some.leaves++
				}
			}
		}
		rest = rest[n:]
	}
	return &some
}

// floor returns the index in b.keys of the last item whose key is not above key, or -1 if there is
// none.
func (b *Multiproof) floor(key []byte) int {
	return sort.Search(len(b.keys), func(i int) bool { return bytes.Compare(b.item(int(b.keys[i])).key, key) > 0 }) - 1
}

// LeafKeys yields the keys of the multiproof's leaves in ascending order. They must not be
// modified.
func (b *Multiproof) LeafKeys() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for _, k := range b.keys {
			if b.isLeaf(int(k)) && !yield(b.item(int(k)).key) {
				return
			}
		}
	}
}

// Omits reports whether the multiproof proves that it leaves out what w, a want for a key, asks
// for: the key lies between two items of one tree, and its path ends at a stub. For Want.Written
// the stub may be that of a leaf. Omits returns false for keys that may be outside of all trees.
func (b *Multiproof) Omits(w Want) bool {
	i := b.floor(w.Key)
	if i < 0 || b.isLeaf(int(b.keys[i])) {
		return false
	}
	k := b.keys[i]
	if w.Written && b.item(int(k)).stub.Height == 0 {
		return false
	}
	t := sort.Search(len(b.trees), func(i int) bool { return b.trees[i].to > k })
	return k+1 < b.trees[t].to
}

// LeafBelow returns the key of the last leaf of the multiproof that is below key; ok is false if
// there is none. The result must not be modified.
func (b *Multiproof) LeafBelow(key []byte) (leaf []byte, ok bool) {
	for i := b.floor(key); i >= 0; i-- {
		if k := int(b.keys[i]); b.isLeaf(k) {
			if it := b.item(k); bytes.Compare(it.key, key) < 0 {
				return it.key, true
			}
		}
	}
	return nil, false
}

// LeafAbove returns the key of the first leaf of the multiproof that is above key; ok is false if
// there is none. The result must not be modified.
func (b *Multiproof) LeafAbove(key []byte) (leaf []byte, ok bool) {
	for _, k := range b.keys[b.floor(key)+1:] {
		if b.isLeaf(int(k)) {
			return b.item(int(k)).key, true
		}
	}
	return nil, false
}
