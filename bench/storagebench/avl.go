package storagebench

import (
	"encoding/binary"

	"github.com/starling-kv/starling/bench/workload"
)

// avl is the AVL tree of the chain's accounts as IAVL v1.3.6 keeps it, without values and hashes.
// It tracks the new nodes of each version, their keys, and the nodes that are no longer part of any
// later version. Insertion, deletion and rotations follow IAVL's mutable_tree.go and
// avlstar/edit.go, so the tree has the same shape as both.
//
//	   (n)            version 0: changed since the last version; gets its key (version, nonce) at the next save
//	 ┌──┴──┐          otherwise: as stored by that version; a change makes it an orphan
//	leaf  (n)
type avl struct {
	Spec
	nodes   []avlNode
	free    []uint32
	root    uint32 // 0: empty
	orphans []nodeID
	version uint64
}

// nodeID is IAVL's node key.
type nodeID struct {
	version uint64
	nonce   uint32
}

type avlNode struct {
	prefix      uint64 // first 8 bytes of the node's key, for comparisons
	key         uint32 // account whose key this is
	step        uint32 // leaf only: step that wrote its value
	left, right uint32 // 0 in a leaf
	size        uint32
	id          nodeID
	height      uint8
	// Last stored record of this inner node, in the layout of package storage.
	storedKey    uint32
	storedHeight uint8
}

func newAVL(s Spec) *avl { return &avl{Spec: s, nodes: make([]avlNode, 1, 2*s.Keys+2)} }

// apply makes the next version from changes, which are in key order.
func (t *avl) apply(changes []change, step uint32) {
	t.version++
	t.orphans = t.orphans[:0]
	for _, c := range changes {
		if c.delete {
			if t.root != 0 {
				t.root, _, _ = t.remove(t.root, t.prefix(c.id))
			}
			continue
		}
		if t.root == 0 {
			t.root = t.leaf(c.id, step)
			continue
		}
		t.root = t.put(t.root, t.prefix(c.id), c.id, step)
	}
}

func (t *avl) alloc(n avlNode) uint32 {
	if last := len(t.free) - 1; last >= 0 {
		i := t.free[last]
		t.free = t.free[:last]
		t.nodes[i] = n
		return i
	}
	t.nodes = append(t.nodes, n)
	return uint32(len(t.nodes) - 1)
}

func (t *avl) leaf(id, step uint32) uint32 {
	return t.alloc(avlNode{prefix: t.prefix(id), key: id, step: step, size: 1})
}

// touch makes a node part of the next version.
func (t *avl) touch(n uint32) {
	if node := &t.nodes[n]; node.id.version != 0 {
		t.orphans = append(t.orphans, node.id)
		node.id = nodeID{}
	}
}

func (t *avl) drop(n uint32) {
	t.touch(n)
	t.free = append(t.free, n)
}

func (t *avl) put(n uint32, prefix uint64, id, step uint32) uint32 {
	at := t.nodes[n]
	if at.height == 0 {
		if at.prefix == prefix {
			t.touch(n)
			t.nodes[n].step = step
			return n
		}
		l := t.leaf(id, step)
		inner := avlNode{height: 1, size: 2}
		if prefix < at.prefix {
			inner.prefix, inner.key, inner.left, inner.right = at.prefix, at.key, l, n
		} else {
			inner.prefix, inner.key, inner.left, inner.right = prefix, id, n, l
		}
		return t.alloc(inner)
	}
	t.touch(n)
	if prefix < at.prefix {
		child := t.put(at.left, prefix, id, step)
		t.nodes[n].left = child
	} else {
		child := t.put(at.right, prefix, id, step)
		t.nodes[n].right = child
	}
	return t.balance(n)
}

// remove returns the node that replaces n, or 0, and the new least key below it if that changed.
// The key must be in the tree.
func (t *avl) remove(n uint32, prefix uint64) (self uint32, least uint32, changed bool) {
	at := t.nodes[n]
	if at.height == 0 {
		t.drop(n)
		return 0, 0, false
	}
	if prefix < at.prefix {
		left, least, changed := t.remove(at.left, prefix)
		if left == 0 {
			t.drop(n)
			return at.right, at.key, true
		}
		t.touch(n)
		t.nodes[n].left = left
		return t.balance(n), least, changed
	}
	right, least, changed := t.remove(at.right, prefix)
	if right == 0 {
		t.drop(n)
		return at.left, 0, false
	}
	t.touch(n)
	t.nodes[n].right = right
	if changed {
		t.nodes[n].key, t.nodes[n].prefix = least, t.prefix(least)
	}
	return t.balance(n), 0, false
}

func (t *avl) measure(n uint32) {
	node := &t.nodes[n]
	l, r := &t.nodes[node.left], &t.nodes[node.right]
	node.height, node.size = 1+max(l.height, r.height), l.size+r.size
}

