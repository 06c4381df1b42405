package avlstar

import (
	"bytes"
	"fmt"
	"iter"
	"math/bits"
	"sync"
	"sync/atomic"
)

// Version is one immutable state of the tree. Any number of goroutines may read it while others apply changes to it: that makes
// another version.
//
// A version begins with one reference, which belongs to whoever got it; Retain and Release count them. After the last Release
// it must not be used. Get, Floor, Chunk and proofs return copies; keys and values that iterators yield are the tree's own memory: they
// must not be modified, and are valid until the version is released.
type Version struct {
	view
	tree         *tree
	refs         atomic.Int64
	nextReleased *Version

	root       ref  // 0: the empty tree, or a stub of a partial one
	top        Stub // height, bytes and hash of the root
	chunkBytes uint64
	epoch      uint32
	parent     uint32 // epoch of the version that this one was made from
	upper      uint64 // inner nodes above the chunks: the tree has one chunk more
	leaves     uint64
	partial    bool                  // there may be stubs
	failed     atomic.Pointer[error] // see Err

	hashedInner, hashedLeaves uint64

	once   sync.Once   // guards what upperTree fills in
	chunks []chunkRoot // in key order
	man    *Manifest

	mapOnce  sync.Once // guards mapProof
	mapProof []byte
}

// Empty returns the empty tree with chunk limit chunkBytes (B), 1 to MaxChunkBytes.
func Empty(chunkBytes uint64) (*Version, error) {
	if err := checkChunkBytes(chunkBytes); err != nil {
		return nil, fmt.Errorf("avlstar: %w", err)
	}
	return new(tree).publish(&Version{chunkBytes: chunkBytes, top: emptyStub})
}

// find returns the leaf whose key is the greatest that is not above key, or the least leaf if there is none; 0 where the tree is empty or
// a stub is in the way.
func (v *Version) find(key []byte) ref {
	v.inUse()
	prefix, n := prefixOf(key), v.root
	for n.isInner() {
		l := v.link(n)
		side := right
		if v.less(key, prefix, n, l) {
			side = left
		}
		n = l.child[side]
	}
	return n
}

// findEqual returns the leaf that has key, 0 where there is none. It goes by prefixes alone first, which seldom leads astray: so of an
// inner node only the link is read, and the loop has no branch to predict.
func (v *Version) findEqual(key []byte) ref {
	v.inUse()
	prefix, n := prefixOf(key), v.root
	for n.isInner() {
		l := v.link(n)
		_, below := bits.Sub64(prefix, l.prefix, 0)
		n = l.child[(1-below)%2]
	}
	if n != 0 {
		prefetchRecord(&v.record(n)[0]) // both its lines at once
	}
	if n == 0 && !v.partial || n != 0 && bytes.Equal(v.key(n), key) {
		return n
	}
	if n = v.find(key); n != 0 && !bytes.Equal(v.key(n), key) {
		return 0
	}
	return n
}

// Get returns the value of key.
func (v *Version) Get(key []byte) (value []byte, ok bool) {
	value, ok = v.View(key)
	return bytes.Clone(value), ok
}

// View returns the value of key as it lies in the tree's memory: it must not be modified, and is valid until v is released.
func (v *Version) View(key []byte) (value []byte, ok bool) {
	n := v.findEqual(key)
	if n == 0 {
		if p := v.pageOn(key); p != nil {
			if l := p.find(key); bytes.Equal(l.Key, key) {
				if len(l.Value) < len(p.data)/2 {
					return bytes.Clone(l.Value), true // who keeps it does not keep the page
				}
				return l.Value[:len(l.Value):len(l.Value)], true
			}
		}
		return nil, false
	}
	_, value = v.leaf(n)
	return value[:len(value):len(value)], true
}

// Has says whether key is there.
func (v *Version) Has(key []byte) bool {
	_, ok := v.View(key)
	return ok
}

// Floor returns the greatest key that is not greater than key, with its value.
func (v *Version) Floor(key []byte) (k, value []byte, ok bool) {
	if n := v.find(key); n != 0 {
		k, value = v.leaf(n)
	} else if p := v.pageOn(key); p != nil {
		l := p.find(key)
		k, value = l.Key, l.Value
	} else {
		return nil, nil, false
	}
	if bytes.Compare(k, key) > 0 { // so it is the least leaf: no inner node on the way had a key up to key
		return nil, nil, false
	}
	return bytes.Clone(k), bytes.Clone(value), true
}

// Ascend yields keys and values of [start, end) in key order; nil is open.
func (v *Version) Ascend(start, end []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(key, value []byte) bool) {
		v.inUse()
		v.ascend(v.root, start, end, yield)
	}
}

func (v *Version) ascend(n ref, start, end []byte, yield func(key, value []byte) bool) bool {
	if n == 0 {
		return true
	}
	if n.isLeaf() {
		key, value := v.leaf(n)
		if start != nil && bytes.Compare(key, start) < 0 || end != nil && bytes.Compare(key, end) >= 0 {
			return true
		}
		return yield(key, value[:len(value):len(value)])
	}
	l := v.link(n)
	if start == nil || v.less(start, prefixOf(start), n, l) {
		if !v.ascendChild(n, left, start, end, yield) {
			return false
		}
	}
	if end == nil || !v.less(end, prefixOf(end), n, l) && !bytes.Equal(end, v.keyOf(n)) {
		return v.ascendChild(n, right, start, end, yield)
	}
	return true
}

