package iavlsync

import (
	"fmt"
)

// Inner is a derived inner node. Only its height and its version are sent; the rest is computed.
type Inner struct {
	Hash    Hash
	Size    int64
	Version int64
	// Left and Right are the places of its children.
	Left, Right Place
	Height      uint8
}

// Place numbers the nodes of a subtree in key order. A part is a leaf of a chunk, or a chunk of the
// upper tree. Part i has place 2i, and the inner node between parts i−1 and i has place 2i−1. The
// key of that inner node is the first key of part i.
type Place int32

// Part returns the number of the part at p, or of the inner node before that part.
func (p Place) Part() (i int, inner bool) { return int(p+1) / 2, p%2 != 0 }

// subtree is a finished subtree.
type subtree struct {
	hash          Hash
	size, version int64
	place         Place
	height        uint8
}

// gap is what is sent of the inner node between two parts.
type gap struct {
	height  uint8
	version int64 // in a chunk: the difference from the greater version of the two children
}

// shape rebuilds a tree from its parts and the gaps between them, in key order. A parent is higher
// than its children, so the heights of the gaps determine exactly one tree (a Cartesian tree).
//
//	part 0, gap 1, part 1, gap 2, …   ──▶   open: gaps without their right subtree, heights falling
type shape struct {
	limit    int64 // maximum version
	relative bool  // gaps hold version differences
	least    int64 // minimum number of leaves of an inner node
	inner    []Inner
	open     []openNode
}

type openNode struct {
	gap
	left subtree
	part int
}

// part returns part i as a finished subtree.
func (s *shape) part(im *Image, h Hash, i int) subtree {
	return subtree{h, im.Size, im.Version, Place(2 * i), im.Height}
}

// next adds the gap before part i. last is the finished subtree between the previous gap and this
// one.
func (s *shape) next(last *subtree, g gap, i int) error {
	if err := s.finish(last, g.height); err != nil {
		return err
	}
	if n := len(s.open); n > 0 && s.open[n-1].height == g.height {
		return fmt.Errorf("two inner nodes of height %d without a higher one between them", g.height)
	}
	s.open = append(s.open, openNode{g, *last, i})
	return nil
}

// finish joins the open nodes that are lower than below, with last as the right subtree of the
// innermost. last becomes the resulting subtree.
func (s *shape) finish(last *subtree, below uint8) error {
	for n := len(s.open); n > 0 && s.open[n-1].height < below; n-- {
		if err := s.join(&s.open[n-1], last); err != nil {
			return err
		}
		s.open = s.open[:n-1]
	}
	return nil
}

// join completes the inner node o with its right subtree, and replaces *right with the result.
func (s *shape) join(o *openNode, right *subtree) error {
	left := &o.left
	low, high := min(left.height, right.height), max(left.height, right.height)
	if o.height != high+1 || high-low > 1 {
		return fmt.Errorf("inner node of height %d with children of %d and %d", o.height, left.height, right.height)
	}
	newest, version := max(left.version, right.version), o.version
	switch {
	case s.relative && version > s.limit-newest:
		return fmt.Errorf("inner node %d versions above its children's %d, in a tree of version %d", version, newest, s.limit)
	case s.relative:
		version += newest
	case version < newest:
		return fmt.Errorf("inner node of version %d with a child of version %d", version, newest)
	}
	size := left.size + right.size // each is at most MaxLeaves
	if size > MaxLeaves {
		return fmt.Errorf("%d leaves: at most %d are supported", size, int64(MaxLeaves))
	}
	if size < s.least {
		return fmt.Errorf("inner node of %d leaves above two chunks: it is a chunk", size)
	}
	h := hashInner(o.height, size, version, &left.hash, &right.hash)
	s.inner[o.part] = Inner{Hash: h, Size: size, Version: version, Left: left.place, Right: right.place, Height: o.height}
	*right = subtree{h, size, version, Place(2*o.part - 1), o.height}
	return nil
}
