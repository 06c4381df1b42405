package avlstar

import (
	"bytes"
	"iter"
	"runtime"

	"github.com/starling-kv/starling/avlstar/record"
)

// A range is fetched in pieces: subtrees whose leaves arrive together, are verified, and leave
// memory at once. Parts says what is missing, and Multiproof.Pieces what has arrived.

// Part is a stub or a leaf of a Partial.
type Part struct {
	Subtree
	// Boundary is the height of the inner node whose key is the least key of the subtree; 0 if the
	// subtree has the least key of the tree.
	Boundary   uint8
	Key, Value []byte // of a leaf; nil: a stub
}

// Parts yields the stubs and leaves of p, in key order, from the one to which key from leads (nil:
// the first). Keys and values are memory of p, valid until p is released.
func (p *Partial) Parts(from []byte) iter.Seq[Part] {
	return func(yield func(Part) bool) {
		v := p.v
		v.inUse()
		defer runtime.KeepAlive(v)
		if v.top != emptyStub {
			v.parts(Subtree{Stub: v.top}, v.root, 0, from, yield)
		}
	}
}

// parts yields the stubs and leaves of the subtree s, whose root is n. h is the boundary height of
// s.
func (v *Version) parts(s Subtree, n ref, h uint8, from []byte, yield func(Part) bool) bool {
	switch {
	case s.After != nil && bytes.Compare(s.After, from) <= 0:
		return true
	case n == 0:
		return yield(Part{Subtree: s, Boundary: h})
	case n.isLeaf():
		key, value := v.leaf(n)
		return yield(Part{s, h, key, value})
	}
	below, above := splitAt(&v.view, s, n)
	return v.parts(below, v.link(n).child[left], h, from, yield) && v.parts(above, v.link(n).child[right], s.Height, from, yield)
}

// Piece is a subtree of a multiproof.
type Piece struct {
	Root     Stub
	First    []byte // least key; nil: the piece is not complete
	Boundary uint8  // as in Part; 0 for the first piece of a tree
	// Records are the leaves, encoded as in a chunk; nil: the multiproof does not open all of them.
	Records []byte
}

// Pieces cuts each tree of b into maximal subtrees of at most limit bytes, or single leaves, and
// stubs. It yields them in key order, each with the root of its tree.
func (b *Multiproof) Pieces(limit uint64) iter.Seq2[Stub, Piece] {
	return func(yield func(Stub, Piece) bool) {
		for _, t := range b.trees {
			if !b.pieces(t.root, t.from, t.to, 0, limit, func(p Piece) bool { return yield(t.root.Stub, p) }) {
				return
			}
		}
	}
}

// pieces cuts the subtree s, which has the items [from, to). h is its boundary height.
func (b *Multiproof) pieces(s sub, from, to uint32, h uint8, limit uint64, yield func(Piece) bool) bool {
	if s.n == 0 || isSmall(s.Stat, limit) {
		p := Piece{Root: s.Stub, Boundary: h, Records: b.records(from, to, s.Bytes)}
		if p.Records != nil {
			p.First = b.item(int(from)).key
		}
		return yield(p)
	}
	at := uint32(s.n) // the first item of the right child
	child := func(side int) sub { return sub{b.images[at].stub(side), b.links[at].child[side]} }
	return b.pieces(child(left), from, at, h, limit, yield) && b.pieces(child(right), at, to, s.Height, limit, yield)
}

// Complete reports whether the multiproof opens all leaves of its trees.
func (b *Multiproof) Complete() bool { return b.leaves == len(b.at) }

// records returns the records of the items [from, to), of that many bytes; nil if one of them is a
// stub.
func (b *Multiproof) records(from, to uint32, size uint64) []byte {
	for k := from; k < to; k++ {
		if !b.isLeaf(int(k)) {
			return nil
		}
	}
	records := make([]byte, 0, size)
	for k := from; k < to; k++ {
		it := b.item(int(k))
		records = record.Append(records, record.Leaf{Height: it.boundary, Key: it.key, Value: it.value})
	}
	return records
}
