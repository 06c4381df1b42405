package avlstar

import "bytes"

// edit makes one version. The new version's own nodes are those of its epoch: edit changes these in
// place, and copies all others before changing them. While it runs, the heights in the images are
// correct. Bytes and hashes are correct only where they are not marked dirty; resolver computes the
// others at the end.
//
// Insertion, deletion and rotations are those of the AVL* paper (Fynn et al. 2022, algorithms 1–4),
// without the paper's tracking of chunks. Where the paper leaves a choice, edit chooses as
// cosmos/iavl v1.3.6 does (mutable_tree.go: recursiveSet, recursiveRemove, balance).
//
// The changes are made one after another in key order, but not each from the root. A change that
// leaves the height and the least key of a subtree unchanged changes nothing above it that the next
// change could depend on. So the walk continues from the lowest node that has the next key below
// it, and goes up only where it must.
//
//	changes   b   c          x           the walk goes root → n → b, n → c, and only then up and down to x
//	              root
//	            n      …
//	          b   c      … x
type edit struct {
	*allocator
	tree       *tree
	before     *Version
	stubs      bool // the tree may contain stubs, and hence stand-ins (graft.go)
	epoch      uint32
	chunkBytes uint64
	upper      int64 // change of the number of inner nodes above the chunks, so far
	leaves     int64 // change of the number of leaves
	canFail    bool  // whether the edit can fail; then made is kept, for undo

	changes []Change
	ops     []op
	next    int // the first of ops that is not made yet
	warm    int // the first of ops whose path was not prefetched
	start   ref // the previous root
	low     ref // record of the least key below top; 0 if top begins at the tree's left edge

	// top is above the root, which is its left child.
	top struct {
		link  link
		image image
	}

	dead      []dead // nodes of older versions that are not in the new one
	discarded []ref  // nodes of epoch that are not in the new version, to be freed
	made      []ref  // nodes of epoch, if the edit can fail
	keys      []ref  // inner nodes whose key had changed when they were added here
	index     *index // nil if there is none
	indexed   []indexOp

	// slot and least are details of the outcome that is being passed up. slot holds the stub of a
	// lifted node, from its former parent; least holds the hash of a renamed least key.
	slot struct {
		Stub
		dirty bool
	}
	least struct {
		hash  Hash
		dirty bool
	}
	err error // *MissingNodeError, *PageError
	// first is where findFirst last found something: a key before it in the previous version, and
	// the record in its page. The left edge of the tree only moves to the right.
	first struct {
		key    []byte
		record int
	}
	latest latestPage
}

// outcome is the result of a visit of a subtree.
type outcome struct {
	n ref
	// least is the leaf that now has the subtree's least key, to which an inner node above refers;
	// 0 if it did not change. If the bit renamed is set, the key itself changed, and its hash is in
	// edit.least.
	least ref
	bits  uint32
}

const (
	heightBits = 0xff
	changed    = 1 << 8  // n is another node, or was changed
	gone       = 1 << 9  // the subtree was a leaf, which was deleted
	lifted     = 1 << 10 // n replaced its parent: its bytes and hash are in edit.slot
	renamed    = 1 << 11
)

func (o outcome) height() uint8      { return uint8(o.bits & heightBits) }
func (o outcome) is(bit uint32) bool { return o.bits&bit != 0 }

// run makes all changes below e.top and reports whether anything changed. It passes every outcome
// that concerns nodes above e.top to noted, and stops when noted returns false.
func (e *edit) run(noted func(outcome) (goOn bool)) (any bool) {
	top, i := &e.top.link, &e.top.image
	e.start = top.child[left]
	for e.next < len(e.ops) && e.err == nil {
		if top.child[left] == 0 && i.stub(left) == emptyStub {
			c := e.change(&e.ops[e.next])
			e.next++
			if c.Value != nil {
				top.child[left] = e.newLeaf(c)
				e.reindex(c.Key, 0, top.child[left])
				i.setHeight(left, 0)
				i.setFlag(dirtyLeft)
				any = true
			}
			continue
		}
		r := e.visit(top, i, left, 0, 0)
		if !r.is(changed) {
			continue
		}
		any = true
		e.put(top, i, left, r)
		if r.is(gone) {
			i.clearFlags()
			i.setStub(left, emptyStub)
		}
		if noted == nil {
			e.unless(r.least, 0) // no node refers to the least key of all
		} else if !noted(r) {
			break
		}
	}
	return any
}

