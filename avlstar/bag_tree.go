package avlstar

import (
	"errors"
	"math"
)

// bagTree is a subtree of a bag. Its nodes are numbered as those of a run: inner node k has the key
// of item k.
//
//	item       0   1   2   3        a leaf or a stub
//	inner          1   2   3        links[k], images[k]; a child that is a stub is 0
type bagTree struct {
	items  []bagItem
	links  []link
	images []image // images[0] is above the root
	root   sub
	leaves int
}

// bagItem is a leaf, or a stub.
type bagItem struct {
	boundary   uint8
	key, value []byte // key: the least of a stub, nil before the first; value: nil in a stub
	stub       Stub
}

// build makes the nodes with their hashes. It refuses everything that is not an AVL tree.
func (t *bagTree) build() error {
	n := len(t.items)
	t.links, t.images = make([]link, n), make([]image, n)
	s := getScratch(n)
	defer putScratch(s)
	child := func(c *sub, k uint32, side int) ref {
		if c.n == 0 { // a stub, whose hash is known
			*t.images[k].hash(side) = c.Hash
			return 0
		}
		s.parent(c.n, k, side)
		return c.n
	}
	b := builder{chunkBytes: math.MaxUint64, join: func(k uint32, stat Stat, l, r *sub) (ref, Hash) {
		i := &t.images[k]
		i[0] = 0x01
		i.setStat(left, l.Stat)
		i.setStat(right, r.Stat)
		i.setLeaf(leafBit | ref(k))
		t.links[k].child = [2]ref{child(l, k, left), child(r, k, right)}
		s.heights.heights[k] = stat.Height
		return ref(k), Hash{} // later
	}}
	for k := range t.items {
		it := &t.items[k]
		at := sub{Stub: it.stub}
		if it.value != nil {
			at.n = leafBit | ref(k)
			t.leaves++
		}
		t.links[k].prefix = prefixOf(it.key)
		if err := b.add(it.boundary, &at); err != nil {
			return err
		}
	}
	root, err := b.root()
	if err != nil {
		return err
	}
	if root.n == 0 {
		return errors.New("a tree of one stub")
	}
	t.root = *root
	s.parent(root.n, 0, left)
	t.hash(s)
	return nil
}

// hash computes the hashes as run.hash does, but for those of stubs.
func (t *bagTree) hash(s *scratch) {
	for k := range t.items {
		it := &t.items[k]
		if it.key != nil {
			s.bulk.add(it.key, t.images[k].keyHash())
		}
		if it.value != nil {
			s.bulk.add(it.value, &s.values[k])
		}
	}
	s.bulk.flush()
	var leaves leafImages
	for k := range t.items {
		if t.items[k].value != nil {
			leaves.add(t.images[k].keyHash(), &s.values[k], s.to(t.images, leafBit|ref(k)))
		}
	}
	leaves.flush()
	s.hashInner(t.images)
	t.root.Hash = *t.images[0].hash(left)
}
