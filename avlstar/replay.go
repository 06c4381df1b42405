package avlstar

import (
	"bytes"
	"fmt"
	"math"
	"runtime"
	"slices"
)

// Replay returns the version after an update; p, which must be full inside r, does not change. The
// result is full inside r too, and has the root u.To.Root; what is outside it takes from u.Seam
// alone, so p need not know what happened there. Keys and values are copied.
//
// Errors: ErrOtherState if u does not lead there, whatever is wrong with it; *MissingNodeError if p
// is not full inside r; ErrNotLatest and ErrTooLarge as for Apply. Then p is as it was. An update
// that changes nothing makes no version: the result is p with one more reference. Changes in u that
// change nothing are taken as such. The result has no index by hash (Version.EnableIndex).
//
// # How
//
// A tree is determined by its leaves and the heights of the inner nodes between them, one for each
// leaf but the first (docs/spec/chunks.md#shape): it is the Cartesian tree over these heights. So
// the new tree is made of the leaves and heights that the update changes, and of all the others,
// which the version before has. A subtree of that version is one of the new tree, as it is, if
//
//   - all its keys are in r, and no leaf in the range of its keys is put or deleted,
//   - no inner node of it has another height, so the heights between its leaves are as they were,
//   - the inner nodes between it and its neighbours are higher in the new tree (above a subtree
//     that is the first or the last of the tree, there is nothing to compare with).
//
// The last is what makes a node the root of just these leaves: in a Cartesian tree, leaves between
// two boundaries that are higher than all boundaries between them form a subtree. The walk takes
// the version before apart until it has the greatest such subtrees, and builder joins them with new
// leaves and the outside of the seam. What it took apart dies, as in Apply. It takes apart the ways
// to what the update names, and beside them a subtree next to a boundary that became as low as its
// root: so the cost is that of Apply, the number of keys named times the height.
//
//	before       (c 3)             f put, with height 1         after        (c 3)
//	        ┌──────┴──────┐        d has height 1, e 2                ┌──────┴──────┐
//	      (b 1)         (d 2)                                       (b 1)         (e 2)
//	     ┌──┴──┐      ┌───┴───┐    reused: the subtree b,          ┌──┴──┐      ┌───┴───┐
//	     a     b      c     (e 1)  the leaves c, d, e              a     b    (d 1)   (f 1)
//	                       ┌──┴──┐                                          ┌──┴──┐ ┌──┴──┐
//	                       d     e                                          c     d e     f
//
// A rotation across an edge of r needs nothing else: on one side of the edge it is in the seam, and
// on the other the replica has all of the tree.
func (p *Partial) Replay(r KeyRange, u Update) (*Partial, error) {
	v, err := p.v.replay(r, &u)
	if err != nil {
		return nil, fmt.Errorf("avlstar: replay: %w", err)
	}
	return &Partial{v}, nil
}

func (v *Version) replay(r KeyRange, u *Update) (*Version, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	if err := u.check(r); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrOtherState, err)
	}
	rp, err := newReplaying(r, u)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrOtherState, err)
	}
	t := v.tree
	g := t.gate.begin()
	defer g.end()
	t.mu.Lock()
	defer t.mu.Unlock()
	v.inUse()
	defer runtime.KeepAlive(v)
	if err := t.rewind(v); err != nil {
		return nil, err
	}
	switch {
	case u.To.ChunkBytes != v.chunkBytes:
		return nil, fmt.Errorf("%w: chunks of at most %d bytes, not %d", ErrOtherState, u.To.ChunkBytes, v.chunkBytes)
	case len(u.Changes)+len(u.Moved) == 0 && u.To == v.Commitment():
		v.Retain()
		return v, nil
	}
	if rp.touched, err = u.touched(v, r); err != nil {
		return nil, err
	}
	rp.sortTouched()
	var done Reclaimed
	t.reclaim(max(t.early(len(rp.touched)), t.excess()), &done)
	nodes, held := t.mu.nodes+t.mu.leaves, t.held()
	next, err := t.replay(v, rp)
	made, died := int(t.mu.nodes+t.mu.leaves)-int(nodes), int(t.held())-int(held)
	t.mu.usual.nodes, t.mu.usual.changes = max(made, died, 0), len(rp.touched)
	t.reclaim(2*t.mu.usual.nodes+tune.minReclaim-done.Freed-done.PassedOn, &done)
	t.mu.reclaimed = done
	t.account()
	return next, err
}

