package avlstar

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"sync"
)

// Version is one immutable state of the tree. Any number of goroutines may read it while others apply changes to it: that makes
// another version. It stays valid as long as it is referenced, and so do the keys and values that it hands out, which must
// not be modified.
type Version struct {
	root       *node // nil: the empty tree
	chunkBytes uint64
	epoch      uint32
	upper      uint64 // inner nodes above the chunks: the tree has one chunk more
	leaves     uint64

	once   sync.Once // guards what upperTree fills in
	chunks []*node   // roots of the chunks in key order
	man    *Manifest
}

// Empty returns the empty tree with chunk limit chunkBytes (B), 1 to MaxChunkBytes.
func Empty(chunkBytes uint64) (*Version, error) {
	if err := checkChunkBytes(chunkBytes); err != nil {
		return nil, fmt.Errorf("avlstar: %w", err)
	}
	return newVersion(nil, chunkBytes, 0, 0, 0)
}

// FromLeaves rebuilds a version in one linear pass from its leaves in key order, as Leaves yields them. The height of the first leaf
// is ignored; every other must be that of the inner node with the same key. Keys and values are copied. It fails with the
// error of leaves, or when they are not those of a proper tree.
func FromLeaves(chunkBytes uint64, leaves iter.Seq2[Leaf, error]) (*Version, error) {
	if err := checkChunkBytes(chunkBytes); err != nil {
		return nil, fmt.Errorf("avlstar: %w", err)
	}
	b := builder{chunkBytes: chunkBytes}
	for l, err := range leaves {
		if err == nil {
			err = errors.Join(checkKey(l.Key), checkValue(l.Value))
		}
		if err == nil {
			err = b.add(leafItem(l.Height, bytes.Clone(l.Key), bytes.Clone(l.Value)))
		}
		if err != nil {
			return nil, fmt.Errorf("avlstar: tree from leaves: leaf %d: %w", b.leaves, err)
		}
	}
	root, err := b.root()
	if err != nil {
		return nil, fmt.Errorf("avlstar: tree from leaves: %w", err)
	}
	return newVersion(root, chunkBytes, 0, b.upper, b.leaves)
}

// Get returns the value of key.
func (v *Version) Get(key []byte) (value []byte, ok bool) {
	k, value, ok := v.Floor(key)
	if !ok || !bytes.Equal(k, key) {
		return nil, false
	}
	return value, true
}

// Has says whether key is there.
func (v *Version) Has(key []byte) bool {
	_, ok := v.Get(key)
	return ok
}

// Floor returns the greatest key that is not greater than key, with its value.
func (v *Version) Floor(key []byte) (k, value []byte, ok bool) {
	n := v.root
	if n == nil {
		return nil, nil, false
	}
	var below *node // the last subtree passed on the left: all its keys are less than key
	for n.isInner() {
		if bytes.Compare(key, n.key) < 0 {
			n = n.left
		} else {
			below, n = n.left, n.right
		}
	}
	if bytes.Compare(n.key, key) > 0 {
		if below == nil {
			return nil, nil, false
		}
		n = below.last()
	}
	return n.key, n.value, true
}

// Ascend yields keys and values of [start, end) in key order; nil is open.
func (v *Version) Ascend(start, end []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(key, value []byte) bool) {
		if v.root != nil {
			v.root.ascend(start, end, yield)
		}
	}
}

func (n *node) ascend(start, end []byte, yield func(key, value []byte) bool) bool {
	if !n.isInner() {
		if start != nil && bytes.Compare(n.key, start) < 0 || end != nil && bytes.Compare(n.key, end) >= 0 {
			return true
		}
		return yield(n.key, n.value)
	}
	if start == nil || bytes.Compare(start, n.key) < 0 {
		if !n.left.ascend(start, end, yield) {
			return false
		}
	}
	if end == nil || bytes.Compare(n.key, end) < 0 {
		return n.right.ascend(start, end, yield)
	}
	return true
}

// Leaves yields all leaves in key order, each with the height of the inner node whose key it is, the first with 0.
func (v *Version) Leaves() iter.Seq[Leaf] { return leavesOf(v.root) }

func leavesOf(root *node) iter.Seq[Leaf] {
	return func(yield func(Leaf) bool) {
		if root != nil {
			root.leaves(0, yield)
		}
	}
}

// RangeBytes returns the length of the leaf records of the keys in [start, end); nil is open. It takes O(log n).
func (v *Version) RangeBytes(start, end []byte) uint64 {
	if v.root == nil || start != nil && end != nil && bytes.Compare(start, end) >= 0 {
		return 0
	}
	sum := v.root.bytes
	if end != nil {
		sum = v.root.bytesBelow(end)
	}
	if start != nil {
		sum -= v.root.bytesBelow(start)
	}
	return sum
}

// bytesBelow returns the length of the leaf records of the keys less than key.
func (n *node) bytesBelow(key []byte) (sum uint64) {
	for n.isInner() {
		if bytes.Compare(key, n.key) < 0 {
			n = n.left
		} else {
			sum, n = sum+n.left.bytes, n.right
		}
	}
	if bytes.Compare(n.key, key) < 0 {
		sum += n.bytes
	}
	return sum
}

// NewInner yields in key order the key and the height of every inner node that v has and base has not, or has with another height:
// what must be written to disk beside the changed leaves. base is the version that v was applied to; nil, or a version further
// back, yields more than changed at worst.
func (v *Version) NewInner(base *Version) iter.Seq2[[]byte, uint8] {
	return func(yield func([]byte, uint8) bool) {
		if v.root == nil {
			return
		}
		if base == nil {
			v.root.newInner(0, false, yield)
		} else {
			// A node that was copied twice remembers only whether it moved the second time.
			v.root.newInner(base.epoch+1, v.epoch == base.epoch+1, yield)
		}
	}
}

// newInner yields the inner nodes below n since epoch, of which only those that moved where movedOnly.
func (n *node) newInner(since uint32, movedOnly bool, yield func([]byte, uint8) bool) bool {
	if !n.isInner() || n.epoch < since {
		return true
	}
	return n.left.newInner(since, movedOnly, yield) &&
		(movedOnly && !n.moved || yield(n.key, n.height)) &&
		n.right.newInner(since, movedOnly, yield)
}

// Len returns the number of leaves.
func (v *Version) Len() uint64 { return v.leaves }

// ChunkBytes returns the chunk limit B.
func (v *Version) ChunkBytes() uint64 { return v.chunkBytes }

// NumChunks returns the number of chunks m.
func (v *Version) NumChunks() uint32 {
	if v.root == nil {
		return 0
	}
	return uint32(v.upper + 1)
}

// Root returns the commitment of the whole tree; that of the empty tree has height 0, no bytes and the hash SHA256("").
func (v *Version) Root() Stub {
	if v.root == nil {
		return emptyStub
	}
	return v.root.stub()
}

// Commitment returns what the AppHash commits to.
func (v *Version) Commitment() Commitment {
	return Commitment{ChunkBytes: v.chunkBytes, Chunks: v.NumChunks(), Root: v.Root()}
}

// AppHash returns the hash that the block header carries.
func (v *Version) AppHash() Hash { return v.Commitment().AppHash() }
