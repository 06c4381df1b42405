package avlstar

import (
	"bytes"
	"fmt"
	"math"
	"runtime"
	"slices"
)

// Replay returns the version after an update. p must be full inside r, and does not change. The
// result is full inside r too, and has the root u.To.Root. The nodes outside of r come only from
// u.Boundary, so p need not contain the changes there. Keys and values are copied.
//
// The error is ErrOtherState if u does not lead to that root, whatever is wrong with u;
// *MissingNodeError if p is not full inside r; *PageError if a page cannot be read; and
// ErrNotLatest or ErrTooLarge as for Apply. After an error p is unchanged. A tree that has pages of
// a range (FromRangePaged) replays only updates for that range. An update without effect makes no
// version: the result is p with one more reference. Single changes without effect are accepted. The
// result has no index by hash (Version.EnableIndex).
//
// # How it works
//
// A tree is determined by its leaves and the heights of the inner nodes between them, one for each
// leaf except the first (docs/spec/chunks.md#shape): it is the Cartesian tree over these heights.
// So the new tree is made of the leaves and heights that the update changes, and of all others from
// the version before. A subtree of that version is reused unchanged if
//
//   - all its keys are in r, and no leaf in the range of its keys is put or deleted,
//   - no inner node in it has another height, so the heights between its leaves are unchanged,
//   - the inner nodes between it and its neighbours are higher in the new tree (there is no such
//     node before the first subtree of the tree, or behind the last).
//
// The last condition makes a node the root of exactly these leaves: in a Cartesian tree, leaves
// between two boundaries that are higher than all boundaries between them form a subtree. The walk
// takes the version before apart until it has the largest such subtrees, and builder joins them
// with new leaves and the items of the boundary proof outside of r. Nodes that were taken apart
// die, as in Apply. These nodes are on the paths to the keys of the update, or in subtrees next to
// a boundary that became as low as their root. So the cost is that of Apply: the number of keys
// times the height.
//
//	before       (c 3)             f put, with height 1         after        (c 3)
//	        ┌──────┴──────┐        d has height 1, e 2                ┌──────┴──────┐
//	      (b 1)         (d 2)                                       (b 1)         (e 2)
//	     ┌──┴──┐      ┌───┴───┐    reused: the subtree b,          ┌──┴──┐      ┌───┴───┐
//	     a     b      c     (e 1)  the leaves c, d, e              a     b    (d 1)   (f 1)
//	                       ┌──┴──┐                                          ┌──┴──┐ ┌──┴──┐
//	                       d     e                                          c     d e     f
//
// With Paging, the walk enters a page where it would take a subtree apart. Nodes of the page are
// not copied: the parts of it are stubs, and only the new inner nodes that join them are in memory.
//
// A rotation across an edge of r needs nothing else: on one side of the edge its nodes are in the
// boundary proof, and on the other side the replica has the whole tree.
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
	touches := len(u.Changes) + len(u.Moved)
	switch {
	case u.To.ChunkBytes != v.chunkBytes:
		return nil, fmt.Errorf("%w: chunks of at most %d bytes, not %d", ErrOtherState, u.To.ChunkBytes, v.chunkBytes)
	case touches == 0 && u.To == v.Commitment():
		v.Retain()
		return v, nil
	case t.paging != nil && (v.full == nil || !r.Equal(*v.full)):
		return nil, fmt.Errorf("the tree does not have pages of the range %s only", r)
	}
	var done Reclaimed
	t.reclaim(max(t.early(touches), t.excess()), &done)
	nodes, held := t.mu.nodes+t.mu.leaves, t.held()
	base := t.evict(v)
	if base != v {
		defer base.Release()
	}
	t.bring(base, u.leadTo(base), g)
	if t.paging != nil {
		defer func() { t.paging.runs = nil }()
	}
	if rp.touched, err = u.touched(base, r); err != nil {
		return nil, err
	}
	rp.sortTouched()
	next, err := t.replay(base, rp)
	if err == nil {
		next.parent, next.from = v.epoch, v.epoch // base and v differ only in the nodes in memory
	}
	made, died := int(t.mu.nodes+t.mu.leaves)-int(nodes), int(t.held())-int(held)
	t.mu.usual.nodes, t.mu.usual.changes = max(made, died, 0), touches
	t.reclaim(2*t.mu.usual.nodes+tune.minReclaim-done.Freed-done.PassedOn, &done)
	t.mu.reclaimed = done
	t.account()
	return next, err
}