// visit makes the changes in the child of a node, on the given side, whose keys are below the key
// of inner node bound (0: no bound). It returns when they are made, or earlier when a change
// concerns the nodes above. The least key of the child is that of inner node low (0: see edit.low).
func (e *edit) visit(up *link, upImage *image, side int, low, bound ref) outcome {
	n := up.child[side]
	height := upImage.height(side)
	out := outcome{n: n, bits: uint32(height)}
	if n == 0 {
		if key := e.keyOfStub(height, low); key != nil {
			return e.visitLeaf(0, key, upImage, side)
		}
		if n, out.least = e.graft(upImage, side, low, bound); n == 0 {
			return out
		}
		out.n, out.bits = n, out.bits|changed
	}
	if n.isLeaf() {
		return e.came(out, e.visitLeaf(n, e.key(n), upImage, side))
	}
	for {
		if e.next >= e.warm {
			e.fetch()
		}
		l, i := e.link(n), e.image(n)
		side, childLow, childBound := right, n, bound
		if e.less(e.ops[e.next], n, l) {
			side, childLow, childBound = left, low, n
		}
		r := e.visit(l, i, side, childLow, childBound)
		if e.err != nil {
			return out
		}
		if r.is(gone) {
			return e.came(out, e.lift(n, 1-side))
		}
		if r.is(changed) {
			n = e.own(n)
			l, i = e.link(n), e.image(n)
			e.put(l, i, side, r)
			if r.least != 0 {
				if side == left {
					out.least, out.bits = r.least, out.bits|r.bits&renamed
				} else {
					e.setKey(n, l, i, r)
				}
			}
			var h uint8
			n, h = e.balance(n, height, low)
			out.n, out.bits = n, out.bits&^heightBits|uint32(h)|changed
			if h != height || out.least != 0 || e.err != nil {
				return out
			}
		}
		if e.next == len(e.ops) || bound != 0 && !e.below(bound) {
			return out
		}
	}
}

// came completes r, the outcome of a subtree's root, with out, which has the changed bit if the
// subtree was grafted.
func (e *edit) came(out, r outcome) outcome {
	switch {
	case !out.is(changed) || r.is(gone):
		return r
	case r.least == 0:
		r.least = out.least
	}
	r.bits |= changed
	return r
}

// below reports whether the next key is below that of inner node n.
func (e *edit) below(n ref) bool { return e.less(e.ops[e.next], n, e.link(n)) }

// less reports whether the key of an op is below that of inner node n, whose link is l.
func (e *edit) less(o op, n ref, l *link) bool {
	if o.prefix != l.prefix {
		return o.prefix < l.prefix
	}
	return string(e.change(&o).Key) < string(e.keyOf(n))
}

// keyOfStub returns the key of a leaf that is only a stub and cannot be read, from the inner node
// that has the key; nil if the stub is not a leaf, or if it is the tree's least leaf, whose key no
// inner node has. height is that of the stub; for low see visit.
func (e *edit) keyOfStub(height uint8, low ref) []byte {
	switch {
	case height > 0 || e.tree.paging != nil:
		return nil
	case low != 0:
		return e.keyOf(low)
	case e.low != 0:
		return e.key(e.low)
	}
	return nil
}

// holds reports whether the value of leaf n is value. If n is 0, the stub of the leaf proves it.
func (e *edit) holds(n ref, c *Change, s Stub) bool {
	if n == 0 {
		return s.isLeafOf(c.Key, c.Value)
	}
	_, value := e.leaf(n)
	return bytes.Equal(c.Value, value)
}

// visitLeaf makes the next change, whose key leads to a leaf with this key. If n is 0, the leaf is
// only a stub, on one side of a node.
func (e *edit) visitLeaf(n ref, key []byte, upImage *image, side int) outcome {
	c := e.change(&e.ops[e.next])
	e.next++
	order := bytes.Compare(c.Key, key)
	switch {
	case order == 0 && c.Value == nil:
		e.leaves--
		e.dropLeaf(n, c.Key, 0)
		return outcome{bits: changed | gone}
	case c.Value == nil || order == 0 && e.holds(n, c, upImage.stub(side)):
		return outcome{n: n}
	case order == 0:
		e.leaves--
		leaf := e.newLeaf(c)
		e.dropLeaf(n, c.Key, leaf)
		return outcome{n: leaf, bits: changed, least: leaf}
	}
	leaf := e.newLeaf(c)
	e.reindex(c.Key, 0, leaf)
	inner := e.newInner()
	l, i := e.link(inner), e.image(inner)
	i[0] = 0x01
	i.setFlag(moved)
	out := outcome{n: inner, bits: 1 | changed}
	newSide, keyLeaf := right, leaf
	if order < 0 {
		newSide, keyLeaf, out.least = left, n, leaf
		// No key above is renamed: a key below the least key of a subtree leads there only on the
		// tree's left edge.
	}
	l.child[newSide] = leaf
	i.setHeight(newSide, 0)
	i.setFlag(dirty(newSide))
	copySlot(l, i, 1-newSide, n, upImage, side)
	i.setLeaf(keyLeaf)
	l.prefix = prefixOf(e.key(keyLeaf))
	e.keyUnknown(inner, i)
	return out
}

