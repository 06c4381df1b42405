package avlstar

import (
	"slices"
	"sync"

	"github.com/starling-kv/starling/avlstar/sha256mb"
)

// resolver computes the bytes and hashes that an edit left dirty, children before parents (the lazy
// hash resolution of the DSM-Tree, Ponnapalli et al. 2020). Nodes of the same height do not depend
// on each other, so they are hashed together: sha256mb is fast for many messages of the same
// length.
//
//	                   top            last, by one goroutine
//	            ┌───────┴───────┐
//	          task     …      task    dirty subtrees, in groups: a goroutine each
//	height 2   n   n   n      n   n     └ level by level, all tasks of the group together
//	height 1  n n  n  n n    n n n
//	leaves    v v  v  v v    v v v
//
// It keeps its lists from one edit to the next.
type resolver struct {
	tasks  []innerJob
	groups []group
}

// group is the work of one goroutine.
type group struct {
	w          *view
	chunkBytes uint64
	jobs       []innerJob // breadth first
	heights    levels     // heights of jobs
	leaves     []leafJob
	valueHash  []Hash
	bulk       bulk
}

// tally counts hashed nodes.
type tally struct {
	inner, leaves uint64
	upper         uint64 // inner nodes above the chunks
}

// count adds the hashed nodes to the numbers of v.
func (v *Version) count(t *tally) {
	v.hashedInner += t.inner
	v.hashedLeaves += t.leaves
	v.upper += t.upper
}

// innerJob is a dirty inner node; its bytes and hash are written to its parent.
type innerJob struct {
	link   *link
	image  *image
	bearer *Hash // SHA256 of its least key; nil: on the left edge of the tree
	parent *image
	side   int
	tally  *tally
}

func (j *innerJob) height() uint8 { return j.parent.height(j.side) }

type leafJob struct {
	leaf   ref
	bearer *Hash
	parent *image
	side   int
}

// grow makes sure that there are at least this many groups.
func (r *resolver) grow(groups int) {
	for len(r.groups) < groups {
		r.groups = append(r.groups, group{})
	}
}

// finish hashes the dirty nodes below e.top, and makes the result the state of v.
func (r *resolver) finish(e *edit, v *Version) {
	r.hash(e, v)
	e.tree.took(e, v)
}

// hash hashes the dirty nodes below e.top.
func (r *resolver) hash(e *edit, v *Version) {
	r.grow(1)
	g := &r.groups[0]
	g.reset(&e.view, e.chunkBytes)
	g.bulk.hashKeys(e)
	var t tally
	g.children(&e.top.link, &e.top.image, nil, &t)
	g.finish()
	v.count(&t)
}

// share hashes most of the dirty nodes of e with several goroutines, if there are many.
func (r *resolver) share(e *edit, v *Version, c *crew) {
	if c.workers() == 1 || c.used() {
		return
	}
	r.grow(c.workers())
	r.groups[0].bulk.hashKeys(e)
	r.split(e, 16*c.workers())
	tallies := make([]tally, c.workers())
	turns := turns{n: len(r.tasks), workers: c.workers()}
	c.do(func(worker int) {
		g := &r.groups[worker]
		g.reset(&e.view, e.chunkBytes)
		for from, to := turns.take(); from < to; from, to = turns.take() {
			for _, t := range r.tasks[from:to] {
				t.tally = &tallies[worker]
				g.put(t)
			}
			g.finish()
		}
	})
	for i := range tallies {
		v.count(&tallies[i])
	}
	clear(r.tasks) // the tasks refer to e, which refers to the changes
}

// maxTurn limits the number of tasks in a turn.
const maxTurn = 8

// turns hands out tasks. At first it hands out many at a time, because many nodes are hashed faster
// together, and later fewer, so that all workers end at about the same time.
type turns struct {
	mu      sync.Mutex
	next, n int
	workers int
}

// take returns the next tasks, [from, to). The interval is empty when no tasks are left.
func (t *turns) take() (from, to int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	from = t.next
	t.next += min((t.n-from+2*t.workers-1)/(2*t.workers), maxTurn)
	return from, t.next
}

// hashKeys computes the hashes of keys that are new in their nodes.
func (b *bulk) hashKeys(e *edit) {
	for _, n := range e.keys {
		i := e.image(n)
		if i.epoch() != e.epoch || i[imageFlags]&dirtyKey == 0 { // the node was removed again
			continue
		}
		i[imageFlags] &^= dirtyKey
		b.add(e.keyOf(n), i.keyHash())
	}
	b.flush()
}

// split cuts the dirty tree into slightly more than want subtrees of about equal size, and clears
// their dirty marks. The nodes above these subtrees remain to be hashed.
func (r *resolver) split(e *edit, want int) {
	r.tasks = r.tasks[:0]
	if n := e.top.link.child[left]; n.isInner() && e.top.image.isDirty(left) {
		r.tasks = append(r.tasks, innerJob{e.link(n), e.image(n), nil, &e.top.image, left, nil})
	}
	for expanded := true; expanded && len(r.tasks) < want; {
		expanded = false
		level := r.tasks
		r.tasks = make([]innerJob, 0, 2*len(level))
		for _, t := range level {
			if t.height() < 4 {
				r.tasks = append(r.tasks, t)
				continue
			}
			expanded = true
			for side, bearer := range [2]*Hash{t.bearer, t.image.keyHash()} {
				if t.image.isDirty(side) { // in a tree of height 4 both children are inner nodes
					n := t.link.child[side]
					r.tasks = append(r.tasks, innerJob{e.link(n), e.image(n), bearer, t.image, side, nil})
				}
			}
		}
	}
	for _, t := range r.tasks {
		t.parent[imageFlags] &^= dirty(t.side)
	}
}

