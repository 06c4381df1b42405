package avlstar

import (
	"bytes"
	"sort"

	"github.com/starling-kv/starling/avlstar/record"
)

// An edit that reaches a stub grafts: it copies the nodes of the page on the paths to its changes
// into the tree, as nodes of the new version. The siblings of these nodes remain stubs. Older
// versions keep their stub.
//
//	      stub                 (n)            ops: e
//	   a…………………h      →     stub  (e)
//	                       a…d   e  stub
//	                                f…h
//
// An inner node refers to the leaf that has its key. If that leaf is not in memory, it refers to a
// *stand-in*: a record of the key without a value. The stand-in belongs to this node, and is freed
// when the leaf is read or the node dies.

// graft replaces the stub on one side of a node. The stub's keys begin with that of inner node low
// and are below that of inner node bound (0: no bound). It returns the new root, or 0 on an error,
// and the subtree's least leaf, if it was copied.
func (e *edit) graft(up *image, side int, low, bound ref) (n, least ref) {
	to := e.next + 1
	for to < len(e.ops) && (bound == 0 || e.less(e.ops[to], bound, e.link(bound))) {
		to++
	}
	r, at, ok := e.find(low, up.stub(side))
	if !ok {
		e.missing(up, side, low, e.next, false)
		return 0, 0
	}
	return e.copyPath(r, at, e.ops[e.next:to], false)
}

// graftRoot replaces the stub on one side of inner node n, which is of epoch, by the root of the
// subtree only, which must be an inner node. The stub's keys begin with that of inner node low.
func (e *edit) graftRoot(n ref, side int, low ref) ref {
	r, at, ok := e.find(low, e.image(n).stub(side))
	if !ok || !at.isInner() {
		e.missing(e.image(n), side, low, e.next-1, true)
		return 0
	}
	c, _ := e.copyPath(r, at, nil, false)
	e.link(n).child[side] = c
	return c
}

// graftTop makes sure that the root is in memory. The root is a stub if all keys outside of that
// stub were deleted.
func (e *edit) graftTop() {
	top, i := &e.top.link, &e.top.image
	if e.tree.paging == nil || e.err != nil || top.child[left] != 0 || i.stub(left) == emptyStub {
		return
	}
	r, at, ok := e.find(0, i.stub(left))
	if !ok {
		e.missing(i, left, 0, len(e.ops)-1, false)
		return
	}
	top.child[left], _ = e.copyPath(r, at, nil, false)
}

// find returns the node with this stub, whose keys begin with that of inner node low (0: that of
// e.low). The node is in a page of the previous version, which has these keys too.
func (e *edit) find(low ref, stub Stub) (r *run, at ref, ok bool) {
	if e.tree.paging == nil || e.err != nil {
		return nil, 0, false
	}
	if low == 0 && e.low == 0 {
		return e.findFirst(stub)
	}
	least := e.low
	if low != 0 {
		least = e.image(low).leaf()
	}
	key := e.key(least)
	s, n := e.before.locate(key, false)
	if n != 0 {
		return nil, 0, false
	}
	if r = e.page(s); r == nil {
		return nil, 0, false
	}
	at, ok = r.node(stub, key)
	return r, at, ok
}

// findFirst finds the node with this stub on the left edge of the tree, where no inner node has its
// least key. The first keys of the previous version may have been deleted, each by one of the
// changes.
func (e *edit) findFirst(stub Stub) (r *run, at ref, ok bool) {
	for tries := 0; tries <= len(e.changes); {
		s, n := e.before.locate(e.first.key, false)
		if n != 0 {
			tries++
		} else {
			if r = e.page(s); r == nil {
				return nil, 0, false
			}
			for ; e.first.record < r.len() && tries <= len(e.changes); e.first.record++ {
				if at, ok = r.node(stub, r.leaf(e.first.record).Key); ok {
					return r, at, true
				}
				tries++
			}
		}
		if s.After == nil {
			break
		}
		e.first.key, e.first.record = s.After, 0
	}
	return nil, 0, false
}

// page returns the nodes of page s, or nil on an error, which it stores in e.err.
func (e *edit) page(s Subtree) *run {
	r, err := e.latest.page(e.tree, s)
	if err != nil {
		e.err = err
	}
	return r
}

// latestPage is the page that was read last, not counting pages that bring read.
type latestPage struct {
	hash Hash
	run  *run
}

// page returns the nodes of page s of t.
func (l *latestPage) page(t *tree, s Subtree) (*run, error) {
	if r := t.paging.runs[s.Hash]; r != nil {
		return r, nil
	}
	if l.run != nil && l.hash == s.Hash {
		return l.run, nil
	}
	p, err := t.fetchPage(s)
	if err != nil {
		return nil, err
	}
	t.paging.loaded.Add(1)
	l.hash, l.run = s.Hash, p.nodes()
	return l.run, nil
}

