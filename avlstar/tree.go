package avlstar

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
)

// tree is what the versions of one tree share: their memory, and what each of them keeps alive.
//
//	versions   v3 (pinned)        v7 (pinned)          v8 (latest)
//	held       died in (3, 7],    died in 8,
//	           born by 3          born by 7
//
// A node that dies in the making of a version is put on the list of the latest version before, which still has it. When that
// version is released, the node moves on to the list of the next older one that has it too, or is free. So each node is looked at once
// for each release that it outlives, and nothing is ever searched for.
//
// Readers take no lock. Release only puts a version on a list; its nodes are freed by the next Apply.
type tree struct {
	released atomic.Pointer[Version] // those whose last reference is gone, linked by nextReleased

	mu struct { // held by Apply, by nobody else
		sync.Mutex
		memory
		epoch uint32   // of the latest Apply
		alive []*alive // ascending epochs; the last is the latest version, released or not
		work  resolver
		dead  spare[dead]
		made  spare[ref]
		// After failures blocks that had to be made in order, so many are made so at once (parallel.go).
		failures, backoff int
	}
	stats  atomic.Pointer[MemoryStats]
	paging *paging // nil: everything is in memory; readers look at it only where there are stubs
}

// alive is a version whose nodes are not freed.
type alive struct {
	version *Version
	held    [][]dead // nodes that are in no later version, but in this one
}

// dead is a node that the latest version has not.
type dead struct {
	n    ref
	born uint32 // epoch
}

var (
	// ErrTooLarge is wrapped where a tree would exceed what the formats or its memory can hold: 2^32-1 chunks, 2^31 leaves, 32 GiB of
	// leaf records, 2^19 of them larger than 8 KiB, 2^32 versions.
	ErrTooLarge = errors.New("tree too large")
	// ErrNotLatest is Apply's answer where a later version of the same tree is in use.
	ErrNotLatest = errors.New("not the latest version of its tree")
)

// MemoryStats says what all versions of a tree hold together, those included that are released but not yet freed.
type MemoryStats struct {
	Versions   int    // that are not freed
	InnerNodes uint64 // in use
	Leaves     uint64 // in use
	Held       uint64 // nodes and leaves of them that only older versions have
	NodeBytes  uint64 // memory of inner nodes, in use or not
	LeafBytes  uint64 // memory of leaf records, in use or not
	Evicted    uint64 // pages that left memory so far
	Loaded     uint64 // pages that Apply brought back so far
}

// Memory returns what the tree of v held after its last Apply.
func (v *Version) Memory() MemoryStats { return *v.tree.stats.Load() }

// Retain adds a reference to a version that the caller knows to be referenced.
func (v *Version) Retain() {
	if !v.TryRetain() {
		panic("avlstar: Retain of a released version")
	}
}