func (g *group) reset(w *view, chunkBytes uint64) { g.w, g.chunkBytes = w, chunkBytes }

// maxKept limits the lists that are kept from one edit to the next.
const maxKept = 1 << 14

// put adds a dirty inner node.
func (g *group) put(j innerJob) {
	prefetchNode(j.link, j.image)
	j.tally.inner++
	g.jobs = append(g.jobs, j)
	g.heights.add(j.height())
}

// finish hashes the nodes that were put, and all dirty nodes below them. It collects them breadth
// first, so that a node is fetched into the cache while others are visited.
func (g *group) finish() {
	for k := 0; k < len(g.jobs); k++ {
		j := &g.jobs[k]
		g.children(j.link, j.image, j.bearer, j.tally)
	}
	g.hashLeaves()
	for _, level := range g.heights.sort() {
		g.hashLevel(level)
	}
	// The lists refer to the edit, which refers to the changes.
	clear(g.jobs)
	clear(g.leaves)
	g.jobs, g.leaves = g.jobs[:0], g.leaves[:0]
	g.heights.reset()
	if cap(g.jobs) > maxKept {
		g.jobs, g.leaves, g.valueHash, g.heights = nil, nil, nil, levels{}
	}
}

// children adds the dirty children of an inner node to the lists. bearer points to the SHA256 of
// the node's least key, which is in the image of the inner node that has this key. It is nil on the
// left edge of the tree, where no inner node has the key.
func (g *group) children(l *link, i *image, bearer *Hash, t *tally) {
	flags := i[imageFlags]
	i[imageFlags] = flags &^ (dirtyLeft | dirtyRight)
	for side := range 2 {
		if flags&dirty(side) == 0 {
			continue
		}
		if side == right {
			bearer = i.keyHash()
		}
		if n := l.child[side]; n.isLeaf() {
			record := g.w.record(n)
			prefetchRecord(&record[0])
			g.leaves = append(g.leaves, leafJob{n, bearer, i, side})
			t.leaves++
		} else {
			g.put(innerJob{g.w.link(n), g.w.image(n), bearer, i, side, t})
		}
	}
}

// batch is the number of messages that are passed to sha256mb at once.
const batch = 64

// hashLevel hashes inner nodes that do not depend on each other.
func (g *group) hashLevel(level []uint32) {
	var b imageBatch
	for len(level) > 0 {
		n := min(batch, len(level))
		for k, at := range level[:n] {
			b.messages[k] = g.jobs[at].image.hashed()
		}
		sha256mb.Sum(b.out[:n], b.messages[:n])
		for k, at := range level[:n] {
			j := &g.jobs[at]
			bytes := j.image.total()
			if bytes > g.chunkBytes {
				j.tally.upper++
			}
			j.parent.setBytes(j.side, bytes)
			*j.parent.hash(j.side) = b.out[k]
		}
		level = level[n:]
	}
}

type imageBatch struct {
	messages [batch][]byte
	out      [batch][32]byte
}

func (g *group) hashLeaves() {
	n := len(g.leaves)
	if n == 0 {
		return
	}
	if cap(g.valueHash) < n {
		g.valueHash = make([]Hash, n+n/4)
	}
	values := g.valueHash[:n]
	var first Hash // hash of the tree's least key
	for k := range g.leaves {
		j := &g.leaves[k]
		key, value := g.w.leaf(j.leaf)
		j.parent.setBytes(j.side, RecordBytes(len(key), len(value)))
		g.bulk.add(value, &values[k])
		if j.bearer == nil {
			j.bearer = &first
			g.bulk.add(key, &first)
		}
	}
	g.bulk.flush()
	var images leafImages
	for k := range g.leaves {
		j := &g.leaves[k]
		images.add(j.bearer, &values[k], j.parent.hash(j.side))
	}
	images.flush()
}

// levels groups numbered items by their height (a counting sort).
type levels struct {
	heights []uint8
	order   []uint32
	slices  [][]uint32
}

func (l *levels) reset() { l.heights = l.heights[:0] }

func (l *levels) add(height uint8) { l.heights = append(l.heights, height) }

// sort returns the numbers of the items of each height, lowest first.
func (l *levels) sort() [][]uint32 {
	var count, next [256]int
	for _, h := range l.heights {
		count[h]++
	}
	l.order = slices.Grow(l.order[:0], len(l.heights))[:len(l.heights)]
	l.slices = l.slices[:0]
	at := 0
	for h, n := range count {
		if next[h] = at; n > 0 {
			l.slices = append(l.slices, l.order[at:at+n])
		}
		at += n
	}
	for k, h := range l.heights {
		l.order[next[h]] = uint32(k)
		next[h]++
	}
	return l.slices
}