// copyPath copies node n of r, and the nodes below it on the paths to ops, or all of them. It
// returns the copy of n, and the subtree's least leaf if that was copied.
func (e *edit) copyPath(r *run, n ref, ops []op, all bool) (c, least ref) {
	if n.isLeaf() {
		l := r.leaf(int(n &^ leafBit))
		c = e.newRecord(l.Key, l.Value)
		e.reindex(l.Key, 0, c)
		return c, c
	}
	key := r.leaf(int(n)).Key
	split := sort.Search(len(ops), func(i int) bool { return bytes.Compare(e.change(&ops[i]).Key, key) >= 0 })
	c = e.newInner()
	*e.image(c) = r.images[n]
	e.image(c).clearFlags()
	e.image(c).setEpoch(e.epoch)
	*e.link(c) = link{prefix: r.links[n].prefix}
	var bearer ref // the leaf with the key
	if all || split > 0 {
		e.link(c).child[left], least = e.copyPath(r, r.links[n].child[left], ops[:split], all)
	}
	if all || split < len(ops) {
		e.link(c).child[right], bearer = e.copyPath(r, r.links[n].child[right], ops[split:], all)
	}
	if bearer == 0 {
		bearer = e.newRecord(key, nil)
	}
	e.image(c).setLeaf(bearer)
	return c, least
}

// newRecord stores the record of a leaf, or a stand-in. If the edit can fail, it notes the record
// for undo.
func (e *edit) newRecord(key, value []byte) ref {
	r := e.putRecord(e.epoch, key, value)
	if e.canFail {
		e.made = append(e.made, r)
	}
	return r
}

// standIn reports whether a record has no value.
func (w *view) standIn(r ref) bool {
	b := w.record(r)
	n, at := record.Length(b, recordHeader)
	return b[at+n] == 0
}

// unless kills old if it is a stand-in, except if it is next, the record that replaces it.
func (e *edit) unless(old, next ref) {
	if e.stubs && old != 0 && old != next && e.standIn(old) {
		e.kill(old, e.recordEpoch(old))
	}
}

// sweep turns pages that are stored and did not change recently into stubs. It makes a new version,
// so that readers of older versions are not disturbed.
type sweep struct {
	*edit
	from   []byte // least key of the sweep; nil: the tree's least key
	to     []byte // where the next sweep begins; nil if this one reached the end
	newest uint32 // only pages of this epoch or older are evicted
	want   int64  // bytes to free
	freed  int64
	pages  uint64
}

// swept is the result for a subtree.
type swept struct {
	n     ref
	other bool // whether n is another node, or none
	least bool // whether its least leaf was evicted
}

// minAge is the age, in versions, of the youngest pages that a sweep evicts at first. Each sweep of
// the whole tree that frees too little lowers the age.
const minAge = 64

// evict returns a version of the same state as v without some of its pages if the tree takes more
// memory than its budget; the caller releases it. Otherwise it returns v itself. The caller holds
// t.mu.
func (t *tree) evict(v *Version) *Version {
	p := t.paging
	if p == nil || !v.root.isInner() {
		return v
	}
	stored := p.stored.Load()
	if p.resting && stored == p.idle {
		return v
	}
	budget, have := p.Budget(), t.resident()
	if have <= budget {
		return v
	}
	p.resting = false
	want := have - budget + budget/16 // free somewhat more, so that not every block must evict
	next := t.sameState(v)
	a := newAllocator(&t.mu.memory, false)
	s := sweep{edit: t.newEdit(v, next, nil, nil, &a), from: p.cursor, want: want}
	s.stubs = true
	lap := 0
	for ; lap < 2; lap++ { // the second lap begins at the least key; the first one may do so too
		s.newest = 0
		if v.epoch > p.age {
			s.newest = min(stored, v.epoch-p.age)
		}
		s.to = nil
		next.root = s.walk(next.root, Subtree{Stub: next.top}).n
		if p.cursor = bytes.Clone(s.to); s.to != nil || s.freed >= want {
			break
		}
		if s.from == nil {
			lap = 1
		}
		s.from = nil
	}
	switch {
	case s.freed >= want/2:
		p.age = min(p.age+1, minAge)
	case p.age == 0 && lap == 2: // all pages that may be evicted were evicted
		p.resting, p.idle = true, stored
	default:
		p.age /= 2
	}
	if p.evicted += s.pages; s.pages > 0 {
		p.full.Store(0)
	}
	if !t.keep(s.edit, next, s.pages > 0) {
		return v
	}
	return next
}

