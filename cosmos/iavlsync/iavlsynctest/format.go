package iavlsynctest

import (
	"bytes"
	"encoding/binary"
)

// Chunks returns the roots of the maximal chunks of at most limit leaves in the subtree n.
func (n *Node) Chunks(limit int64) []*Node {
	switch {
	case n == nil:
		return nil
	case n.size <= limit:
		return []*Node{n}
	}
	return append(n.Left.Chunks(limit), n.Right.Chunks(limit)...)
}

// Manifest naively encodes the manifest of a state at a height.
func (s State) Manifest(height, limit int64) []byte {
	uvarint := func(b []byte, v int64) []byte { return binary.AppendUvarint(b, uint64(v)) }
	b := uvarint(uvarint([]byte{1}, height), int64(len(s)))
	for _, name := range s.Names() {
		b = append(uvarint(b, int64(len(name))), name...)
		chunks := s[name].Chunks(limit)
		b = uvarint(b, int64(len(chunks)))
		for i, c := range chunks {
			if i > 0 {
				above := s[name].boundary(c.Least())
				b = uvarint(append(b, byte(above.height)), height-above.Version)
			}
			b = c.appendImage(b, height)
		}
	}
	return b
}

// boundary returns the inner node that has the given key in IAVL.
func (n *Node) boundary(key []byte) *Node {
	for !bytes.Equal(n.Right.Least(), key) {
		if bytes.Compare(key, n.Right.Least()) < 0 {
			n = n.Left
		} else {
			n = n.Right
		}
	}
	return n
}

func (n *Node) appendImage(b []byte, height int64) []byte {
	b = binary.AppendUvarint(append(b, byte(n.height)), uint64(height-n.Version))
	if n.Left == nil {
		b = append(binary.AppendUvarint(b, uint64(len(n.Key))), n.Key...)
		return append(b, sum(n.Value)...)
	}
	b = binary.AppendUvarint(b, uint64(n.size))
	return append(append(b, n.Left.Hash()...), n.Right.Hash()...)
}

// Halves naively encodes an answer with halves.
func (n *Node) Halves(height int64) []byte {
	return n.Right.appendImage(n.Left.appendImage([]byte{1}, height), height)
}

// Chunk naively encodes the subtree n as a chunk.
func (n *Node) Chunk() (b []byte) {
	first := true
	n.Leaves(func(leaf *Node) {
		if !first {
			above := n.boundary(leaf.Key)
			d := above.Version - max(above.Left.Version, above.Right.Version)
			b = binary.AppendUvarint(append(b, byte(above.height)), uint64(d))
		}
		first = false
		b = binary.AppendUvarint(b, uint64(n.Version-leaf.Version))
		b = append(binary.AppendUvarint(b, uint64(len(leaf.Key))), leaf.Key...)
		b = append(binary.AppendUvarint(b, uint64(len(leaf.Value))), leaf.Value...)
	})
	return b
}

// DecodeChunk naively decodes a chunk whose root has the given version. It returns nil if the chunk
// is invalid.
func DecodeChunk(version int64, b []byte) *Node {
	var leaves []*Node
	var heights []int
	var above []uint64
	bad := false
	uvarint := func(limit uint64) uint64 {
		v, n := binary.Uvarint(b)
		if n <= 0 || len(binary.AppendUvarint(nil, v)) != n || v > limit {
			bad = true
			return 0
		}
		b = b[n:]
		return v
	}
	take := func(n uint64) []byte {
		if n > uint64(len(b)) {
			bad = true
			return nil
		}
		part := b[:n]
		b = b[n:]
		return part
	}
	for len(b) > 0 && !bad {
		height, d := 0, uint64(0)
		if len(leaves) > 0 {
			height, b = int(b[0]), b[1:]
			d = uvarint(uint64(version))
		}
		back := uvarint(uint64(version - 1))
		key := take(uvarint(1<<17 - 1))
		leaf := newLeaf(key, take(uvarint(64e6)))
		leaf.Version = version - int64(back)
		if n := len(leaves); len(key) == 0 || n > 0 && bytes.Compare(leaves[n-1].Key, key) >= 0 {
			bad = true
		}
		leaves, heights, above = append(leaves, leaf), append(heights, height), append(above, d)
	}
	if bad || len(leaves) == 0 {
		return nil
	}
	root := build(leaves, heights, above)
	if root == nil || root.Version != version {
		return nil
	}
	return root
}

// build builds a tree from its leaves and the heights of the inner nodes before each leaf except
// the first. The highest inner node is the root.
func build(leaves []*Node, heights []int, above []uint64) *Node {
	if len(leaves) == 1 {
		return leaves[0]
	}
	at := 1
	for i := range leaves {
		if i > 0 && heights[i] > heights[at] {
			at = i
		}
	}
	left, right := build(leaves[:at], heights[:at], above[:at]), build(leaves[at:], heights[at:], above[at:])
	if left == nil || right == nil || max(left.height-right.height, right.height-left.height) > 1 {
		return nil
	}
	n := newInner(left, right)
	n.Version = max(left.Version, right.Version) + int64(above[at])
	if n.height != heights[at] {
		return nil
	}
	return n
}
