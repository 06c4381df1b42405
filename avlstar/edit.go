package avlstar

import "bytes"

// edit is the making of one version. Its nodes are those of its epoch: it changes them in place and copies all others. While it
// lasts, the heights in the images are right, bytes and hashes only where they are not marked dirty; resolver computes them at the end.
//
// Insertion, deletion and rotations are those of the AVL* paper (Fynn et al. 2022, algorithms 1–4) without their bookkeeping
// of chunks; where they leave a choice, it is made as cosmos/iavl v1.3.6 makes it (mutable_tree.go: recursiveSet, recursiveRemove,
// balance).
//
// The changes are made one after another in key order, but not each from the root: one that leaves height and least key of a subtree
// as they were changes nothing above it that the next change could see. So the walk goes on from the lowest node below
// which the next key lies, and comes up only where it must.
//
//	changes   b   c          x           the walk goes root → n → b, n → c, and only then up and down to x
//	              root
//	            n      …
//	          b   c      … x
type edit struct {
	*allocator
	tree       *tree
	before     *Version
	stubs      bool // there may be stubs, so also stand-ins (graft.go)
	epoch      uint32
	chunkBytes uint64
	upper      int64 // inner nodes above the chunks that died: less than 0
	leaves     int64 // how many more there are
	canFail    bool  // then made is kept

	changes []Change
	ops     []op
	next    int // the first of ops that is not made
	warm    int // the first of ops whose path was not yet fetched into the cache
	start   ref // the root before
	low     ref // record of the least key below top, where that is no left edge

	// top is above the root, which is its left child.
	top struct {
		link  link
		image image
	}

	dead []dead // nodes of older versions that the new one has not
	gone []ref  // nodes of epoch that it has not, to be freed
	made []ref  // nodes of epoch, where the edit can fail
	keys []ref  // inner nodes whose key was new when they were put here

	// What goes up with an outcome that says so.
	lifted struct {
		Stub
		dirty bool
	}
	least struct {
		hash  Hash
		dirty bool
	}
	err error // *MissingNodeError, *PageError
	// first is where findFirst found something last: a key before it in the version before, and the record in its page. The left edge
	// of the tree only moves to the right.
	first struct {
		key    []byte
		record int
	}
	// latest is the page that was brought back last, where the walk needed one that it was not ready for.
	latest struct {
		hash Hash
		run  *run
	}
}

// outcome says what became of a subtree.
type outcome struct {
	n ref
	// least is the leaf that the inner node above which bears the least key of the subtree is to refer to; 0: as before. Where
	// it is renamed, that is another key, its hash in edit.least.
	least ref
	bits  uint32
}

const (
	heightBits = 0xff
	changed    = 1 << 8  // n is another node, or was changed
	gone       = 1 << 9  // nothing is left: it was a leaf
	lifted     = 1 << 10 // n took the place of its parent: its bytes and hash are in edit.lifted
	renamed    = 1 << 11
)

func (o outcome) height() uint8      { return uint8(o.bits & heightBits) }
func (o outcome) is(bit uint32) bool { return o.bits&bit != 0 }

