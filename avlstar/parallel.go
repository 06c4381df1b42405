package avlstar

import (
	"crypto/sha256"
	"errors"
	"math/bits"
	"slices"
	"sort"
	"sync/atomic"
)

// Changes in different subtrees do not affect each other unless a node above these subtrees
// rotates, because the effect of a rotation depends on the changes before it. So a large block is
// cut along the tree. One goroutine makes and hashes the changes of each subtree, in the cache of
// its core. Then a check simulates the changes in key order: if a node above would have rotated at
// any moment, the changes below it are made again, in order, as one task. That is rare: the
// subtrees are large, and their heights seldom change.
//
//	            fork                  copied when its subtrees are done
//	       ┌─────┴─────┐
//	     fork         task 3          goroutine B
//	   ┌──┴──┐
//	task 1  task 2                    goroutine A
type plan struct {
	tree     *tree
	v, next  *Version
	changes  []Change
	want     int // target number of changes in a task
	tasks    []*task
	forks    []*fork
	given    []*task     // tasks whose changes were made again as part of another task
	openings []allocator // allocators to be closed
	// Set when a change needs a node that is not in memory. The block is then made in order, which
	// finds the first such change.
	lacks atomic.Bool
}

// part is the common part of forks and tasks: a subtree and the changes in it.
type part struct {
	parent *fork
	side   int // side in parent
	ops    []op
	bearer *Hash // SHA256 of the least key
	was    uint8 // previous height
	low    ref   // inner node with the least key; 0: on the left edge of the tree
}

// fork is an inner node above tasks.
type fork struct {
	part
	n ref
	// heights are those of the children, and height that of the fork itself, while the changes are
	// simulated in key order.
	heights [2]uint8
	height  uint8
	moved   bool     // whether its height changed, even if it changed back
	child   [2]*fork // children that are forks
	task    [2]*task // children that are tasks; if a child is neither, nothing changes there
}

// task is a subtree whose changes one goroutine makes. The left child of edit.top is the subtree:
// the previous one at first, and finally the new one.
type task struct {
	part
	edit    *edit
	tally   tally
	changed bool
	heights []uint8 // the heights that it had, one after another
	least   outcome // the least leaf, and whether it is renamed
	renamed Hash    // SHA256 of least's key
	failed  bool
}

// tune decides when a block is cut, and into how many tasks. Tests lower it, so that every block
// has rotations above its tasks.
var tune = struct {
	minChanges int // in a smaller block, starting goroutines does not pay
	minTask    int // minimum number of changes in a task
	// Lower subtrees are not cut: their heights change often, and there is little work in them to
	// share.
	minTaskHeight uint8
	// The maximum number of following blocks that are made in order from the start, after parallel
	// attempts failed.
	maxBackoff int
	pageBytes  uint64
	minReclaim int // number of nodes that each Apply may free in any case
	// Bytes of Go's heap that a tree may take before it takes frames (frames.go).
	heapBytes uint64
}{256, 16, 7, 64, maxPageBytes, 1 << 12, 4 << 20}

// maxTask limits the changes of a task, so that new nodes stay in the core's cache until they are
// hashed.
const maxTask = 64

// maxMends limits the number of times that parts of a block are made again before the whole block
// is made in order. The block is also made in order if half of its changes would have to be made
// again.
const maxMends = 16

// inParallel makes next with several goroutines. It returns false if it did not.
func (t *tree) inParallel(v, next *Version, ops []op, changes []Change, c *crew) bool {
	if c.workers() == 1 || v.top.Height < tune.minTaskHeight+2 {
		return false
	}
	if t.mu.backoff > 0 {
		t.mu.backoff--
		return false
	}
	p := &plan{tree: t, v: v, next: next, changes: changes, want: min(max(len(ops)/(16*c.workers()), tune.minTask), maxTask)}
	root := p.cut(v.root, part{ops: ops, was: v.top.Height})
	if root == nil || len(p.tasks) < 2*c.workers() {
		return false
	}
	p.share(c)
	done := p.repair()
	for i := range p.openings {
		p.openings[i].close()
	}
	for _, task := range p.given {
		p.release(task, false)
	}
	for _, task := range p.tasks {
		p.release(task, done)
	}
	switch {
	case p.lacks.Load():
		return false
	case !done:
		t.mu.failures = min(2*t.mu.failures+1, tune.maxBackoff)
		t.mu.backoff = t.mu.failures
		return false
	}
	t.mu.failures = 0
	p.join(root)
	return true
}