// replay makes the version after v. The caller holds t.mu.
func (t *tree) replay(v *Version, r *replaying) (*Version, error) {
	full := r.r.equal(v.full)
	if t.roomOf(r.needs(t, v, full)) != nil {
		t.reclaim(math.MaxInt, new(Reclaimed)) // not yet freed is not needed
		if err := t.roomOf(r.needs(t, v, full)); err != nil {
			return nil, err
		}
	}
	if v.epoch+1 >= freed {
		return nil, fmt.Errorf("%w: %d versions", ErrTooLarge, v.epoch)
	}
	t.mu.epoch = max(t.mu.epoch, v.epoch) + 1
	next := &Version{chunkBytes: v.chunkBytes, epoch: t.mu.epoch, parent: v.epoch, from: v.epoch, partial: true, uncounted: true}
	if r.full = full; full {
		next.full = v.full
	}
	a := newAllocator(&t.mu.memory, false)
	r.edit = t.newEdit(v, next, nil, nil, &a)
	r.canFail, r.stubs, r.start, r.ops = true, true, v.root, r.order
	if err := r.assemble(v); err != nil {
		a.close()
		r.undo(&t.mu.memory)
		return nil, err
	}
	t.mu.work.hash(r.edit, next)
	if root := r.top.image.stub(left); root != r.to.Root {
		a.close()
		r.undo(&t.mu.memory)
		return nil, fmt.Errorf("%w: it leads to the root %s, not to %s", ErrOtherState, root.Hash, r.to.Root.Hash)
	}
	t.took(r.edit, next)
	if next.upper = 0; r.to.Chunks > 0 {
		next.upper = uint64(r.to.Chunks - 1)
	}
	return t.publish(next)
}

// replaying makes one version from an update. Like an edit, it makes new nodes, and kills those of
// the version before that the new one lacks.
type replaying struct {
	*edit
	r              KeyRange
	to             Commitment
	touched        []touch
	order          []op // prefixes of touched
	before, behind []seamItem
	// full: the version before has no stub, and so no stand-in, with a key in r. Then no record is
	// read to look for one.
	full bool
	// pages: stubs of the version before can be read, as pages of this version, which is that one.
	// nil: they are missing.
	pages *Version
	parts []stretch // of the new tree, in key order
	added []stretch // those that builder has: parts, some of them taken apart further
	build builder
}

// stretch is a part of the new tree: a subtree of the version before, a leaf, a stub of the seam.
type stretch struct {
	sub            // new: the hash is 0, and computed later
	boundary uint8 // height of the inner node that has its least key; nothing to the tree's first
	whole    bool  // it is of the version before, and can be taken apart

	// Of its least key, unless it is on the left edge of the tree:
	prefix  uint64
	bearer  ref    // its leaf; 0: not in memory, then key is set
	key     []byte // or nil
	keyHash *Hash  // nil: to be computed
}

// border is a boundary between two leaves of the version before: the inner node that has the key of
// the second one. n is 0 at an edge of the tree.
type border struct {
	n      ref
	height uint8
}

func newReplaying(r KeyRange, u *Update) (*replaying, error) {
	if (u.To.Chunks == 0) != (u.To.Root == emptyStub) {
		return nil, fmt.Errorf("a state of %d bytes in %d chunks", u.To.Root.Bytes, u.To.Chunks)
	}
	if err := checkSeam(u.Seam); err != nil {
		return nil, fmt.Errorf("seam: %w", err)
	}
	seam, err := DecodeBag(u.Seam)
	if err != nil {
		return nil, fmt.Errorf("seam: %w", err)
	}
	p := &replaying{r: r, to: u.To}
	p.before, p.behind, err = seam.outside(u.To, r)
	return p, err
}

