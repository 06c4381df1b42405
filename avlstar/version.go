package avlstar

import (
	"bytes"
	"fmt"
	"iter"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
)

// Version is an immutable state of the tree. Any number of goroutines may read it while others
// apply changes to it, which makes another version.
//
// A version begins with one reference, which belongs to the caller that got it; Retain and Release
// count references. After the last Release it must not be used. Get, Floor, Chunk and proofs return
// copies. Keys and values that View and iterators return are the tree's own memory: they must not
// be modified, and are valid until the version is released or unreachable.
//
// Part of a version may have left memory (Paging). A method that needs a page that cannot be read
// returns a *PageError, and never reports the key as absent. An iterator yields the error last,
// with a zero value.
type Version struct {
	view
	tree    *tree
	index   *index  // nil if there is none
	records Records // nil if there is none; set before the version is shared, see ByKey
	refs    atomic.Int64
	held    atomic.Uint64 // bytes, see HeldBytes; written under tree.mu

	root       ref  // 0: the tree is empty, or the root of a partial tree is a stub
	top        Stub // height, bytes and hash of the root
	chunkBytes uint64
	epoch      uint32
	parent     uint32 // epoch of the version from which this one was made
	from       uint32 // epoch of the version to which the last block was applied
	grown      bool   // whether grafts added nodes since then
	shed       bool   // whether Shed removed nodes since then
	upper      uint64 // number of inner nodes above the chunks; there is one more chunk than these
	leaves     uint64
	partial    bool // whether there may be stubs
	uncounted  bool // whether leaves is unknown
	// full is a range in which the version has no stub other than pages; nil if none is known. If
	// it is set in a tree with Paging, stubs outside of it are not pages. It does not change.
	full *KeyRange

	hashedInner, hashedLeaves uint64

	once     sync.Once   // guards chunks, man and upperErr, see upperTree
	chunks   []chunkRoot // in key order
	man      *Manifest
	upperErr error // *MissingNodeError

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

// find returns the leaf with the greatest key that is not above key, or the least leaf if there is
// none. It returns 0 if the tree is empty or a stub is on the path.
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

// findEqual returns the leaf with this key, or 0 if there is none or a stub is on the path. It
// first compares only prefixes, which are almost always enough. So it reads only the links of inner
// nodes, and its loop has no branch to predict.
func (v *Version) findEqual(key []byte) ref {
	v.inUse()
	prefix, n := prefixOf(key), v.root
	for n.isInner() {
		l := v.link(n)
		_, below := bits.Sub64(prefix, l.prefix, 0)
		n = l.child[(1-below)%2]
	}
	if n != 0 {
		prefetchRecord(&v.record(n)[0]) // both cache lines at once
	}
	if n == 0 && !v.partial || n != 0 && bytes.Equal(v.key(n), key) {
		return n
	}
	if n = v.find(key); n != 0 && !bytes.Equal(v.key(n), key) {
		return 0
	}
	return n
}

// leafOf does what findEqual does, with the index if there is one.
func (v *Version) leafOf(key []byte) ref {
	if v.index == nil {
		return v.findEqual(key)
	}
	return v.index.leafOf(v, key)
}

// Get returns a copy of the value of key; ok is false if key is absent.
func (v *Version) Get(key []byte) (value []byte, ok bool, err error) {
	defer runtime.KeepAlive(v)
	value, ok, err = v.View(key)
	return bytes.Clone(value), ok, err
}

// View returns the value of key in the tree's memory: it must not be modified, and is valid until v
// is released. ok is false if key is absent.
func (v *Version) View(key []byte) (value []byte, ok bool, err error) { return v.viewBy(key, nil) }

// viewBy does what View does. A value that has left memory is first looked for in records, unless
// records is nil.
func (v *Version) viewBy(key []byte, records Records) (value []byte, ok bool, err error) {
	n := v.leafOf(key)
	if n == 0 {
		return v.viewPage(key, records)
	}
	_, value = v.leaf(n)
	runtime.KeepAlive(v)
	return value[:len(value):len(value)], true, nil
}

// viewPage does what viewBy does for a key without a leaf in memory.
func (v *Version) viewPage(key []byte, records Records) (value []byte, ok bool, err error) {
	defer runtime.KeepAlive(v)
	if !v.partial { // another goroutine may be enabling paging
		return nil, false, nil
	}
	s, n := v.locate(key, false)
	if n != 0 || s.Stub == emptyStub {
		return nil, false, nil
	}
	if records != nil && v.isAway(s) {
		switch value, ok, err = records.Record(s, key); {
		case err != nil:
			return nil, false, pageError(s, err)
		case ok:
			return value, true, nil
		}
	}
	p, err := v.page(s, key)
	if err != nil {
		return nil, false, err
	}
	value, ok = p.Get(key)
	return value, ok, nil
}

// Has reports whether key is present.
func (v *Version) Has(key []byte) (bool, error) {
	_, length, err := v.Peek(key)
	return length > 0, err
}

// Floor returns copies of the greatest key that is not greater than key, and of its value; ok is
// false if there is none.
func (v *Version) Floor(key []byte) (k, value []byte, ok bool, err error) {
	defer runtime.KeepAlive(v)
	k, value, ok, err = v.ViewFloor(key, false)
	return bytes.Clone(k), bytes.Clone(value), ok, err
}

// Ascend yields the keys in [start, end) and their values in key order; a nil bound is open.
func (v *Version) Ascend(start, end []byte) iter.Seq2[KV, error] {
	return func(yield func(KV, error) bool) {
		v.inUse()
		defer runtime.KeepAlive(v)
		if v.root == 0 {
			if _, err := v.pageOn(nil); err != nil {
				yield(KV{}, err)
			}
			return
		}
		v.ascend(v.root, start, end, yield)
	}
}

func (v *Version) ascend(n ref, start, end []byte, yield func(KV, error) bool) bool {
	if n.isLeaf() {
		key, value := v.leaf(n)
		if start != nil && bytes.Compare(key, start) < 0 || end != nil && bytes.Compare(key, end) >= 0 {
			return true
		}
		return yield(KV{key, value[:len(value):len(value)]}, nil)
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

func (v *Version) ascendChild(n ref, side int, start, end []byte, yield func(KV, error) bool) bool {
	if c := v.link(n).child[side]; c != 0 {
		return v.ascend(c, start, end, yield)
	}
	p, err := v.pageBelow(n, side)
	if err != nil {
		yield(KV{}, err)
		return false
	}
	return p.leaves(start, end, 0, func(l Leaf) bool { return yield(KV{l.Key, l.Value}, nil) })
}

// Leaves yields all leaves in key order. Each has the height of the inner node with the same key;
// the first has height 0.
func (v *Version) Leaves() iter.Seq2[Leaf, error] {
	return func(yield func(Leaf, error) bool) {
		v.inUse()
		defer runtime.KeepAlive(v)
		if v.root == 0 {
			if _, err := v.pageOn(nil); err != nil {
				yield(Leaf{}, err)
			}
			return
		}
		v.leavesOf(v.root, v.top.Height, 0, yield)
	}
}

// leavesOf yields the leaves below n, which has this height. h is the height of the inner node
// whose key is the least key below n: the right subtree of an inner node begins with the leaf that
// has its key.
func (v *Version) leavesOf(n ref, height, h uint8, yield func(Leaf, error) bool) bool {
	if n.isLeaf() {
		key, value := v.leaf(n)
		return yield(Leaf{Key: key, Value: value[:len(value):len(value)], Height: h}, nil)
	}
	l, i := v.link(n), v.image(n)
	for side, h := range [2]uint8{h, height} {
		if c := l.child[side]; c != 0 {
			if !v.leavesOf(c, i.height(side), h, yield) {
				return false
			}
			continue
		}
		p, err := v.pageBelow(n, side)
		if err != nil {
			yield(Leaf{}, err)
			return false
		}
		if !p.leaves(nil, nil, h, func(l Leaf) bool { return yield(l, nil) }) {
			return false
		}
	}
	return true
}

// RangeBytes returns the total length of the leaf records of the keys in [start, end); a nil bound
// is open. It takes O(log n) time.
func (v *Version) RangeBytes(start, end []byte) (uint64, error) {
	v.inUse()
	defer runtime.KeepAlive(v)
	if start != nil && end != nil && bytes.Compare(start, end) >= 0 {
		return 0, nil
	}
	sum := v.top.Bytes
	if end != nil {
		below, err := v.bytesBelow(end)
		if err != nil {
			return 0, err
		}
		sum = below
	}
	if start != nil {
		below, err := v.bytesBelow(start)
		if err != nil {
			return 0, err
		}
		sum -= below
	}
	return sum, nil
}

// bytesBelow returns the total length of the leaf records of the keys less than key.
func (v *Version) bytesBelow(key []byte) (sum uint64, err error) {
	prefix, n, bytesOfN := prefixOf(key), v.root, v.top.Bytes
	for n.isInner() {
		l, i := v.link(n), v.image(n)
		side := left
		if !v.less(key, prefix, n, l) {
			side, sum = right, sum+i.bytes(left)
		}
		n, bytesOfN = l.child[side], i.bytes(side)
	}
	if n != 0 {
		if bytes.Compare(v.key(n), key) < 0 {
			sum += bytesOfN
		}
		return sum, nil
	}
	if s, ok := v.knownLeaf(key); ok {
		if bytes.Compare(s.First, key) < 0 {
			sum += bytesOfN
		}
		return sum, nil
	}
	p, err := v.pageOn(key)
	if p == nil {
		return sum, err
	}
	return sum + p.bytesBelow(key), nil
}

// NewInner yields, in key order, the key and height of every inner node that is not in base, or
// whose height or leaf changed since base. These must be written to disk with the changed leaves.
// So NewInner yields the height of every leaf that was put, except the first in the tree. base is
// the version to which the changes were applied, and may have been released. If base is nil or an
// older version, further nodes may be yielded. New nodes are in memory, so no page is read.
func (v *Version) NewInner(base *Version) iter.Seq2[[]byte, uint8] {
	return func(yield func([]byte, uint8) bool) {
		v.inUse()
		defer runtime.KeepAlive(v)
		if base == nil {
			v.newInner(v.root, 0, true, false, yield)
		} else if base.epoch != v.epoch {
			// A node that was copied twice records only whether the second copy moved.
			v.newInner(v.root, base.epoch, false, v.parent == base.epoch, yield)
		}
	}
}

// newInner yields the inner nodes below n that were made after epoch, or all if all is set. If
// movedOnly is set, it yields only those that moved.
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

// Hashed returns the number of inner nodes and leaves that were hashed to make v. These nodes are
// not in the previous version.
func (v *Version) Hashed() (inner, leaves uint64) { return v.hashedInner, v.hashedLeaves }

// Root returns the commitment of the whole tree. For the empty tree it has height 0, no bytes and
// the hash SHA256("").
func (v *Version) Root() Stub { return v.top }

// Commitment returns the values that the AppHash commits to.
func (v *Version) Commitment() Commitment {
	return Commitment{ChunkBytes: v.chunkBytes, Chunks: v.NumChunks(), Root: v.Root()}
}

// AppHash returns the hash that the block header carries.
func (v *Version) AppHash() Hash { return v.Commitment().AppHash() }
