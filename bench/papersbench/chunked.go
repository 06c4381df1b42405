package papersbench

// chunked is the tree of the AVL* paper with its own chunks: Algorithms 1 to 4 and §3.5 to §3.7,
// without values. A full chunk is split, also before some rotations, and only an empty chunk is
// removed: chunks never merge. It counts the work of hashing and copying a block.
type chunked struct {
	limit  int // C_p, in leaves; at least 2
	root   *node
	chunks []*chunk // by chunk id
	leaves int

	block    uint32   // the current block
	renamed  []*chunk // chunks with a new id, whose paths are not marked yet
	copied   int      // leaves in chunks that the current block copied (§3.8)
	splits   int
	rotation int // part of splits: before a rotation (§3.7)
}

// node is a leaf (without children) or an inner node, whose key is the least key on its right.
type node struct {
	key         string
	left, right *node
	chunk       *chunk // of which the node is the root; nil: of none
	height      int
	// The last block that changed the node's hash: in the paper, where the hash of a chunk's root
	// covers the chunk's id, and in a tree without chunk ids.
	hashed, plain uint32
}

type chunk struct {
	id, size int
	root     *node
	copied   uint32 // the last block that copied the chunk
}

func newChunked(limit int) *chunked { return &chunked{limit: limit, block: 1} }

// work is the work of one block.
type work struct {
	hashed int // nodes, with chunk ids in the hashes
	plain  int // nodes, without chunk ids
	copied int // leaves
}

// endBlock returns the work of the current block, and begins the next one.
func (t *chunked) endBlock() work {
	w := work{copied: t.copied}
	t.count(t.root, &w)
	t.block++
	t.copied = 0
	return w
}

func (t *chunked) count(n *node, w *work) {
	if n == nil || n.hashed != t.block {
		return
	}
	w.hashed++
	if n.plain == t.block {
		w.plain++
	}
	t.count(n.left, w)
	t.count(n.right, w)
}

// insert adds a key that is absent.
func (t *chunked) insert(key string) { t.root = t.add(t.root, key, nil) }

// update changes the value of a key that is present.
func (t *chunked) update(key string) {
	for n := t.root; n != nil; {
		t.mark(n)
		if n.chunk != nil {
			t.copy(n.chunk)
		}
		if key < n.key {
			n = n.left
		} else {
			n = n.right
		}
	}
}

// remove deletes a key that is present.
func (t *chunked) remove(key string) {
	t.root, _ = t.cut(t.root, key, nil)
	for _, c := range t.renamed {
		t.markPath(c)
	}
	t.renamed = t.renamed[:0]
}

// add is INSERT_AUX of Algorithm 1. c is the chunk that contains n.
func (t *chunked) add(n *node, key string, c *chunk) *node {
	if n == nil {
		c = t.newChunk(len(t.chunks))
		return t.leafOf(c, key, c)
	}
	if n.chunk != nil {
		if c = n.chunk; c.size == t.limit {
			t.split(n)
		}
	}
	t.mark(n)
	if n.left == nil {
		inner := &node{chunk: n.chunk, height: 1}
		n.chunk = nil
		added := t.leafOf(c, key, nil)
		if key < n.key {
			inner.key, inner.left, inner.right = n.key, added, n
		} else {
			inner.key, inner.left, inner.right = key, n, added
		}
		if inner.chunk != nil {
			inner.chunk.root = inner
		}
		t.mark(inner)
		return inner
	}
	if key < n.key {
		n.left = t.add(n.left, key, c)
	} else {
		n.right = t.add(n.right, key, c)
	}
	return t.balance(n)
}

// leafOf adds a leaf to chunk c (INSERT_IN_CHUNK of Algorithm 2). The leaf is the root of chunk
// root, or of none.
func (t *chunked) leafOf(c *chunk, key string, root *chunk) *node {
	leaf := &node{key: key, chunk: root}
	if root != nil {
		root.root = leaf
	}
	c.size++
	t.leaves++
	t.copy(c)
	t.mark(leaf)
	return leaf
}