// TryRetain adds a reference unless the last one is gone already: for a version found in a place that another goroutine may release
// it from at the same time.
func (v *Version) TryRetain() bool {
	for {
		n := v.refs.Load()
		if n <= 0 {
			return false
		}
		if v.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Release gives up a reference. After the last one the version must not be used any more, nor the slices that its iterators
// yielded: the next Apply uses their memory again.
func (v *Version) Release() {
	switch n := v.refs.Add(-1); {
	case n > 0:
		return
	case n < 0:
		panic("avlstar: a version was released more often than it was retained")
	}
	for {
		v.nextReleased = v.tree.released.Load()
		if v.tree.released.CompareAndSwap(v.nextReleased, v) {
			return
		}
	}
}

// inUse panics where a released version is read: its nodes may be others by now.
func (v *Version) inUse() {
	if v.refs.Load() <= 0 {
		panic("avlstar: use of a released version")
	}
}

// publish makes the version that t.mu.memory now holds the latest one. The caller holds t.mu.
func (t *tree) publish(v *Version) (*Version, error) {
	if v.upper >= math.MaxUint32 || v.epoch >= freed {
		return nil, fmt.Errorf("%w: %d chunks after %d versions", ErrTooLarge, v.upper+1, v.epoch)
	}
	t.enlist(v)
	t.account()
	return v, nil
}

// enlist puts v, which t.mu.memory now holds, behind the latest version, with one reference. The caller holds t.mu.
func (t *tree) enlist(v *Version) {
	v.tree, v.view = t, t.mu.view
	v.refs.Store(1)
	t.mu.alive = append(t.mu.alive, &alive{version: v})
	t.check(v)
}

// held returns how many nodes and leaves only older versions have. The caller holds t.mu.
func (t *tree) held() (n uint64) {
	for _, a := range t.mu.alive {
		for _, list := range a.held {
			n += uint64(len(list))
		}
	}
	return n
}

// reclaim frees what the versions kept alive that were released since. The caller holds t.mu.
func (t *tree) reclaim() {
	for v := t.released.Swap(nil); v != nil; v = v.nextReleased {
		i := slices.IndexFunc(t.mu.alive, func(a *alive) bool { return a.version == v })
		if i >= 0 && i < len(t.mu.alive)-1 { // the latest one stays until it is known what follows on it
			t.drop(i)
		}
	}
}

// drop takes a version out and passes on, or frees, what it held.
func (t *tree) drop(i int) {
	gone := t.mu.alive[i]
	t.mu.alive = slices.Delete(t.mu.alive, i, i+1)
	var before *alive
	if i > 0 {
		before = t.mu.alive[i-1]
	}
	for _, list := range gone.held {
		for _, d := range list {
			if before != nil && d.born <= before.version.epoch {
				before.hold(d)
			} else {
				t.free(d.n)
			}
		}
		t.mu.dead.give(list)
	}
}

// maxHeld is how long a list grows before another is begun.
const maxHeld = 1 << 14

// hold adds a node to what a keeps alive.
func (a *alive) hold(d dead) {
	last := len(a.held) - 1
	if last < 0 || len(a.held[last]) >= maxHeld {
		a.held = append(a.held, nil)
		last++
	}
	a.held[last] = append(a.held[last], d)
}

func (t *tree) free(n ref) {
	if n.isLeaf() {
		t.mu.freeRecord(n)
	} else {
		t.mu.freeNode(n)
	}
}

// rewind makes v the latest version. Those after it must be released: what they added is freed, and what died in them lives again.
// The caller holds t.mu.
func (t *tree) rewind(v *Version) error {
	for i := len(t.mu.alive) - 1; ; i-- {
		switch a := t.mu.alive[i]; {
		case a.version == v && i == len(t.mu.alive)-1:
			return nil
		case a.version == v:
			latest := t.mu.alive[len(t.mu.alive)-1].version
			t.freeSince(latest.root, v.epoch, latest.partial)
			if t.paging != nil { // what had left is back
				t.paging.resting = false
			}
			for _, later := range t.mu.alive[i+1:] {
				for _, list := range later.held {
					for _, d := range list {
						if d.born > v.epoch { // it was made and given up after v
							t.free(d.n)
						}
					}
				}
			}
			a.held, t.mu.alive = nil, t.mu.alive[:i+1]
			return nil
		case a.version.refs.Load() > 0:
			return ErrNotLatest
		}
	}
}

// freeSince frees the nodes below n that were made after epoch, and their stand-ins where there may be any.
func (t *tree) freeSince(n ref, epoch uint32, stubs bool) {
	switch {
	case n.isLeaf():
		if t.mu.recordEpoch(n) > epoch {
			t.mu.freeRecord(n)
		}
	case n.isInner() && t.mu.image(n).newerThan(epoch):
		l := *t.mu.link(n)
		if k := t.mu.image(n).leaf(); stubs && t.mu.standIn(k) && t.mu.recordEpoch(k) > epoch {
			t.mu.freeRecord(k)
		}
		t.freeSince(l.child[left], epoch, stubs)
		t.freeSince(l.child[right], epoch, stubs)
		t.mu.freeNode(n)
	}
}

// account notes what Memory returns. The caller holds t.mu.
func (t *tree) account() {
	s := MemoryStats{
		Versions: len(t.mu.alive), InnerNodes: t.mu.nodes, Leaves: t.mu.leaves, LeafBytes: t.mu.leafBytes,
		NodeBytes: uint64(t.mu.slabCount) * slabNodes * (16 + 128), Held: t.held(),
	}
	if p := t.paging; p != nil {
		s.Evicted, s.Loaded = p.evicted, p.loaded.Load()
	}
	t.stats.Store(&s)
}

// room says whether changes fit the memory, whatever they turn out to do.
func (t *tree) room(changes []Change, v *Version) error {
	nodes, pages := needs(changes, v)
	pages += (maxWorkers + maxMends) * len(classBytes) // each allocator may have one of every class
	if t.mu.nodes+uint64(nodes) > (maxSlabs-maxWorkers-maxMends)*slabNodes || len(t.mu.pages)-len(t.mu.freePages)+pages >= maxPages {
		return fmt.Errorf("%w: %d inner nodes and %d pages of records are in memory", ErrTooLarge, t.mu.nodes, len(t.mu.pages))
	}
	return nil
}

// needs returns how many nodes and pages changes can need at most: a change makes a path of new nodes, and two more for each rotation
// on it, and a record. Where there are stubs, the leaf that it replaces may come with it, and a stand-in for each of the nodes.
func needs(changes []Change, v *Version) (nodes, pages int) {
	height, eighths := v.top.Height, 0
	if v.partial { // most of these are small; the lists grow where that is not so
		eighths = len(changes) * (16 + 3*(int(height)+2)) / 16
	}
	for _, c := range changes {
		eighths += pageEighths(int(RecordBytes(len(c.Key), len(c.Value))))
	}
	return len(changes) * 3 * (int(height) + 2), eighths/8 + 1
}

// pageEighths is how much of a page a record of n bytes, as a chunk has it, takes at most.
func pageEighths(n int) int {
	if n+recordHeader-1 > int(classBytes[len(classBytes)-1]) {
		return 8 // a page of its own
	}
	return 1
}