// cut divides the subtree n into tasks and returns its fork, or nil if the subtree is one task
// itself.
func (p *plan) cut(n ref, of part) *fork {
	if len(of.ops) == 0 {
		return nil
	}
	if len(of.ops) <= p.want || of.was < tune.minTaskHeight || n == 0 {
		if of.parent != nil {
			p.tasks = append(p.tasks, of.task())
		}
		return nil
	}
	l, i := p.v.link(n), p.v.image(n)
	f := &fork{part: of, n: n}
	p.forks = append(p.forks, f)
	at := sort.Search(len(of.ops), func(k int) bool { // index of the first op that goes right
		return !p.v.less(p.changes[of.ops[k].i].Key, of.ops[k].prefix, n, l)
	})
	f.child[left] = p.cut(l.child[left], part{f, left, of.ops[:at:at], of.bearer, i.height(left), of.low})
	f.child[right] = p.cut(l.child[right], part{f, right, of.ops[at:], i.keyHash(), i.height(right), n})
	return f
}

// task makes a task of a part.
func (p part) task() *task {
	t := &task{part: p, heights: make([]uint8, 0, 4)}
	p.parent.task[p.side], p.parent.child[p.side] = t, nil
	return t
}

// share makes the changes of all tasks with several goroutines.
func (p *plan) share(c *crew) {
	w := &p.tree.mu.work
	w.grow(c.workers())
	p.reserve(c.workers())
	p.openings = make([]allocator, c.workers(), c.workers()+8)
	for i := range p.openings {
		p.openings[i] = newAllocator(&p.tree.mu.memory, true)
	}
	for _, t := range p.tasks {
		p.prepare(t)
	}
	turns := turns{n: len(p.tasks), workers: c.workers()}
	c.do(func(worker int) {
		for from, to := turns.take(); from < to; from, to = turns.take() {
			p.do(&w.groups[worker], &p.openings[worker], p.tasks[from:to])
		}
	})
}

// reserve reserves the most memory that shared allocators can need for the changes.
func (p *plan) reserve(allocators int) {
	nodes, pages := needs(p.changes, p.v)
	slabs := nodes/slabNodes + allocators
	pages += allocators * len(classBytes)
	m := &p.tree.mu.memory
	m.extend(min(max(0, slabs-len(m.freeSlabs)), maxSlabs-len(m.slabs)), min(max(0, pages-len(m.freePages)), maxPages-len(m.pages)))
}

// prepare makes the edit of a task.
func (p *plan) prepare(t *task) {
	mu, parent := &p.tree.mu, t.parent.n
	expected := len(t.ops) * max(4, int(t.was)-bits.Len(uint(len(t.ops)))+4)
	e := p.tree.newEdit(p.v, p.next, t.ops, p.changes, nil)
	e.canFail, e.made, e.dead = true, mu.made.take(expected), mu.dead.take(expected)
	if e.index != nil {
		e.indexed = mu.ops.take(len(t.ops))
	}
	e.top.link.child[left] = p.v.link(parent).child[t.side]
	e.top.image.setStub(left, p.v.image(parent).stub(t.side))
	if t.low != 0 {
		e.low = p.v.image(t.low).leaf()
	}
	t.edit = e
}

// release accounts for a task's nodes, or frees them, and keeps its lists for the next block.
func (p *plan) release(t *task, done bool) {
	mu, e := &p.tree.mu, t.edit
	if done {
		p.tree.settle(e, p.next)
		p.next.count(&t.tally)
	} else {
		e.undo(&mu.memory)
	}
	if !done || len(e.dead) == 0 {
		mu.dead.give(e.dead)
	}
	mu.made.give(e.made)
	mu.ops.give(e.indexed)
}

// do makes and hashes the changes of some tasks.
func (p *plan) do(g *group, a *allocator, tasks []*task) {
	for _, t := range tasks {
		t.edit.allocator = a
		if t.failed = p.lacks.Load(); t.failed {
			continue
		}
		t.run()
		if t.edit.err != nil && errors.As(t.edit.err, new(*MissingNodeError)) {
			p.lacks.Store(true)
		}
	}
	g.reset(&a.view, p.v.chunkBytes)
	for _, t := range tasks {
		if !t.failed {
			g.bulk.hashKeys(t.edit)
			g.children(&t.edit.top.link, &t.edit.top.image, t.bearer, &t.tally)
		}
	}
	g.finish()
}

// run makes a task's changes.
func (t *task) run() {
	e := t.edit
	t.changed = e.run(func(r outcome) (goOn bool) {
		// The next key may now be less than the new key of a node above. In order, it would go to
		// the left of that node.
		t.failed = r.is(gone) || r.is(renamed) && e.next < len(e.ops) && string(e.change(&e.ops[e.next]).Key) < string(e.key(r.least))
		if t.failed {
			return false
		}
		t.heights = append(t.heights, r.height())
		if r.least == 0 {
			return true
		}
		e.unless(t.least.least, r.least)
		if t.least.least = r.least; e.low != 0 {
			e.low = r.least
		}
		if r.is(renamed) {
			t.least.bits |= renamed
			if t.renamed = e.least.hash; e.least.dirty {
				t.renamed = sha256.Sum256(e.key(r.least))
			}
			t.bearer = &t.renamed
		}
		return true
	})
	t.failed = t.failed || e.err != nil // when the block is made in order, the error occurs again
}

