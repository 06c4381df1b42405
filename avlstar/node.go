package avlstar

// node is a leaf, an inner node or a stub:
//
//	leaf    height 0, key, value
//	inner   height > 0, both children; key is the least key of the right subtree (nil in a partial tree that knows only its hash)
//	stub    no children and no value, perhaps a key: a subtree, or a leaf, of which only bytes, height and hash are known
//
// A node belongs to the version of its epoch. Apply changes only nodes of the epoch it is making, so that a published version
// never changes. 112 bytes, one size class of the allocator.
type node struct {
	key, value  []byte
	left, right *node
	bytes       uint64 // of the leaf records below
	hash        Hash   // valid once the version is published
	epoch       uint32 // number of Apply that made the node
	height      uint8
	moved       bool // inner: key or height are not those the node had in the version before
}

func (n *node) isInner() bool { return n.left != nil }

func (n *node) stat() Stat { return Stat{Height: n.height, Bytes: n.bytes} }

func (n *node) stub() Stub { return Stub{Stat: n.stat(), Hash: n.hash} }

// first returns the leftmost node below n without children.
func (n *node) first() *node {
	for n.isInner() {
		n = n.left
	}
	return n
}

// last returns the rightmost node below n without children.
func (n *node) last() *node {
	for n.isInner() {
		n = n.right
	}
	return n
}

// isSmall says whether n belongs to a chunk, not to the upper tree (design, section 2): bytes ≤ B, or a leaf.
func (n *node) isSmall(chunkBytes uint64) bool { return n.bytes <= chunkBytes || n.height == 0 }

// leaves calls yield for the leaves below n in key order until it returns false. h is the height of the inner node whose key is
// the least key below n: the right child of an inner node begins with the leaf whose key that node bears.
func (n *node) leaves(h uint8, yield func(Leaf) bool) bool {
	if !n.isInner() {
		return yield(Leaf{Key: n.key, Value: n.value, Height: h})
	}
	return n.left.leaves(h, yield) && n.right.leaves(n.height, yield)
}