// sameState begins a version that differs from v only in which nodes are in memory; keep ends it.
// The caller holds t.mu.
func (t *tree) sameState(v *Version) *Version {
	t.mu.epoch = max(t.mu.epoch, v.epoch) + 1
	return &Version{
		chunkBytes: v.chunkBytes, epoch: t.mu.epoch, parent: v.epoch, from: v.from, grown: true, shed: v.shed, partial: true,
		full: v.full, upper: v.upper, leaves: v.leaves, uncounted: v.uncounted, root: v.root, top: v.top,
	}
}

// keep makes next the latest version if it differs from the one before, and reports whether it
// does. sameState began next, and e made it. The caller holds t.mu.
func (t *tree) keep(e *edit, next *Version, differs bool) bool {
	e.close()
	if !differs {
		t.mu.epoch--
		return false
	}
	e.upper, e.leaves = 0, 0 // the state is the same
	t.settle(e, next)
	t.enlist(next)
	return true
}

// resident estimates the memory of the latest version, in bytes.
func (t *tree) resident() int64 {
	return int64(t.eachBytes() * t.latest())
}

// latest returns the number of nodes and leaves of the latest version.
func (t *tree) latest() uint64 { return t.mu.nodes + t.mu.leaves - t.held() }

// eachBytes estimates the memory of a node or leaf, in bytes.
func (t *tree) eachBytes() uint64 {
	all := t.mu.nodes + t.mu.leaves
	return (t.mu.nodes*nodeBytes + t.mu.leafBytes) / max(all, 1)
}

// maxExcess limits what excess returns, so that a small block takes no longer than a large one.
const maxExcess = 1 << 16

// excess returns the number of dead nodes that an Apply frees first, because the tree with all
// nodes that wait to be freed takes more memory than its budget. Evicting pages instead would not
// help, since evicted nodes would have to wait behind these. The caller holds t.mu.
func (t *tree) excess() int {
	if t.paging == nil {
		return 0
	}
	waiting := int64(t.waiting())
	over := min(t.resident()+waiting-t.paging.Budget(), waiting)
	return int(min(max(over, 0)/int64(max(t.eachBytes(), 1)), maxExcess))
}

// isPage reports whether a subtree is small enough to be evicted as a whole. No node in it is above
// a chunk.
func isPage(s Stat, chunkBytes uint64) bool {
	return s.Height == 0 || s.Bytes <= min(tune.pageBytes, chunkBytes)
}

// walk sweeps the subtree at, whose root is n.
func (s *sweep) walk(n ref, at Subtree) swept {
	kept := swept{n: n}
	if n == 0 || s.from != nil && at.After != nil && bytes.Compare(at.After, s.from) <= 0 {
		return kept
	}
	if isPage(at.Stat, s.chunkBytes) && n != s.before.root {
		if s.freed >= s.want || s.epochOf(n) > s.newest || s.before.crosses(at) {
			return kept
		}
		s.drop(n)
		s.pages++
		if evicted := s.tree.paging.Evicted; evicted != nil {
			evicted(at.Stub)
		}
		if s.freed >= s.want {
			s.to = at.After
		}
		return swept{other: true, least: true}
	}
	below, above := splitAt(&s.view, at, n)
	l := s.walk(s.link(n).child[left], below)
	if s.freed >= s.want && s.to == nil {
		s.to = above.First
	}
	var r swept
	if s.freed < s.want {
		r = s.walk(s.link(n).child[right], above)
	} else {
		r.n = s.link(n).child[right]
	}
	return s.join(n, l, r)
}

// join makes l and r the children of inner node n, or of a copy of n if they differ from its
// children.
func (s *sweep) join(n ref, l, r swept) swept {
	if !l.other && !r.other {
		return swept{n: n}
	}
	c := s.own(n)
	if i := s.image(c); r.least && !s.standIn(i.leaf()) {
		i.setLeaf(s.newRecord(s.key(i.leaf()), nil))
	}
	s.link(c).child = [2]ref{l.n, r.n}
	return swept{n: c, other: true, least: l.least}
}

// drop removes the nodes and leaves below n from the new version.
func (s *sweep) drop(n ref) {
	switch {
	case n == 0:
	case n.isLeaf():
		key, value := s.leaf(n)
		s.freed += int64(recordHeader + 4 + len(key) + len(value))
		s.reindex(key, n, 0)
		s.kill(n, s.recordEpoch(n))
	default:
		l, i := s.link(n), s.image(n)
		s.freed += 16 + 128
		if k := i.leaf(); s.standIn(k) {
			s.kill(k, s.recordEpoch(k))
		}
		s.kill(n, i.epoch())
		s.drop(l.child[left])
		s.drop(l.child[right])
	}
}