// run makes all changes below e.top and says whether there was one. It tells noted of every outcome that concerns what is above, and goes
// on as long as that likes it.
func (e *edit) run(noted func(outcome) (goOn bool)) (any bool) {
	top, i := &e.top.link, &e.top.image
	e.start = top.child[left]
	for e.next < len(e.ops) && e.err == nil {
		if top.child[left] == 0 && i.stub(left) == emptyStub {
			c := e.change(&e.ops[e.next])
			e.next++
			if c.Value != nil {
				top.child[left] = e.newLeaf(c)
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
			e.unless(r.least, 0) // nobody bears the least key of all
		} else if !noted(r) {
			break
		}
	}
	return any
}

// visit makes the changes of the child of a node on one side, as far as their keys are below that of inner node bound (0: there is no
// bound). It returns where they are made, and before that when something changed that concerns the nodes above. The least key below
// is that of inner node low (0: see edit.low).
func (e *edit) visit(up *link, upImage *image, side int, low, bound ref) outcome {
	n := up.child[side]
	height := upImage.height(side)
	out := outcome{n: n, bits: uint32(height)}
	if n == 0 {
		if n, out.least = e.graft(upImage, side, low, bound); n == 0 {
			return out
		}
		out.n, out.bits = n, out.bits|changed
	}
	if n.isLeaf() {
		return e.came(out, e.visitLeaf(n, upImage, side))
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

// came returns what became of a subtree, of which out says whether it was grafted.
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

// below says whether the next key is below that of inner node n.
func (e *edit) below(n ref) bool { return e.less(e.ops[e.next], n, e.link(n)) }

// less says whether the key of an op is below that of inner node n, l being its link.
func (e *edit) less(o op, n ref, l *link) bool {
	if o.prefix != l.prefix {
		return o.prefix < l.prefix
	}
	return string(e.change(&o).Key) < string(e.keyOf(n))
}

// visitLeaf makes the next change, whose key leads to leaf n.
func (e *edit) visitLeaf(n ref, upImage *image, side int) outcome {
	c := e.change(&e.ops[e.next])
	e.next++
	key, value := e.leaf(n)
	order := bytes.Compare(c.Key, key)
	switch {
	case order == 0 && c.Value == nil:
		e.leaves--
		e.kill(n, e.recordEpoch(n))
		return outcome{bits: changed | gone}
	case c.Value == nil || order == 0 && bytes.Equal(c.Value, value):
		return outcome{n: n}
	case order == 0:
		e.leaves--
		leaf := e.newLeaf(c)
		e.kill(n, e.recordEpoch(n))
		return outcome{n: leaf, bits: changed, least: leaf}
	}
	leaf := e.newLeaf(c)
	inner := e.newInner()
	l, i := e.link(inner), e.image(inner)
	i[0] = 0x01
	i.setFlag(moved)
	out := outcome{n: inner, bits: 1 | changed}
	newSide, keyLeaf := right, leaf
	if order < 0 {
		newSide, keyLeaf, out.least = left, n, leaf
		// No key above is renamed: a key below the least of a subtree leads there only on the left edge of the tree.
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

// copySlot makes n, of which another image tells in its slot from, the child of a node on one side.
func copySlot(l *link, i *image, side int, n ref, other *image, from int) {
	l.child[side] = n
	i.setStub(side, other.stub(from))
	i[imageFlags] = i[imageFlags]&^dirty(side) | other[imageFlags]>>from&1<<side
}

// put makes what became of a child the child.
func (e *edit) put(l *link, i *image, side int, r outcome) {
	l.child[side] = r.n
	if !r.is(lifted) {
		i.setHeight(side, r.height())
		i.setFlag(dirty(side))
		return
	}
	i.setStub(side, e.lifted.Stub)
	i[imageFlags] &^= dirty(side)
	if e.lifted.dirty {
		i.setFlag(dirty(side))
	}
}

// lift removes inner node n, whose other child is gone, and lets the child on one side take its place.
func (e *edit) lift(n ref, side int) outcome {
	i := e.image(n)
	out := outcome{n: e.link(n).child[side], bits: uint32(i.height(side)) | changed | lifted}
	e.lifted.Stub, e.lifted.dirty = i.stub(side), i.isDirty(side)
	if side == right { // the least key was on the left; now it is the one that n had
		out.least, out.bits = i.leaf(), out.bits|renamed
		e.least.hash, e.least.dirty = *i.keyHash(), i[imageFlags]&dirtyKey != 0
	} else {
		e.unless(i.leaf(), 0)
	}
	e.kill(n, i.epoch())
	return out
}

// setKey makes the least leaf of the right subtree the one whose key n bears.
func (e *edit) setKey(n ref, l *link, i *image, r outcome) {
	e.unless(i.leaf(), r.least)
	i.setLeaf(r.least)
	if !r.is(renamed) {
		return
	}
	l.prefix = prefixOf(e.key(r.least))
	*i.keyHash() = e.least.hash
	i[imageFlags] = i[imageFlags]&^dirtyKey | moved
	if e.least.dirty {
		e.keyUnknown(n, i)
	}
}

func (e *edit) keyUnknown(n ref, i *image) {
	i.setFlag(dirtyKey)
	e.keys = append(e.keys, n)
}

// balance rotates where the heights of n's children differ by 2, n being of epoch: doubly only if the inner grandchild is strictly
// higher. It returns the root of the subtree and its height, before being what that was. low is that of visit.
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

// setHigh sets the height of a child that was rotated.
func (i *image) setHigh(side int, h uint8) {
	i.setHeight(side, h)
	i.setFlag(dirty(side))
}

// rotate lifts c, the child of n on one side, over n; both are of epoch. before is the height of n before the change that is made.
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

// own returns inner node n as one that e may change: itself or a copy that takes its place.
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

// ownChild owns the inner child of n on one side, n being of epoch. The least key below n is that of inner node low.
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

// kill takes a node of the given epoch out of the version that is made.
func (e *edit) kill(n ref, epoch uint32) {
	switch {
	case epoch < e.epoch:
		if n.isInner() && !e.image(n).isSmall(e.chunkBytes) {
			e.upper--
		}
		e.dead = append(e.dead, dead{n, epoch})
	case n.isInner():
		e.image(n).setEpoch(freed) // it may still be on the list of keys
		e.gone = append(e.gone, n)
	default: // it was grafted: a leaf that is put stays, its key is changed once
		e.setRecordEpoch(n, freed)
		e.gone = append(e.gone, n)
	}
}

// missing says that the child of a node on one side is needed for a change, and only a stub of it is here.
func (e *edit) missing(i *image, side, change int) {
	if e.err != nil {
		return
	}
	e.err = &MissingNodeError{Node: i.stub(side), Key: bytes.Clone(e.change(&e.ops[change]).Key)}
}

// undo frees what was made. The allocator must be closed.
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

// clean frees what was made and given up again. The allocator must be closed.
func (e *edit) clean(m *memory) {
	for _, n := range e.gone {
		if n.isLeaf() {
			m.freeRecord(n)
		} else {
			m.freeNode(n)
		}
	}
}

// change returns the change of an op.
func (e *edit) change(o *op) *Change { return &e.changes[o.i] }