// dropLeaf removes leaf n (0: a stub), which has this key, and which leaf next replaces (0: none).
func (e *edit) dropLeaf(n ref, key []byte, next ref) {
	if n != 0 || next != 0 {
		e.reindex(key, n, next)
	}
	if n != 0 {
		e.kill(n, e.recordEpoch(n))
	}
}

// copySlot makes n the child of a node on one side, and copies the stub and the dirty bit of n from
// the slot from of image other.
func copySlot(l *link, i *image, side int, n ref, other *image, from int) {
	l.child[side] = n
	i.setStub(side, other.stub(from))
	i[imageFlags] = i[imageFlags]&^dirty(side) | other[imageFlags]>>from&1<<side
}

// put stores the outcome r of a child in its parent.
func (e *edit) put(l *link, i *image, side int, r outcome) {
	l.child[side] = r.n
	if !r.is(lifted) {
		i.setHeight(side, r.height())
		i.setFlag(dirty(side))
		return
	}
	i.setStub(side, e.slot.Stub)
	i[imageFlags] &^= dirty(side)
	if e.slot.dirty {
		i.setFlag(dirty(side))
	}
}

// lift replaces inner node n, after one child was deleted, by the other child, which is on the
// given side.
func (e *edit) lift(n ref, side int) outcome {
	i := e.image(n)
	out := outcome{n: e.link(n).child[side], bits: uint32(i.height(side)) | changed | lifted}
	e.slot.Stub, e.slot.dirty = i.stub(side), i.isDirty(side)
	if side == right { // the least key was on the left; now it is the key of n
		out.least, out.bits = i.leaf(), out.bits|renamed
		e.least.hash, e.least.dirty = *i.keyHash(), i[imageFlags]&dirtyKey != 0
	} else {
		e.unless(i.leaf(), 0)
	}
	e.kill(n, i.epoch())
	return out
}

// setKey updates the key of n, which is the least key of its right subtree.
func (e *edit) setKey(n ref, l *link, i *image, r outcome) {
	e.unless(i.leaf(), r.least)
	i.setLeaf(r.least)
	i.setFlag(moved) // the leaf's record on disk contains the height, so it must be written too
	if !r.is(renamed) {
		return
	}
	l.prefix = prefixOf(e.key(r.least))
	*i.keyHash() = e.least.hash
	i[imageFlags] &^= dirtyKey
	if e.least.dirty {
		e.keyUnknown(n, i)
	}
}

func (e *edit) keyUnknown(n ref, i *image) {
	i.setFlag(dirtyKey)
	e.keys = append(e.keys, n)
}

// balance rotates if the heights of n's children differ by 2. It rotates twice only if the inner
// grandchild is strictly higher. n is of epoch. It returns the root of the subtree and its height;
// before is the previous height. For low see visit.
func (e *edit) balance(n ref, before uint8, low ref) (ref, uint8) {
	i := e.image(n)
	high := left
	switch diff := int(i.height(left)) - int(i.height(right)); {
	case diff < -1:
		high = right
	case diff <= 1:
		h := i.ownHeight()
		if h != before {
			i.setFlag(moved)
		}
		return n, h
	}
	c := e.ownChild(n, high, low)
	if e.err != nil {
		return n, before
	}
	if ci := e.image(c); ci.height(high) < ci.height(1-high) {
		if high == right {
			low = n
		}
		g := e.ownChild(c, 1-high, low)
		if e.err != nil {
			return n, before
		}
		height := i.height(high)
		c = e.rotate(c, g, 1-high, height)
		e.link(n).child[high] = c
		i.setHigh(high, e.image(c).ownHeight())
	}
	c = e.rotate(n, c, high, before)
	return c, e.image(c).ownHeight()
}

