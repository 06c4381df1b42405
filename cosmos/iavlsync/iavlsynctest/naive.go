// Package iavlsynctest is shared by the tests of iavlsync. It has a naive IAVL tree, naive encoders
// of the formats, random blocks, and a suite that compares them with iavlsync and real IAVL trees.
//
//	random blocks ─┬─▶ naive Tree ──▶ naive encoders ─────────┐
//	               └─▶ real iavl ───▶ iavlsync.Cut, Answer ───┴─▶ equal, and verified against the real hash
//
// The naive code is independent of iavlsync, so a mistake goes unnoticed only if it is in both.
package iavlsynctest

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"slices"
)

// Node is a node of a naive tree. It does not change after its version is saved.
type Node struct {
	Key, Value  []byte // of a leaf
	Left, Right *Node  // of an inner node
	Version     int64  // 0: not saved yet
	height      int
	size        int64
	hash        []byte
}

// Height returns 0 for a leaf.
func (n *Node) Height() int { return n.height }

// Size returns the number of leaves.
func (n *Node) Size() int64 { return n.size }

func newLeaf(key, value []byte) *Node {
	return &Node{Key: bytes.Clone(key), Value: bytes.Clone(value), size: 1}
}

func newInner(left, right *Node) *Node {
	return &Node{Left: left, Right: right, height: 1 + max(left.height, right.height), size: left.size + right.size}
}

// Least returns the least key in the subtree n.
func (n *Node) Least() []byte {
	for n.Left != nil {
		n = n.Left
	}
	return n.Key
}

// Leaves calls fn with each leaf of the subtree n in key order.
func (n *Node) Leaves(fn func(leaf *Node)) {
	if n == nil {
		return
	}
	if n.Left == nil {
		fn(n)
		return
	}
	n.Left.Leaves(fn)
	n.Right.Leaves(fn)
}

// Hash returns the hash of a saved node. For nil it returns the root hash of an empty tree.
func (n *Node) Hash() []byte {
	if n == nil {
		return sum(nil)
	}
	if n.hash != nil {
		return n.hash
	}
	b := binary.AppendVarint(nil, int64(n.height))
	b = binary.AppendVarint(b, n.size)
	b = binary.AppendVarint(b, n.Version)
	for _, part := range n.hashed() {
		b = append(binary.AppendUvarint(b, uint64(len(part))), part...)
	}
	n.hash = sum(b)
	return n.hash
}

func (n *Node) hashed() [2][]byte {
	if n.Left == nil {
		return [2][]byte{n.Key, sum(n.Value)}
	}
	return [2][]byte{n.Left.Hash(), n.Right.Hash()}
}

func sum(b []byte) []byte {
	h := sha256.Sum256(b)
	return h[:]
}

// Tree is a naive IAVL tree.
type Tree struct {
	Root    *Node
	Version int64 // last saved version
}

// Set sets the value of a key. Like IAVL, it makes new nodes even if the value does not change.
func (t *Tree) Set(key, value []byte) { t.Root = set(t.Root, key, value) }

func set(n *Node, key, value []byte) *Node {
	switch {
	case n == nil:
		return newLeaf(key, value)
	case n.Left == nil:
		switch bytes.Compare(key, n.Key) {
		case -1:
			return newInner(newLeaf(key, value), n)
		case 1:
			return newInner(n, newLeaf(key, value))
		}
		return newLeaf(key, value)
	case bytes.Compare(key, n.Right.Least()) < 0:
		return balanced(newInner(set(n.Left, key, value), n.Right))
	}
	return balanced(newInner(n.Left, set(n.Right, key, value)))
}

// Remove deletes a key if it is present.
func (t *Tree) Remove(key []byte) {
	if root, removed := remove(t.Root, key); removed {
		t.Root = root
	}
}

func remove(n *Node, key []byte) (*Node, bool) {
	if n == nil || n.Left == nil {
		return nil, n != nil && bytes.Equal(n.Key, key)
	}
	left, right := n.Left, n.Right
	var removed bool
	if bytes.Compare(key, right.Least()) < 0 {
		left, removed = remove(left, key)
	} else {
		right, removed = remove(right, key)
	}
	switch {
	case !removed:
		return n, false
	case left == nil:
		return right, true
	case right == nil:
		return left, true
	}
	return balanced(newInner(left, right)), true
}

// balanced rotates a new node whose children's heights differ by two.
func balanced(n *Node) *Node {
	l, r := n.Left, n.Right
	switch {
	case l.height > r.height+1:
		if l.Left.height < l.Right.height {
			l = newInner(newInner(l.Left, l.Right.Left), l.Right.Right)
		}
		return newInner(l.Left, newInner(l.Right, r))
	case r.height > l.height+1:
		if r.Right.height < r.Left.height {
			r = newInner(r.Left.Left, newInner(r.Left.Right, r.Right))
		}
		return newInner(newInner(l, r.Left), r.Right)
	}
	return n
}

// Save saves all changes since the last version as the next version.
func (t *Tree) Save() { t.SaveAs(t.Version + 1) }

// SaveAs is Save with a given version, which may skip some, as in a store that was added later.
func (t *Tree) SaveAs(version int64) {
	t.Version = version
	var save func(n *Node)
	save = func(n *Node) {
		if n == nil || n.Version != 0 {
			return
		}
		n.Version = t.Version
		save(n.Left)
		save(n.Right)
	}
	save(t.Root)
}

// State is a multi-store: the roots of its trees, by name.
type State map[string]*Node

// Names returns the names of the stores, ascending.
func (s State) Names() []string { return Keys(s) }

// AppHash returns the app hash of a multi-store as cosmossdk.io/store computes it.
func (s State) AppHash() []byte {
	var leaves [][]byte
	for _, name := range s.Names() {
		b := append(binary.AppendUvarint(nil, uint64(len(name))), name...)
		leaves = append(leaves, append(append(b, 32), sum(s[name].Hash())...))
	}
	return merkle(leaves)
}

// merkle returns the root of the Merkle tree of RFC 6962, section 2.1.
func merkle(leaves [][]byte) []byte {
	switch len(leaves) {
	case 0:
		return sum(nil)
	case 1:
		return sum(append([]byte{0}, leaves[0]...))
	}
	k := 1
	for 2*k < len(leaves) {
		k *= 2
	}
	return sum(slices.Concat([]byte{1}, merkle(leaves[:k]), merkle(leaves[k:])))
}
