package avlstar

import (
	"bytes"
	"iter"
	"slices"
	"sort"
)

// This file has what a receiver finds out about a bag before it grafts it, and without a tree.

// Only returns the bag without the trees whose roots keep refuses. The result shares b's memory,
// and is b itself if all are kept.
func (b *Bag) Only(keep func(root Stub) bool) *Bag {
	if !slices.ContainsFunc(b.trees, func(t bagTree) bool { return !keep(t.root.Stub) }) {
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

// floor returns the index in b.keys of the last item whose key is not above key, -1 if there is
// none.
func (b *Bag) floor(key []byte) int {
	return sort.Search(len(b.keys), func(i int) bool { return bytes.Compare(b.item(int(b.keys[i])).key, key) > 0 }) - 1
}

// LeafKeys returns the keys of the bag's leaves, ascending. They are not to be modified.
func (b *Bag) LeafKeys() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for _, k := range b.keys {
			if b.isLeaf(int(k)) && !yield(b.item(int(k)).key) {
				return
			}
		}
	}
}

// Omits reports whether the bag proves that the way to a key was left out of it: the key lies
// between two items of one tree, and a stub is where the way leads. Keys beside all trees, and
// those that may be, are not judged.
func (b *Bag) Omits(key []byte) bool {
	i := b.floor(key)
	if i < 0 || b.isLeaf(int(b.keys[i])) {
		return false
	}
	k := b.keys[i]
	t := sort.Search(len(b.trees), func(i int) bool { return b.trees[i].to > k })
	return k+1 < b.trees[t].to
}

// LeafBelow returns the key of the last leaf of the bag that is below key; ok is false if there is
// none. The result is not to be modified.
func (b *Bag) LeafBelow(key []byte) (leaf []byte, ok bool) {
	for i := b.floor(key); i >= 0; i-- {
		if k := int(b.keys[i]); b.isLeaf(k) {
			if it := b.item(k); bytes.Compare(it.key, key) < 0 {
				return it.key, true
			}
		}
	}
	return nil, false
}

// LeafAbove returns the key of the first leaf of the bag that is above key; ok is false if there is
// none. The result is not to be modified.
func (b *Bag) LeafAbove(key []byte) (leaf []byte, ok bool) {
	for _, k := range b.keys[b.floor(key)+1:] {
		if b.isLeaf(int(k)) {
			return b.item(int(k)).key, true
		}
	}
	return nil, false
}
