package avlstar

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Change puts a value or, where Value is nil, deletes a key.
type Change struct{ Key, Value []byte }

var (
	// ErrInvalidChange is wrapped by the errors of Apply about its input.
	ErrInvalidChange = errors.New("invalid change")
	// ErrTooLarge is wrapped where a tree would exceed what the formats can hold: 2^32-1 chunks.
	ErrTooLarge = errors.New("tree too large")
)

// Apply returns the version after one block of changes, in any order but each key once; v stays as it is. The changes are made
// one key after another in ascending key order; deleting an absent key and putting the value that is there change nothing, and if
// nothing changes the result is v itself. Keys and values are copied.
func (v *Version) Apply(changes []Change) (*Version, error) {
	sorted := slices.Clone(changes)
	slices.SortFunc(sorted, func(a, b Change) int { return bytes.Compare(a.Key, b.Key) })
	for i, c := range sorted {
		if err := c.check(); err != nil {
			return nil, fmt.Errorf("%w of key %s: %w", ErrInvalidChange, abbreviate(c.Key), err)
		}
		if i > 0 && bytes.Equal(sorted[i-1].Key, c.Key) {
			return nil, fmt.Errorf("%w: key %s twice, give its final change only", ErrInvalidChange, abbreviate(c.Key))
		}
	}
	e := edit{epoch: v.epoch + 1, chunkBytes: v.chunkBytes, upper: v.upper, leaves: v.leaves}
	root, changed := v.root, false
	for _, c := range sorted {
		var did bool
		if c.Value == nil {
			root, did = e.delete(root, c.Key)
		} else {
			root, did = e.put(root, c.Key, c.Value)
		}
		changed = changed || did
	}
	if !changed {
		return v, nil
	}
	e.hash(root)
	return newVersion(root, v.chunkBytes, e.epoch, e.upper, e.leaves)
}

func (c Change) check() error {
	if err := checkKey(c.Key); err != nil || c.Value == nil {
		return err
	}
	return checkValue(c.Value)
}

// edit is the making of one version. Its nodes are those of its epoch: it changes them in place and copies all others. While
// it lasts their hashes are not valid; hash computes them at the end.
//
// Insertion, deletion and rotations are those of the AVL* paper (Fynn et al. 2022, algorithms 1–4) without their bookkeeping
// of chunks; where they leave a choice, it is made as cosmos/iavl v1.3.6 makes it (mutable_tree.go: recursiveSet, recursiveRemove,
// balance).
type edit struct {
	epoch         uint32
	chunkBytes    uint64
	upper, leaves uint64 // inner nodes above the chunks; leaves
}

// put sets key to value below n (nil: the empty tree) and says whether that changed anything.
func (e *edit) put(n *node, key, value []byte) (*node, bool) {
	if n == nil {
		return e.newLeaf(bytes.Clone(key), value), true
	}
	if !n.isInner() {
		switch c := bytes.Compare(key, n.key); {
		case c < 0:
			return e.newInner(n.key, e.newLeaf(bytes.Clone(key), value), n), true
		case c > 0:
			leaf := e.newLeaf(bytes.Clone(key), value)
			return e.newInner(leaf.key, n, leaf), true
		case bytes.Equal(value, n.value):
			return n, false
		}
		e.leaves--
		return e.newLeaf(n.key, value), true
	}
	left := bytes.Compare(key, n.key) < 0
	child := n.right
	if left {
		child = n.left
	}
	child, changed := e.put(child, key, value)
	if !changed {
		return n, false
	}
	n = e.own(n)
	if left {
		n.left = child
	} else {
		n.right = child
	}
	return e.balance(n), true
}

// delete removes key below n and says whether it was there. The result is nil where n was the leaf itself.
func (e *edit) delete(n *node, key []byte) (*node, bool) {
	if n == nil {
		return nil, false
	}
	n, _, deleted := e.deleteAux(n, key)
	return n, deleted
}