func (t *avl) lean(n uint32) int {
	return int(t.nodes[t.nodes[n].left].height) - int(t.nodes[t.nodes[n].right].height)
}

func (t *avl) balance(n uint32) uint32 {
	t.measure(n)
	switch lean := t.lean(n); {
	case lean > 1:
		if l := t.nodes[n].left; t.lean(l) < 0 {
			child := t.rotateLeft(l)
			t.nodes[n].left = child
		}
		return t.rotateRight(n)
	case lean < -1:
		if r := t.nodes[n].right; t.lean(r) > 0 {
			child := t.rotateRight(r)
			t.nodes[n].right = child
		}
		return t.rotateLeft(n)
	}
	return n
}

func (t *avl) rotateRight(n uint32) uint32 {
	l := t.nodes[n].left
	t.touch(n)
	t.touch(l)
	t.nodes[n].left, t.nodes[l].right = t.nodes[l].right, n
	t.measure(n)
	t.measure(l)
	return l
}

func (t *avl) rotateLeft(n uint32) uint32 {
	r := t.nodes[n].right
	t.touch(n)
	t.touch(r)
	t.nodes[n].right, t.nodes[r].left = t.nodes[r].left, n
	t.measure(n)
	t.measure(r)
	return r
}

// save assigns keys to the version's new nodes in IAVL's order (saveNewNodes: a parent before its
// children), and calls node with each and its encoding. It calls height for the inner nodes whose
// key or height changed.
func (t *avl) save(node func(id nodeID, encoded []byte), height func(key uint32, height uint8)) {
	if t.root == 0 {
		return
	}
	nonce := uint32(0)
	var visit func(n uint32)
	visit = func(n uint32) {
		if t.nodes[n].id.version != 0 {
			return
		}
		nonce++
		t.nodes[n].id = nodeID{t.version, nonce}
		if l, r := t.nodes[n].left, t.nodes[n].right; t.nodes[n].height > 0 {
			visit(l)
			visit(r)
			if at := &t.nodes[n]; at.storedKey != at.key || at.storedHeight != at.height {
				at.storedKey, at.storedHeight = at.key, at.height
				height(at.key, at.height)
			}
		}
		node(t.nodes[n].id, t.encode(n))
	}
	visit(t.root)
}

// encode returns IAVL's encoding of a node (node.go, writeBytes). The hash is random, so it is as
// incompressible as a real one.
func (t *avl) encode(n uint32) []byte {
	at := &t.nodes[n]
	b := make([]byte, 0, 128)
	b = binary.AppendVarint(b, int64(at.height))
	b = binary.AppendVarint(b, int64(at.size))
	b = t.appendKey(binary.AppendUvarint(b, keyBytes), at.key)
	if at.height == 0 {
		return t.appendValue(binary.AppendUvarint(b, valueBytes), at.key, at.step)
	}
	b = workload.AppendRandom(binary.AppendUvarint(b, 32), 32, t.Seed^0x68617368, at.id.version<<32|uint64(at.id.nonce))
	b = binary.AppendVarint(b, 0) // mode: children by node key
	for _, child := range []uint32{at.left, at.right} {
		id := t.nodes[child].id
		b = binary.AppendVarint(binary.AppendVarint(b, int64(id.version)), int64(id.nonce))
	}
	return b
}

// node is a decoded node.
type node struct {
	leaf        bool
	key         []byte
	value       []byte
	left, right nodeID
}

func decodeNode(b []byte) (n node, ok bool) {
	d := decoder{b: b}
	n.leaf = d.varint() == 0
	d.varint()
	n.key = d.bytes()
	if n.leaf {
		n.value = d.bytes()
		return n, !d.bad
	}
	d.bytes()
	d.varint()
	n.left = nodeID{uint64(d.varint()), uint32(d.varint())}
	n.right = nodeID{uint64(d.varint()), uint32(d.varint())}
	return n, !d.bad
}

// diskKey is 's' ‖ version:u64be ‖ nonce:u32be (nodedb.go, nodeKeyFormat).
func (id nodeID) diskKey() []byte {
	b := append(make([]byte, 0, 13), 's')
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(b, id.version), id.nonce)
}

// leaves yields the accounts in key order, with the heights that package avlstar expects.
func (t *avl) leaves(yield func(key, step uint32, height uint8) bool) {
	var visit func(n uint32, height uint8) bool
	visit = func(n uint32, height uint8) bool {
		at := &t.nodes[n]
		if at.height == 0 {
			return yield(at.key, at.step, height)
		}
		return visit(at.left, height) && visit(at.right, at.height)
	}
	if t.root != 0 {
		visit(t.root, 0)
	}
}