// setHigh sets the height of a rotated child.
func (i *image) setHigh(side int, h uint8) {
	i.setHeight(side, h)
	i.setFlag(dirty(side))
}

// rotate lifts c, the child of n on one side, above n; both are of epoch. before is the height of n
// before the change.
func (e *edit) rotate(n, c ref, side int, before uint8) ref {
	nl, ni, cl, ci := e.link(n), e.image(n), e.link(c), e.image(c)
	heightOfC := ci.ownHeight()
	copySlot(nl, ni, side, cl.child[1-side], ci, 1-side)
	height := ni.ownHeight()
	if height != before {
		ni.setFlag(moved)
	}
	cl.child[1-side] = n
	ci.setHigh(1-side, height)
	if ci.ownHeight() != heightOfC {
		ci.setFlag(moved)
	}
	return c
}

// own returns a node that e may change in place of inner node n: n itself, or a copy.
func (e *edit) own(n ref) ref {
	old := e.image(n)
	if old.epoch() == e.epoch {
		return n
	}
	c := e.newInner()
	*e.link(c) = *e.link(n)
	i := e.image(c)
	*i = *old
	i.clearFlags()
	i.setEpoch(e.epoch)
	e.kill(n, old.epoch())
	return c
}

// ownChild replaces the inner child of n on one side by one that e may change (own); n is of epoch.
// The least key below n is that of inner node low.
func (e *edit) ownChild(n ref, side int, low ref) ref {
	c := e.link(n).child[side]
	if c == 0 {
		if side == right {
			low = n
		}
		return e.graftRoot(n, side, low)
	}
	c = e.own(c)
	e.link(n).child[side] = c
	return c
}

func (e *edit) newInner() ref {
	n := e.newNode()
	i := e.image(n)
	i.clearFlags()
	i.setEpoch(e.epoch)
	if e.canFail {
		e.made = append(e.made, n)
	}
	return n
}

func (e *edit) newLeaf(c *Change) ref {
	e.leaves++
	return e.newRecord(c.Key, c.Value)
}

// reindex records that leaf now replaces leaf old; 0 stands for no leaf.
func (e *edit) reindex(key []byte, old, now ref) {
	if e.index != nil {
		e.indexed = append(e.indexed, indexOp{e.index.tag(key), old, now})
	}
}

// kill removes a node, which was made in epoch, from the new version.
func (e *edit) kill(n ref, epoch uint32) {
	switch {
	case epoch < e.epoch:
		if n.isInner() && !e.image(n).isSmall(e.chunkBytes) {
			e.upper--
		}
		e.dead = append(e.dead, dead{n, epoch})
	case n.isInner():
		e.image(n).setEpoch(freed) // the node may still be in keys
		e.discarded = append(e.discarded, n)
	default: // a grafted leaf; a leaf that was put stays, because its key changes only once
		e.setRecordEpoch(n, freed)
		e.discarded = append(e.discarded, n)
	}
}

// missing records the error that a change needs the child of a node on one side, which is only a
// stub. The keys of the stub begin with that of inner node low (0: see edit.low).
func (e *edit) missing(i *image, side int, low ref, change int, sibling bool) {
	if e.err != nil {
		return
	}
	missing := &MissingNodeError{Node: i.stub(side), Key: bytes.Clone(e.change(&e.ops[change]).Key), Sibling: sibling}
	if low != 0 {
		missing.First = bytes.Clone(e.keyOf(low))
	} else if e.low != 0 {
		missing.First = bytes.Clone(e.key(e.low))
	}
	e.err = missing
}

// undo frees all nodes that the edit made. The allocator must be closed.
func (e *edit) undo(m *memory) {
	for _, n := range e.made {
		switch {
		case n.isLeaf():
			if m.recordEpoch(n) == e.epoch {
				m.freeRecord(n)
			}
		case m.image(n).epoch() == e.epoch:
			m.freeNode(n)
		}
	}
	e.clean(m)
}

// clean frees nodes that the edit made and discarded. The allocator must be closed.
func (e *edit) clean(m *memory) {
	for _, n := range e.discarded {
		if n.isLeaf() {
			m.freeRecord(n)
		} else {
			m.freeNode(n)
		}
	}
}

// change returns the change of an op.
func (e *edit) change(o *op) *Change { return &e.changes[o.i] }