// sortTouched makes the order of what is touched, which is in key order.
func (r *replaying) sortTouched() {
	r.order = make([]op, len(r.touched))
	for i := range r.touched {
		r.order[i] = op{prefixOf(r.touched[i].key), uint32(i)}
	}
}

// needs returns the maximum number of nodes and pages that the update can need. A false one can
// name as many keys as it has bytes, and must not end the replica: so each key that is named counts
// for what it takes, and not for the largest that a change could take.
//
// The version before is taken apart along one way for each key that is named, and for each edge of
// the range; and beside each, along two more where a boundary is not higher than the subtrees next
// to it. Each node that is taken apart leaves one part more, and the parts are joined again.
func (r *replaying) needs(t *tree, v *Version, full bool) (nodes, pages int) {
	named, puts := len(r.touched)+len(r.before)+len(r.behind)+2, 0
	var perClass [len(classBytes)]int
	add := func(key, value []byte) {
		puts++
		if n := recordHeader - 1 + int(RecordBytes(len(key), len(value))); n > int(classBytes[len(classBytes)-1]) {
			pages++
		} else {
			perClass[classOf[(n+unitBytes-1)/unitBytes]]++
		}
	}
	for i := range r.touched {
		if r.touched[i].value != nil {
			add(r.touched[i].key, r.touched[i].value)
		}
	}
	for _, items := range [][]seamItem{r.before, r.behind} {
		for i := range items {
			add(items[i].key, items[i].value) // a leaf, or a stand-in
		}
	}
	for class, n := range perClass {
		slots := pageBytes / int(classBytes[class])
		pages += (n + slots - 1) / slots
	}
	nodes = min(named*3*(int(v.top.Height)+2), int(t.mu.nodes)+1+puts)
	if !full { // stand-ins; most of these trees are small, otherwise the lists grow
		pages += nodes / 16
	}
	return nodes, pages
}

// assemble makes the tree without the hashes of what is new, below r.top. v is the version before.
func (r *replaying) assemble(v *Version) error {
	// About eight parts come of an entry that changes something; others make none, so that a long
	// list of these must not take memory here.
	r.parts = make([]stretch, 0, len(r.before)+len(r.behind)+8*min(len(r.touched), 1<<12)+2*int(v.top.Height)+1)
	r.seam(r.before)
	if v.top != emptyStub {
		r.walk(sub{v.top, v.root}, border{}, [2]bool{len(r.r.First) == 0, r.r.After == nil}, 0, len(r.touched))
	} else {
		r.insert(0, len(r.touched))
	}
	inside := len(r.before)
	r.seam(r.behind)
	if r.err != nil {
		return r.err
	}
	var next []byte
	if inside < len(r.parts) {
		next = r.least(&r.parts[inside])
	}
	if err := r.r.reaches(r.before, r.behind, next); err != nil {
		return fmt.Errorf("%w: %w", ErrOtherState, err)
	}
	return r.join()
}

// least returns the least key of a part, nil if it is on the left edge of the tree.
func (r *replaying) least(x *stretch) []byte {
	if x.bearer != 0 {
		return r.view.key(x.bearer)
	}
	return x.key
}

// join joins the parts.
func (r *replaying) join() error {
	r.added = make([]stretch, 0, len(r.parts)+16)
	r.build = builder{chunkBytes: math.MaxUint64, join: r.inner}
	for i := range r.parts {
		next := math.MaxInt
		if i+1 < len(r.parts) {
			next = int(r.parts[i+1].boundary)
		}
		var after []byte
		if i+1 < len(r.parts) && r.pages != nil {
			after = r.least(&r.parts[i+1])
		}
		if err := r.add(&r.parts[i], next, after); err != nil {
			return err
		}
	}
	top, i := &r.top.link, &r.top.image
	if len(r.added) == 0 {
		i.setStub(left, emptyStub)
		return nil
	}
	root, err := r.build.root()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrOtherState, err)
	}
	r.setChild(top, i, left, root)
	return nil
}