// cut is Algorithm 3 (§3.6) without its fixed cases. It returns the subtree that takes the place
// of n, which is nil if n was the leaf. least is the new least key of the subtree, if that was
// removed, for the inner node that has the removed key.
func (t *chunked) cut(n *node, key string, c *chunk) (_ *node, least string) {
	if n.chunk != nil {
		c = n.chunk
	}
	if n.left == nil {
		t.leaves--
		if c.size--; c.size == 0 {
			t.drop(c)
		} else {
			t.copy(c)
		}
		return nil, ""
	}
	if key < n.key {
		left, newLeast := t.cut(n.left, key, c)
		if left == nil {
			return t.replace(n, n.right), n.key
		}
		n.left, least = left, newLeast
	} else {
		right, newLeast := t.cut(n.right, key, c)
		if right == nil {
			return t.replace(n, n.left), ""
		}
		if newLeast != "" {
			n.key = newLeast
		}
		n.right = right
	}
	t.mark(n)
	return t.balance(n), least
}

// replace lets a child take the place of n, also as the root of a chunk.
func (t *chunked) replace(n, child *node) *node {
	if n.chunk != nil {
		t.setRoot(n.chunk, child)
	}
	return child
}

// drop removes an empty chunk. The chunk with the highest id gets its id.
func (t *chunked) drop(c *chunk) {
	last := t.chunks[len(t.chunks)-1]
	t.chunks = t.chunks[:len(t.chunks)-1]
	if last != c {
		last.id = c.id
		t.chunks[c.id] = last
		t.renamed = append(t.renamed, last)
	}
}

// markPath marks the nodes from the root of the tree to the root of a chunk, whose id has changed.
func (t *chunked) markPath(c *chunk) {
	for n := t.root; ; {
		n.hashed = t.block
		switch {
		case n == c.root:
			return
		case c.root.key < n.key:
			n = n.left
		default:
			n = n.right
		}
	}
}

func (t *chunked) newChunk(id int) *chunk {
	c := &chunk{id: id}
	if id == len(t.chunks) {
		t.chunks = append(t.chunks, c)
	}
	t.chunks[id] = c
	return c
}

// split is SPLIT_CHUNK of Algorithm 2: both children of n become roots of new chunks.
func (t *chunked) split(n *node) {
	t.splits++
	for _, half := range []struct {
		id   int
		root *node
	}{{n.chunk.id, n.left}, {len(t.chunks), n.right}} {
		c := t.newChunk(half.id)
		c.size = size(half.root)
		t.copy(c)
		t.setRoot(c, half.root)
	}
	n.chunk = nil
	n.hashed = t.block
}

func size(n *node) int {
	if n.left == nil {
		return 1
	}
	return size(n.left) + size(n.right)
}

func (t *chunked) setRoot(c *chunk, n *node) {
	c.root, n.chunk = n, c
	n.hashed = t.block
}

// copy counts the leaves of a chunk, once for each block that changes it.
func (t *chunked) copy(c *chunk) {
	if c.copied != t.block {
		c.copied = t.block
		t.copied += c.size
	}
}

func (t *chunked) mark(n *node) { n.hashed, n.plain = t.block, t.block }

// balance is BALANCE of Algorithm 1 with ROTATE_RL and ROTATE_LR of Algorithm 4.
func (t *chunked) balance(n *node) *node {
	n.update()
	switch h := n.left.height - n.right.height; {
	case h < -1:
		if n.right.left.height > n.right.right.height {
			n.right = t.rotate(n.right, false)
		}
		return t.rotate(n, true)
	case h > 1:
		if n.left.left.height < n.left.right.height {
			n.left = t.rotate(n.left, true)
		}
		return t.rotate(n, false)
	}
	return n
}

func (n *node) update() { n.height = max(n.left.height, n.right.height) + 1 }

// rotate is ROTATE_L or ROTATE_R of Algorithm 4. It returns the new root of the subtree.
func (t *chunked) rotate(n *node, left bool) *node {
	pivot := n.left
	if left {
		pivot = n.right
	}
	switch {
	case n.chunk != nil:
		t.setRoot(n.chunk, pivot)
		n.chunk = nil
	case pivot.chunk != nil:
		t.split(pivot)
		t.rotation++
	}
	if left {
		n.right, pivot.left = pivot.left, n
	} else {
		n.left, pivot.right = pivot.right, n
	}
	n.update()
	pivot.update()
	t.mark(n)
	t.mark(pivot)
	return pivot
}