func (v *Version) ascendChild(n ref, side int, start, end []byte, yield func(key, value []byte) bool) bool {
	if c := v.link(n).child[side]; c != 0 {
		return v.ascend(c, start, end, yield)
	}
	p := v.pageBelow(n, side)
	return p != nil && p.leaves(start, end, 0, func(l Leaf) bool { return yield(l.Key, l.Value) })
}

// Leaves yields all leaves in key order, each with the height of the inner node whose key it is, the first with 0.
func (v *Version) Leaves() iter.Seq[Leaf] {
	return func(yield func(Leaf) bool) {
		v.inUse()
		v.leavesOf(v.root, v.top.Height, 0, yield)
	}
}

// leavesOf yields the leaves below n, of this height. h is the height of the inner node whose key is the least key below n: the
// right child of an inner node begins with the leaf whose key that node bears.
func (v *Version) leavesOf(n ref, height, h uint8, yield func(Leaf) bool) bool {
	if n == 0 {
		return true
	}
	if n.isLeaf() {
		key, value := v.leaf(n)
		return yield(Leaf{Key: key, Value: value[:len(value):len(value)], Height: h})
	}
	l, i := v.link(n), v.image(n)
	for side, h := range [2]uint8{h, height} {
		if c := l.child[side]; c != 0 {
			if !v.leavesOf(c, i.height(side), h, yield) {
				return false
			}
		} else if p := v.pageBelow(n, side); p == nil || !p.leaves(nil, nil, h, yield) {
			return false
		}
	}
	return true
}

// RangeBytes returns the length of the leaf records of the keys in [start, end); nil is open. It takes O(log n).
func (v *Version) RangeBytes(start, end []byte) uint64 {
	v.inUse()
	if start != nil && end != nil && bytes.Compare(start, end) >= 0 {
		return 0
	}
	sum := v.top.Bytes
	if end != nil {
		sum = v.bytesBelow(end)
	}
	if start != nil {
		sum -= v.bytesBelow(start)
	}
	return sum
}

// bytesBelow returns the length of the leaf records of the keys less than key.
func (v *Version) bytesBelow(key []byte) (sum uint64) {
	prefix, n, bytesOfN := prefixOf(key), v.root, v.top.Bytes
	for n.isInner() {
		l, i := v.link(n), v.image(n)
		side := left
		if !v.less(key, prefix, n, l) {
			side, sum = right, sum+i.bytes(left)
		}
		n, bytesOfN = l.child[side], i.bytes(side)
	}
	if n != 0 && bytes.Compare(v.key(n), key) < 0 {
		sum += bytesOfN
	} else if n == 0 {
		if p := v.pageOn(key); p != nil {
			sum += p.bytesBelow(key)
		}
	}
	return sum
}

// NewInner yields in key order the key and the height of every inner node that v has and base has not, or has with another height:
// what must be written to disk beside the changed leaves. base is the version that v was applied to; nil, or a version further
// back, yields more than changed at worst.
func (v *Version) NewInner(base *Version) iter.Seq2[[]byte, uint8] {
	return func(yield func([]byte, uint8) bool) {
		v.inUse()
		if base == nil {
			v.newInner(v.root, 0, true, false, yield)
		} else if base.epoch != v.epoch {
			// A node that was copied twice remembers only whether it moved the second time.
			v.newInner(v.root, base.epoch, false, v.parent == base.epoch, yield)
		}
	}
}

// newInner yields the inner nodes below n after epoch, of which only those that moved where movedOnly.
func (w *view) newInner(n ref, epoch uint32, all, movedOnly bool, yield func([]byte, uint8) bool) bool {
	if !n.isInner() {
		return true
	}
	l, i := w.link(n), w.image(n)
	if !all && !i.newerThan(epoch) {
		return true
	}
	return w.newInner(l.child[left], epoch, all, movedOnly, yield) &&
		(movedOnly && i.flags()&moved == 0 || yield(w.keyOf(n), i.ownHeight())) &&
		w.newInner(l.child[right], epoch, all, movedOnly, yield)
}

// Len returns the number of leaves.
func (v *Version) Len() uint64 { return v.leaves }

// ChunkBytes returns the chunk limit B.
func (v *Version) ChunkBytes() uint64 { return v.chunkBytes }

// NumChunks returns the number of chunks m.
func (v *Version) NumChunks() uint32 {
	if v.top == emptyStub {
		return 0
	}
	return uint32(v.upper + 1)
}

// Hashed returns how many inner nodes and leaves were hashed to make v: those that the version before has not.
func (v *Version) Hashed() (inner, leaves uint64) { return v.hashedInner, v.hashedLeaves }

// Root returns the commitment of the whole tree; that of the empty tree has height 0, no bytes and the hash SHA256("").
func (v *Version) Root() Stub { return v.top }

// Commitment returns what the AppHash commits to.
func (v *Version) Commitment() Commitment {
	return Commitment{ChunkBytes: v.chunkBytes, Chunks: v.NumChunks(), Root: v.Root()}
}

// AppHash returns the hash that the block header carries.
func (v *Version) AppHash() Hash { return v.Commitment().AppHash() }