// After a rotation above tasks, this method makes the changes of the affected subtree again, as one
// task. It reports whether it succeeded: it gives up if the rotation is at the root, or if too many
// changes would have to be made again, which an attacker could cause on purpose.
func (p *plan) repair() bool {
	again, mends := 0, 0
	for {
		if p.lacks.Load() {
			return false
		}
		f := p.unbalanced()
		if f == nil {
			return true
		}
		again, mends = again+len(f.ops), mends+1
		if f.parent == nil || again > len(p.changes)/2 || mends > maxMends {
			return false
		}
		from := slices.IndexFunc(p.tasks, func(t *task) bool { return t.isBelow(f) })
		to := from
		for to < len(p.tasks) && p.tasks[to].isBelow(f) {
			to++
		}
		p.given = append(p.given, p.tasks[from:to]...)
		t := f.part.task()
		p.prepare(t)
		p.tasks = slices.Replace(p.tasks, from, to, t)
		// No other goroutine works now, so this allocator need not be a shared one.
		p.openings = append(p.openings, newAllocator(&p.tree.mu.memory, false))
		p.do(&p.tree.mu.work.groups[0], &p.openings[len(p.openings)-1], []*task{t})
	}
}

func (p part) isBelow(f *fork) bool {
	for up := p.parent; up != nil; up = up.parent {
		if up == f {
			return true
		}
	}
	return false
}

// unbalanced returns a fork that would be out of balance at some moment if the changes were made in
// key order, or nil if there is none.
func (p *plan) unbalanced() *fork {
	for _, f := range p.forks {
		i := p.v.image(f.n)
		f.heights, f.height, f.moved = [2]uint8{i.height(left), i.height(right)}, f.was, false
	}
	for _, t := range p.tasks {
		if t.failed {
			return t.parent
		}
		for _, h := range t.heights {
			for f, side := t.parent, t.side; f != nil && f.heights[side] != h; f, side = f.parent, f.side {
				f.heights[side] = h
				l, r := f.heights[left], f.heights[right]
				if max(l, r)-min(l, r) > 1 {
					return f
				}
				h = 1 + max(l, r)
				f.moved = f.moved || h != f.height
				f.height = h
			}
		}
	}
	return nil
}

// join makes the nodes above the tasks, which completes next.
func (p *plan) join(root *fork) {
	t := p.tree
	a := newAllocator(&t.mu.memory, false)
	e := t.newEdit(p.v, p.next, nil, nil, &a)
	e.top.link.child[left] = p.v.root
	e.top.image.setStub(left, p.v.top)
	if o := e.join(root); o.is(changed) {
		e.unless(o.least, 0) // no node refers to the least key of all
		e.put(&e.top.link, &e.top.image, left, o)
	}
	t.mu.work.finish(e, p.next)
}

// join copies a fork whose subtrees changed, and sets the new children of the copy.
func (e *edit) join(f *fork) outcome {
	out := outcome{n: f.n, bits: uint32(f.was)}
	var hash Hash // hash of the key of out.least
	for side := range 2 {
		var o outcome
		var stub Stub // stub of a task, whose hash is already computed
		if f.child[side] != nil {
			o = e.join(f.child[side])
		} else if t := f.task[side]; t != nil && t.changed {
			stub = t.edit.top.image.stub(left)
			o = outcome{n: t.edit.top.link.child[left], least: t.least.least, bits: t.least.bits | changed | uint32(stub.Height)}
			e.least.hash, e.least.dirty = t.renamed, false
		}
		if !o.is(changed) {
			continue
		}
		out.n = e.own(out.n)
		out.bits |= changed
		l, i := e.link(out.n), e.image(out.n)
		e.put(l, i, side, o)
		if f.task[side] != nil {
			i.setStub(side, stub)
			i[imageFlags] &^= dirty(side)
		}
		switch {
		case o.least == 0:
		case side == left:
			out.least, out.bits, hash = o.least, out.bits|o.bits&renamed, e.least.hash
		default:
			e.setKey(out.n, l, i, o)
		}
	}
	if out.is(changed) {
		if f.moved {
			e.image(out.n).setFlag(moved)
		}
		out.bits = out.bits&^heightBits | uint32(f.height)
	}
	e.least.hash, e.least.dirty = hash, false
	return out
}