// deleteAux is delete for a tree that is not empty. Where the least key below n was deleted it also returns the new one, for the
// inner node above n that bears it.
func (e *edit) deleteAux(n *node, key []byte) (newNode *node, least []byte, deleted bool) {
	if !n.isInner() {
		if !bytes.Equal(key, n.key) {
			return n, nil, false
		}
		e.leaves--
		return nil, nil, true
	}
	if bytes.Compare(key, n.key) < 0 {
		left, least, deleted := e.deleteAux(n.left, key)
		switch {
		case !deleted:
			return n, nil, false
		case left == nil: // the sibling takes the parent's place
			e.drop(n)
			return n.right, n.key, true
		}
		n = e.own(n)
		n.left = left
		return e.balance(n), least, true
	}
	right, least, deleted := e.deleteAux(n.right, key)
	switch {
	case !deleted:
		return n, nil, false
	case right == nil:
		e.drop(n)
		return n.left, nil, true
	}
	n = e.own(n)
	n.right = right
	if least != nil {
		n.key, n.moved = least, true
	}
	return e.balance(n), nil, true
}

// balance renews height and bytes of n, which e owns, and rotates where the heights of its children differ by 2: doubly only
// if the inner grandchild is strictly higher.
func (e *edit) balance(n *node) *node {
	n.update()
	switch diff := int(n.left.height) - int(n.right.height); {
	case diff > 1:
		if n.left.left.height < n.left.right.height {
			n.left = e.rotateLeft(e.own(n.left))
		}
		return e.rotateRight(n)
	case diff < -1:
		if n.right.right.height < n.right.left.height {
			n.right = e.rotateRight(e.own(n.right))
		}
		return e.rotateLeft(n)
	}
	return n
}

// rotateRight lifts the left child of n, which e owns.
func (e *edit) rotateRight(n *node) *node {
	l := e.own(n.left)
	n.left, l.right = l.right, n
	n.update()
	l.update()
	return l
}

// rotateLeft lifts the right child of n, which e owns.
func (e *edit) rotateLeft(n *node) *node {
	r := e.own(n.right)
	n.right, r.left = r.left, n
	n.update()
	r.update()
	return r
}

// update renews height and bytes of an inner node from its children.
func (n *node) update() {
	n.bytes = n.left.bytes + n.right.bytes
	if h := 1 + max(n.left.height, n.right.height); h != n.height {
		n.height, n.moved = h, true
	}
}

func (e *edit) newLeaf(key, value []byte) *node {
	e.leaves++
	return &node{key: key, value: bytes.Clone(value), bytes: RecordBytes(len(key), len(value)), epoch: e.epoch}
}

func (e *edit) newInner(key []byte, left, right *node) *node {
	n := &node{key: key, left: left, right: right, epoch: e.epoch, moved: true}
	n.update()
	return n
}

// own returns the inner node n as one that e may change: itself or a copy that takes its place.
func (e *edit) own(n *node) *node {
	if n.epoch == e.epoch {
		return n
	}
	e.drop(n)
	c := *n
	c.epoch, c.moved = e.epoch, false
	return &c
}

// drop counts an inner node out that is not in the version being made. Nodes of e are counted by hash, so once they stay.
func (e *edit) drop(n *node) {
	if n.epoch != e.epoch && !n.isSmall(e.chunkBytes) {
		e.upper--
	}
}

// hash computes the hashes of the nodes of e below n, children before parents, and counts the upper ones.
func (e *edit) hash(n *node) {
	if n == nil || n.epoch != e.epoch {
		return
	}
	if !n.isInner() {
		n.hash = hashLeaf(sha256.Sum256(n.key), sha256.Sum256(n.value))
		return
	}
	e.hash(n.left)
	e.hash(n.right)
	n.hash = hashInner(n.left.stub(), n.right.stub(), sha256.Sum256(n.key))
	if !n.isSmall(e.chunkBytes) {
		e.upper++
	}
}

// newVersion publishes a complete tree.
func newVersion(root *node, chunkBytes uint64, epoch uint32, upper, leaves uint64) (*Version, error) {
	if upper >= math.MaxUint32 || epoch == math.MaxUint32 {
		return nil, fmt.Errorf("%w: %d chunks after %d versions", ErrTooLarge, upper+1, epoch)
	}
	return &Version{root: root, chunkBytes: chunkBytes, epoch: epoch, upper: upper, leaves: leaves}, nil
}
