package avlstar

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
)

// builder makes a tree from items in key order: a Cartesian tree on the heights of the inner nodes between them, in one linear
// pass with a stack. Items and the heights between them fix the tree (design, section 3): the inner node between two neighbouring
// items bears the key of the second, and a parent is higher than its child.
//
//	items            a    b    c    d         stack after d: (b, 2) (d, 1)
//	boundary         -    2    1    …
//
//	                  (b 2)
//	                 /     \
//	                a    (c 1)
//	                     /   \
//	                    b     c
//
// It trusts nothing: every inner node must have the height 1 + its higher child's, children that differ by at most 1, bytes that
// do not overflow, and keys that ascend where they are known. It hashes each inner node when it is complete. Heights are bytes and
// descend along the stack, so that it never holds more than 255 frames whatever the input.
type builder struct {
	chunkBytes uint64 // B, to count the upper nodes
	upperOnly  bool   // refuse a small inner node: its chunks would not be maximal

	leaves uint64 // items without children, stubs too
	upper  uint64 // inner nodes that are not small: a tree has one chunk more than these

	stack []frame
	tail  *node  // what lies right of the last frame
	low   []byte // greatest key known so far: the next known key is greater
}

// item is one input of a builder: a leaf, a hashed leaf, a stub or a complete tree.
type item struct {
	boundary uint8  // height of the inner node whose key is the item's least key; ignored for the first item
	key      []byte // least key; nil where only its hash is known
	keyHash  Hash   // SHA256(key); unused for the first item
	node     *node  // with hash, height and bytes
}

// frame is an inner node whose right subtree is still growing.
type frame struct {
	left    *node
	key     []byte
	keyHash Hash
	height  uint8
}

// leafItem returns a full leaf. It refers to key and value.
func leafItem(boundary uint8, key, value []byte) item {
	it := hashedLeafItem(boundary, key, len(value), sha256.Sum256(value))
	it.node.value = value
	return it
}

// hashedLeafItem returns a leaf of whose value only length and hash are known. It refers to key.
func hashedLeafItem(boundary uint8, key []byte, valueLen int, valueHash Hash) item {
	keyHash := Hash(sha256.Sum256(key))
	n := &node{key: key, bytes: RecordBytes(len(key), valueLen), hash: hashLeaf(keyHash, valueHash)}
	return item{boundary: boundary, key: key, keyHash: keyHash, node: n}
}

// stubItem returns a subtree of which only the commitment and the hash of its least key are known.
func stubItem(boundary uint8, keyHash Hash, s Stub) item {
	return item{boundary: boundary, keyHash: keyHash, node: &node{height: s.Height, bytes: s.Bytes, hash: s.Hash}}
}

// add appends an item. After an error the builder is of no use.
func (b *builder) add(it item) error {
	if it.key != nil {
		if b.low != nil && bytes.Compare(it.key, b.low) <= 0 {
			return fmt.Errorf("key %s does not ascend", abbreviate(it.key))
		}
		b.low = it.key
		if last := it.node.last().key; last != nil {
			b.low = last
		}
	}
	if b.tail != nil {
		if err := b.closeBelow(int(it.boundary)); err != nil {
			return err
		}
		if it.boundary == 0 || len(b.stack) > 0 && b.stack[len(b.stack)-1].height == it.boundary {
			return fmt.Errorf("inner node of height %d: a parent is higher than its child", it.boundary)
		}
		b.stack = append(b.stack, frame{left: b.tail, key: it.key, keyHash: it.keyHash, height: it.boundary})
	}
	b.tail = it.node
	b.leaves++
	return nil
}

// root completes the tree and returns its root, nil if there was no item.
func (b *builder) root() (*node, error) {
	if err := b.closeBelow(256); err != nil {
		return nil, err
	}
	return b.tail, nil
}

// closeBelow completes the frames lower than height.
func (b *builder) closeBelow(height int) error {
	for len(b.stack) > 0 && int(b.stack[len(b.stack)-1].height) < height {
		n, err := b.join(b.stack[len(b.stack)-1], b.tail)
		if err != nil {
			return err
		}
		b.stack, b.tail = b.stack[:len(b.stack)-1], n
	}
	return nil
}

// join makes the inner node of a frame and its right subtree, and checks it.
func (b *builder) join(f frame, right *node) (*node, error) {
	l, r := int(f.left.height), int(right.height)
	if int(f.height) != 1+max(l, r) {
		return nil, fmt.Errorf("inner node of height %d over children of heights %d and %d", f.height, l, r)
	}
	if l-r > 1 || r-l > 1 {
		return nil, fmt.Errorf("inner node out of balance: children of heights %d and %d", l, r)
	}
	sum := f.left.bytes + right.bytes
	if sum < right.bytes {
		return nil, errors.New("the sum of the bytes overflows")
	}
	n := &node{key: f.key, left: f.left, right: right, height: f.height, bytes: sum}
	if !n.isSmall(b.chunkBytes) {
		b.upper++
	} else if b.upperOnly {
		return nil, fmt.Errorf("inner node of %d bytes above chunks: chunks of at most %d are not maximal", sum, b.chunkBytes)
	}
	n.hash = hashInner(f.left.stub(), right.stub(), f.keyHash)
	return n, nil
}
