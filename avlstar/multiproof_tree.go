package avlstar

import (
	"fmt"
	"math"
)

// multiproofTree is a subtree of a multiproof: the items [from, to), and the nodes between them.
// Items and nodes are numbered across all trees as in a run: inner node k has the key of item k,
// and is in links[k] and images[k]. The first item of a tree has no inner node; its image stands
// above the root.
//
//	item       0   1   2   3 │ 4   5        a leaf or a stub
//	inner          1   2   3 │     5        links[k], images[k]; a child that is a stub is 0
//	above      0             │ 4            images[k] has the root's hash as that of its left child
type multiproofTree struct {
	from, to uint32
	root     sub
}

// multiproofItem is a leaf, or a stub.
type multiproofItem struct {
	boundary   uint8
	key, value []byte // key: the least key of a stub, nil for the first stub; value: nil for a stub
	stub       Stub   // for a leaf, only its bytes are set
}

// build makes the nodes of all trees with their hashes. It refuses everything that is not an AVL
// tree.
func (b *Multiproof) build() error {
	n := len(b.at)
	if n == 0 {
		return nil
	}
	b.links, b.images = make([]link, n), make([]image, n)
	s := getScratch(n)
	defer putScratch(s)
	err := b.shape(s)
	s.bulk.flush() // always needed, because it refers to the multiproof
	if err == nil {
		b.hash(s)
	}
	return err
}

// shape makes the nodes without the hashes of leaves and nodes. It begins to hash keys and values.
func (b *Multiproof) shape(s *scratch) error {
	clear(s.heights.heights) // 0 where there is no node
	var base uint32          // the first item of the current tree
	child := func(c *sub, k uint32, side int) ref {
		if c.n == 0 { // a stub, whose hash is known
			*b.images[k].hash(side) = c.Hash
			return 0
		}
		s.parent(c.n, k, side)
		return c.n
	}
	trees := builder{chunkBytes: math.MaxUint64, join: func(k uint32, stat Stat, l, r *sub) (ref, Hash) {
		k += base
		i := &b.images[k]
		i[0] = 0x01
		i.setStat(left, l.Stat)
		i.setStat(right, r.Stat)
		i.setLeaf(leafBit | ref(k))
		b.links[k].child = [2]ref{child(l, k, left), child(r, k, right)}
		s.heights.heights[k] = stat.Height
		return ref(k), Hash{} // hashed later
	}}
	for i := range b.trees {
		t := &b.trees[i]
		base, trees.added = t.from, 0
		for k := t.from; k < t.to; k++ {
			it := b.item(int(k))
			at := sub{Stub: it.stub}
			if it.value != nil {
				at.n = leafBit | ref(k)
				s.bulk.add(it.value, &s.values[k])
			}
			if it.key != nil {
				s.bulk.add(it.key, b.images[k].keyHash())
			}
			b.links[k].prefix = prefixOf(it.key)
			if err := trees.add(it.boundary, &at); err != nil {
				return fmt.Errorf("tree %d: %w", i, err)
			}
		}
		root, err := trees.root()
		if err != nil {
			return fmt.Errorf("tree %d: %w", i, err)
		}
		t.root = *root
		s.parent(root.n, t.from, left)
	}
	return nil
}

// hash computes the hashes as run.hash does, except those of stubs. Nodes of the same height are
// hashed together across all trees.
func (b *Multiproof) hash(s *scratch) {
	var leaves leafImages
	for k := range b.at {
		if b.isLeaf(k) {
			leaves.add(b.images[k].keyHash(), &s.values[k], s.to(b.images, leafBit|ref(k)))
		}
	}
	leaves.flush()
	s.hashInner(b.images)
	for i := range b.trees {
		t := &b.trees[i]
		t.root.Hash = *b.images[t.from].hash(left)
	}
}
