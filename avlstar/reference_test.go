package avlstar

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"slices"
)

// refNode is a naive tree, written from the specification alone: slow, recursive, without state. It
// shares nothing with the implementation; heights, sums, keys and hashes are computed again at
// every use.
type refNode struct {
	key, value  []byte   // for a leaf
	left, right *refNode // for an inner node
}

func (n *refNode) leaf() bool { return n.left == nil }

func (n *refNode) height() int {
	if n.leaf() {
		return 0
	}
	return 1 + max(n.left.height(), n.right.height())
}

// least returns the least key below n; the least key of the right child is the key of its parent.
func (n *refNode) least() []byte {
	if n.leaf() {
		return n.key
	}
	return n.left.least()
}

// refJoin makes an inner node of two subtrees whose heights differ by 2 at most, and rotates if it
// must.
func refJoin(l, r *refNode) *refNode {
	switch {
	case l.height() == r.height()+2:
		if l.right.height() > l.left.height() { // the inner grandchild is strictly higher: double
			return &refNode{left: &refNode{left: l.left, right: l.right.left}, right: &refNode{left: l.right.right, right: r}}
		}
		return &refNode{left: l.left, right: &refNode{left: l.right, right: r}}
	case r.height() == l.height()+2:
		if r.left.height() > r.right.height() {
			return &refNode{left: &refNode{left: l, right: r.left.left}, right: &refNode{left: r.left.right, right: r.right}}
		}
		return &refNode{left: &refNode{left: l, right: r.left}, right: r.right}
	}
	return &refNode{left: l, right: r}
}

func refPut(n *refNode, key, value []byte) *refNode {
	fresh := &refNode{key: key, value: value}
	switch {
	case n == nil:
		return fresh
	case n.leaf() && bytes.Equal(key, n.key):
		return fresh
	case n.leaf() && bytes.Compare(key, n.key) < 0:
		return &refNode{left: fresh, right: n}
	case n.leaf():
		return &refNode{left: n, right: fresh}
	case bytes.Compare(key, n.right.least()) < 0:
		return refJoin(refPut(n.left, key, value), n.right)
	}
	return refJoin(n.left, refPut(n.right, key, value))
}

func refDelete(n *refNode, key []byte) *refNode {
	switch {
	case n == nil || n.leaf() && bytes.Equal(key, n.key):
		return nil
	case n.leaf():
		return n
	case bytes.Compare(key, n.right.least()) < 0:
		if l := refDelete(n.left, key); l != nil {
			return refJoin(l, n.right)
		}
		return n.right
	}
	if r := refDelete(n.right, key); r != nil {
		return refJoin(n.left, r)
	}
	return n.left
}

// refLeaf is a leaf with the height of the inner node that has its key.
type refLeaf struct {
	key, value []byte
	height     int
}

func (n *refNode) leaves() []refLeaf {
	if n == nil {
		return nil
	}
	if n.leaf() {
		return []refLeaf{{n.key, n.value, 0}}
	}
	right := n.right.leaves()
	right[0].height = n.height()
	return append(n.left.leaves(), right...)
}

func refUvarint(x int) []byte { return binary.AppendUvarint(nil, uint64(x)) }

// records returns the encoding of a chunk with root n.
func (n *refNode) records() []byte {
	var b []byte
	for _, l := range n.leaves() {
		b = slices.Concat(b, []byte{byte(l.height)}, refUvarint(len(l.key)), l.key, refUvarint(len(l.value)), l.value)
	}
	return b
}

func (n *refNode) stat() []byte {
	if n == nil {
		return make([]byte, 9)
	}
	return binary.BigEndian.AppendUint64([]byte{byte(n.height())}, uint64(len(n.records())))
}

func refSHA(parts ...[]byte) []byte {
	h := sha256.Sum256(slices.Concat(parts...))
	return h[:]
}

func (n *refNode) hash() []byte {
	switch {
	case n == nil:
		return refSHA()
	case n.leaf():
		return refSHA([]byte{0}, refSHA(n.key), refSHA(n.value))
	}
	return refSHA([]byte{1}, n.left.stat(), n.right.stat(), refSHA(n.right.least()), n.left.hash(), n.right.hash())
}

// refChunk is a chunk's root with the height of the upper node that has its first key.
type refChunk struct {
	root     *refNode
	boundary int
}

func (n *refNode) chunks(chunkBytes int) []refChunk {
	if n == nil {
		return nil
	}
	if n.leaf() || len(n.records()) <= chunkBytes {
		return []refChunk{{n, 0}}
	}
	right := n.right.chunks(chunkBytes)
	right[0].boundary = n.height()
	return append(n.left.chunks(chunkBytes), right...)
}

func (n *refNode) manifest(chunkBytes int) []byte {
	chunks := n.chunks(chunkBytes)
	b := slices.Concat(refUvarint(1), refUvarint(chunkBytes), refUvarint(len(chunks)))
	for k, c := range chunks {
		if k > 0 {
			b = slices.Concat(b, []byte{byte(c.boundary)}, refSHA(c.root.least()))
		}
		b = slices.Concat(b, []byte{byte(c.root.height())}, refUvarint(len(c.root.records())), c.root.hash())
	}
	return b
}

func (n *refNode) appHash(chunkBytes int) []byte {
	value := binary.BigEndian.AppendUint64(nil, uint64(chunkBytes))
	value = binary.BigEndian.AppendUint32(value, uint32(len(n.chunks(chunkBytes))))
	value = append(value, n.stat()...)
	leaf := func(key string, value []byte) []byte {
		return refSHA([]byte{0}, refUvarint(len(key)), []byte(key), refUvarint(32), refSHA(value))
	}
	return refSHA([]byte{1}, leaf("chunks", value), leaf("state", n.hash()))
}