// add gives a part to builder or, if there is a boundary beside it that is not higher, its halves.
// next is the height of the boundary behind it, and after the least key there, if pages can be
// read.
func (r *replaying) add(x *stretch, next int, after []byte) error {
	boundary := int(x.boundary)
	switch {
	case len(r.added) == 0:
		boundary = math.MaxInt
	case boundary == 0:
		return fmt.Errorf("%w: the height at key %s is not known", ErrOtherState, abbreviate(r.least(x)))
	}
	if !x.whole || x.Height == 0 || min(boundary, next) > int(x.Height) {
		r.added = append(r.added, *x)
		if err := r.build.add(x.boundary, &x.sub); err != nil {
			return fmt.Errorf("%w: at key %s: %w", ErrOtherState, abbreviate(r.least(x)), err)
		}
		return nil
	}
	if x.n == 0 && r.pages != nil {
		if x.sub = r.open(x.sub, r.least(x), after, 0, 0); r.err != nil {
			return r.err
		}
	}
	if x.n == 0 {
		return &MissingNodeError{Node: x.Stub, Key: bytes.Clone(r.least(x))}
	}
	n, height := x.n, x.Height
	l, rt := *x, stretch{sub: childOf(&r.view, n, right), boundary: height, whole: true}
	l.sub = childOf(&r.view, n, left)
	r.bear(&rt, n)
	r.die(n, true)
	var middle []byte
	if r.pages != nil {
		middle = r.least(&rt)
	}
	if err := r.add(&l, int(height), middle); err != nil {
		return err
	}
	return r.add(&rt, next, after)
}

// inner makes the inner node between parts k-1 and k of r.added; see builder.join.
func (r *replaying) inner(k uint32, _ Stat, lt, rt *sub) (ref, Hash) {
	x := &r.added[k]
	n := r.newInner()
	bearer := x.bearer
	if bearer == 0 {
		bearer = r.newRecord(x.key, nil) // a stand-in
	}
	l, i := r.link(n), r.image(n)
	*i = image{0: 0x01}
	i.setEpoch(r.epoch)
	i.setFlag(moved)
	l.prefix = x.prefix
	r.setChild(l, i, left, lt)
	r.setChild(l, i, right, rt)
	i.setLeaf(bearer)
	if x.keyHash != nil {
		*i.keyHash() = *x.keyHash
	} else {
		r.keyUnknown(n, i)
	}
	return n, Hash{}
}

// setChild makes c a child of a new node. One in memory without a hash is new.
func (r *replaying) setChild(l *link, i *image, side int, c *sub) {
	l.child[side] = c.n
	i.setStub(side, c.Stub)
	if c.n != 0 && c.Hash == (Hash{}) {
		i.setFlag(dirty(side))
	}
}

// seam appends items of the seam as parts.
func (r *replaying) seam(items []seamItem) {
	for k := range items {
		it := &items[k]
		x := stretch{sub: sub{Stub: it.stub}, boundary: it.boundary, key: it.key, prefix: prefixOf(it.key), keyHash: &it.keyHash}
		if it.value != nil {
			x.sub = r.newLeafSub(it.key, it.value)
			x.bearer = x.n
		}
		r.parts = append(r.parts, x)
	}
}

// newLeafSub makes a leaf.
func (r *replaying) newLeafSub(key, value []byte) sub {
	return sub{Stub: Stub{Stat: Stat{Bytes: RecordBytes(len(key), len(value))}}, n: r.newRecord(key, value)}
}

// search returns the first of r.touched[from:to] with a key that is not below that of inner node n.
func (r *replaying) search(n ref, from, to int) int {
	l := r.link(n)
	i, _ := slices.BinarySearchFunc(r.ops[from:to], l.prefix, func(o op, prefix uint64) int {
		switch {
		case o.prefix != prefix:
			if o.prefix < prefix {
				return -1
			}
			return 1
		case bytes.Compare(r.touched[o.i].key, r.keyOf(n)) < 0:
			return -1
		}
		return 1
	})
	return from + i
}