// replay makes the version after v. The caller holds t.mu.
func (t *tree) replay(v *Version, r *replaying) (*Version, error) {
	full := v.full != nil && r.r.Equal(*v.full)
	r.full = full && t.paging == nil
	if t.roomOf(r.needs(t, v)) != nil {
		t.reclaim(math.MaxInt, new(Reclaimed)) // free all dead nodes that wait
		if err := t.roomOf(r.needs(t, v)); err != nil {
			return nil, err
		}
	}
	if v.epoch+1 >= freed {
		return nil, fmt.Errorf("%w: %d versions", ErrTooLarge, v.epoch)
	}
	t.mu.epoch = max(t.mu.epoch, v.epoch) + 1
	next := &Version{chunkBytes: v.chunkBytes, epoch: t.mu.epoch, parent: v.epoch, from: v.epoch, partial: true, uncounted: true}
	if full {
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

// replaying makes one version from an update. Like an edit, it makes new nodes, and kills nodes of
// the version before that are not in the new one.
type replaying struct {
	*edit
	r              KeyRange
	to             Commitment
	touched        []touch
	order          []op // prefixes of touched
	before, behind []boundaryItem
	// full says that the version before has no stub or page, and so no stand-in, with a key in r.
	// Then no record is read to look for one.
	full  bool
	parts []stretch // parts of the new tree, in key order
	added []stretch // parts that were passed to build, some of them taken apart further
	build builder
}

// stretch is a part of the new tree: a subtree of the version before, a leaf, or a stub of the
// boundary proof.
type stretch struct {
	sub            // a new node has hash 0, computed later
	boundary uint8 // height of the inner node with its least key; ignored for the tree's first
	whole    bool  // it is from the version before, so it can be taken apart
	// moved says that the version before has no inner node with its least key and this height, or
	// that the leaf with that key was put.
	moved bool

	// The following fields describe its least key. They are unset on the left edge of the tree.
	prefix  uint64
	bearer  ref    // its leaf; 0: not in memory, and key is set instead
	key     []byte // or nil
	keyHash *Hash  // nil: to be computed
}

// border is a boundary between two leaves of the version before: the inner node that has the key of
// the second one. n is 0 at an edge of the tree.
type border struct {
	page   *run // the page that contains n; nil: n is in the tree
	n      ref
	height uint8
}

func newReplaying(r KeyRange, u *Update) (*replaying, error) {
	if (u.To.Chunks == 0) != (u.To.Root == emptyStub) {
		return nil, fmt.Errorf("a state of %d bytes in %d chunks", u.To.Root.Bytes, u.To.Chunks)
	}
	if err := checkBoundary(u.Boundary); err != nil {
		return nil, fmt.Errorf("boundary proof: %w", err)
	}
	boundary, err := DecodeMultiproof(u.Boundary)
	if err != nil {
		return nil, fmt.Errorf("boundary proof: %w", err)
	}
	p := &replaying{r: r, to: u.To}
	p.before, p.behind, err = boundary.outside(u.To, r)
	return p, err
}

// sortTouched fills order from touched, which is in key order.
func (r *replaying) sortTouched() {
	r.order = make([]op, len(r.touched))
	for i := range r.touched {
		r.order[i] = op{prefixOf(r.touched[i].key), uint32(i)}
	}
}

// needs returns the maximum number of nodes and pages that the update can need. A false update can
// name as many keys as it has bytes, and must not stop the replica. So each key counts with its own
// size, and not with the largest possible size.
//
// The version before is taken apart along one path for each key and for each edge of the range; and
// next to each such path, along two more paths if a boundary is not higher than the subtrees next
// to it. Each node that is taken apart adds one part, and the parts are joined again.
//
// Pages have nodes that are not in memory, so with Paging the number of keys of the tree limits the
// number of nodes instead.
func (r *replaying) needs(t *tree, v *Version) (nodes, pages int) {
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
	for _, items := range [][]boundaryItem{r.before, r.behind} {
		for i := range items {
			add(items[i].key, items[i].value) // a leaf, or a stand-in
		}
	}
	for class, n := range perClass {
		slots := pageBytes / int(classBytes[class])
		pages += (n + slots - 1) / slots
	}
	there := t.mu.nodes
	if t.paging != nil {
		there = v.top.Bytes / RecordBytes(1, 1)
	}
	nodes = int(min(uint64(named)*3*(uint64(v.top.Height)+2), there+1+uint64(puts)))
	switch { // stand-ins; most of them are small, and otherwise the lists grow
	case t.paging != nil:
		pages += nodes/128 + 1 // as for Apply: an honest update names many keys too
	case !r.full:
		pages += nodes / 16
	}
	return nodes, pages
}

// assemble makes the tree below r.top, without the hashes of new nodes. v is the version before.
func (r *replaying) assemble(v *Version) error {
	// An entry that has an effect makes about eight parts, other entries make none. A long list of
	// the latter must not take memory here.
	r.parts = make([]stretch, 0, len(r.before)+len(r.behind)+8*min(len(r.touched), 1<<12)+2*int(v.top.Height)+1)
	r.boundary(r.before)
	if v.top != emptyStub {
		r.walk(nil, sub{v.top, v.root}, border{}, [2]bool{len(r.r.First) == 0, len(r.r.After) == 0}, 0, len(r.touched))
	} else {
		r.insert(0, len(r.touched))
	}
	inside := len(r.before)
	r.boundary(r.behind)
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

// least returns the least key of a part, or nil if the part is on the left edge of the tree.
func (r *replaying) least(x *stretch) []byte {
	if x.bearer != 0 {
		return r.view.key(x.bearer)
	}
	return x.key
}

// join joins the parts.
func (r *replaying) join() error {
	if len(r.parts) == 1 {
		if err := r.openRoot(&r.parts[0]); err != nil {
			return err
		}
	}
	r.added = make([]stretch, 0, len(r.parts)+16)
	r.build = builder{chunkBytes: math.MaxUint64, join: r.inner}
	for i := range r.parts {
		next := math.MaxInt
		if i+1 < len(r.parts) {
			next = int(r.parts[i+1].boundary)
		}
		if err := r.add(&r.parts[i], next); err != nil {
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

// add passes a part to build. If a boundary on either side is not higher than the part, it passes
// the part's halves instead. next is the height of the boundary behind the part.
func (r *replaying) add(x *stretch, next int) error {
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
	page, n, height := (*run)(nil), x.n, x.Height
	if n == 0 {
		if page, n = r.open(x.Stub, r.least(x)); n == 0 {
			if r.err != nil {
				return r.err
			}
			return &MissingNodeError{Node: x.Stub, Key: bytes.Clone(r.least(x))}
		}
	}
	w := r.nodesOf(page)
	l, rt := *x, stretch{sub: childOf(w, n, right), boundary: height, whole: true}
	l.sub = childOf(w, n, left)
	r.bear(&rt, border{page: page, n: n})
	if page == nil {
		r.die(n, true)
	} else { // its children are stubs
		l.n, rt.n = 0, 0
	}
	if err := r.add(&l, int(height)); err != nil {
		return err
	}
	return r.add(&rt, next)
}

// openRoot brings the root into memory if x, the only part, is a page: everything else was deleted.
func (r *replaying) openRoot(x *stretch) error {
	if x.n != 0 || r.tree.paging == nil {
		return nil
	}
	page, n := r.open(x.Stub, r.least(x))
	if n != 0 {
		x.n, _ = r.copyPath(page, n, nil, false)
		x.whole = false // it is complete: no boundary is next to it
	}
	return r.err
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
	if x.moved {
		i.setFlag(moved)
	}
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

// setChild makes c a child of a new node. A child in memory without a hash is new, and so dirty.
func (r *replaying) setChild(l *link, i *image, side int, c *sub) {
	l.child[side] = c.n
	i.setStub(side, c.Stub)
	if c.n != 0 && c.Hash == (Hash{}) {
		i.setFlag(dirty(side))
	}
}

// boundary appends items of the boundary proof as parts.
func (r *replaying) boundary(items []boundaryItem) {
	for k := range items {
		it := &items[k]
		x := stretch{sub: sub{Stub: it.stub}, boundary: it.boundary, moved: true, key: it.key, prefix: prefixOf(it.key), keyHash: &it.keyHash}
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

// search returns the index of the first of r.touched[from:to] whose key is not below that of inner
// node n.
func (r *replaying) search(w nodes, n ref, from, to int) int {
	l := w.link(n)
	i, _ := slices.BinarySearchFunc(r.ops[from:to], l.prefix, func(o op, prefix uint64) int {
		switch {
		case o.prefix != prefix:
			if o.prefix < prefix {
				return -1
			}
			return 1
		case bytes.Compare(r.touched[o.i].key, w.keyOf(n)) < 0:
			return -1
		}
		return 1
	})
	return from + i
}
