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
// A node that dies when a version is made is put on the list of the latest version before, which
// still has it. When that version is released, the node moves to the list of the next older version
// that has it too, or is freed. So each node is visited once for each release that it outlives, and
// nothing is ever searched for.
//
// Readers take no lock. Release only puts a version on a list; the next Apply frees its nodes.
type tree struct {
	released atomic.Pointer[Version] // without references, linked by nextReleased

	mu struct { // held by Apply only
		sync.Mutex
		memory
		epoch uint32   // of the latest Apply
		alive []*alive // in order of epoch; the last is the latest version, released or not
		work  resolver
		dead  spare[dead]
		made  spare[ref]
		// failures is the number of recent blocks that had to be made in order; then the next
		// backoff blocks are made so at once (parallel.go).
		failures, backoff int
	}
	stats atomic.Pointer[MemoryStats]
	// nil: everything is in memory. Readers look at it only where there are stubs.
	paging *paging
}

// alive is a version whose nodes are not freed.
type alive struct {
	version *Version
	held    [][]dead // nodes that this version has and no later one; version.held is their memory
}

// dead is a node that the latest version lacks.
type dead struct {
	n    ref
	born uint32 // epoch
}

var (
	// ErrTooLarge is wrapped if a tree would exceed what the formats or its memory can hold: 2^32-1
	// chunks, 2^31 leaves, 32 GiB of leaf records, 2^19 of them larger than 8 KiB, 2^32 versions.
	ErrTooLarge = errors.New("tree too large")
	// ErrNotLatest is returned by Apply if a later version of the same tree is in use.
	ErrNotLatest = errors.New("not the latest version of its tree")
)

// MemoryStats describes what all versions of a tree hold together, including those that are
// released and not yet freed.
type MemoryStats struct {
	Versions   int    // not freed yet
	InnerNodes uint64 // in use
	Leaves     uint64 // in use
	Held       uint64 // of these, those that only older versions have
	HeldBytes  uint64 // memory of those
	NodeBytes  uint64 // of inner nodes, in use or not
	LeafBytes  uint64 // of leaf records, in use or not
	Evicted    uint64 // number of pages that left memory so far
	Loaded     uint64 // number of pages that Apply has read so far
}

// Memory returns what the tree of v held after its last Apply.
func (v *Version) Memory() MemoryStats { return *v.tree.stats.Load() }

// HeldBytes returns the memory, in bytes, of the nodes and leaves that v has and the version after
// it lacks: what the tree cannot reuse because of v, or of versions before it. It grows when those
// after v are released. The latest version holds nothing.
func (v *Version) HeldBytes() uint64 { return v.held.Load() }

// Retain adds a reference. The caller must know that the version has one already.
func (v *Version) Retain() {
	if !v.TryRetain() {
		panic("avlstar: Retain of a released version")
	}
}

// TryRetain adds a reference unless the last one has been released, and reports whether it did. It
// is for a version that another goroutine may release at the same time.
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

// Release gives up a reference. After the last one the version must not be used, nor the slices
// that it lent: the next Apply reuses their memory.
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

// inUse panics if the version has been released: its nodes may be others by now.
func (v *Version) inUse() {
	if v.refs.Load() <= 0 {
		panic("avlstar: use of a released version")
	}
}

// publish makes v, which t.mu.memory now holds, the latest version. The caller holds t.mu.
func (t *tree) publish(v *Version) (*Version, error) {
	if v.upper >= math.MaxUint32 || v.epoch >= freed {
		return nil, fmt.Errorf("%w: %d chunks after %d versions", ErrTooLarge, v.upper+1, v.epoch)
	}
	t.enlist(v)
	t.account()
	return v, nil
}

// enlist puts v, which t.mu.memory now holds, behind the latest version, with one reference. The
// caller holds t.mu.
func (t *tree) enlist(v *Version) {
	v.tree, v.view = t, t.mu.view
	v.refs.Store(1)
	t.mu.alive = append(t.mu.alive, &alive{version: v})
	t.check(v)
}

// held returns the number of nodes and leaves that only older versions have. The caller holds t.mu.
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
		// The latest one stays until a later version shows which of its nodes die.
		if i >= 0 && i < len(t.mu.alive)-1 {
			t.drop(i)
		}
	}
}

// drop removes a version and passes on, or frees, what it held. The caller holds t.mu.
func (t *tree) drop(i int) {
	dropped := t.mu.alive[i]
	t.mu.alive = slices.Delete(t.mu.alive, i, i+1)
	var before *alive
	if i > 0 {
		before = t.mu.alive[i-1]
	}
	for _, list := range dropped.held {
		for _, d := range list {
			if before != nil && d.born <= before.version.epoch {
				before.hold(d)
				before.version.held.Add(t.mu.slotBytes(d.n))
			} else {
				t.free(d.n)
			}
		}
		t.mu.dead.give(list)
	}
}

// maxHeld is the length of a list at which another one is begun.
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

// rewind makes v the latest version. Those after it must have been released: what they added is
// freed, and what died in them is alive again. The caller holds t.mu.
func (t *tree) rewind(v *Version) error {
	for i := len(t.mu.alive) - 1; ; i-- {
		switch a := t.mu.alive[i]; {
		case a.version == v && i == len(t.mu.alive)-1:
			return nil
		case a.version == v:
			latest := t.mu.alive[len(t.mu.alive)-1].version
			t.freeSince(latest.root, v.epoch, latest.partial)
			if t.paging != nil { // evicted nodes are back
				t.paging.resting = false
			}
			for _, later := range t.mu.alive[i+1:] {
				for _, list := range later.held {
					for _, d := range list {
						if d.born > v.epoch { // it was made and died after v
							t.free(d.n)
						}
					}
				}
			}
			a.held, t.mu.alive = nil, t.mu.alive[:i+1]
			v.held.Store(0)
			return nil
		case a.version.refs.Load() > 0:
			return ErrNotLatest
		}
	}
}

// freeSince frees the nodes below n that were made after epoch and, if there may be stubs, their
// stand-ins.
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

// account records what Memory returns. The caller holds t.mu.
func (t *tree) account() {
	s := MemoryStats{
		Versions: len(t.mu.alive), InnerNodes: t.mu.nodes, Leaves: t.mu.leaves, LeafBytes: t.mu.leafBytes,
		NodeBytes: uint64(t.mu.slabCount) * slabNodes * nodeBytes, Held: t.held(),
	}
	for _, a := range t.mu.alive {
		s.HeldBytes += a.version.HeldBytes()
	}
	if p := t.paging; p != nil {
		s.Evicted, s.Loaded = p.evicted, p.loaded.Load()
	}
	t.stats.Store(&s)
}

// room returns an error if changes, whatever they turn out to do, might not fit into the memory.
func (t *tree) room(changes []Change, v *Version) error {
	nodes, pages := needs(changes, v)
	pages += (maxWorkers + maxMends) * len(classBytes) // each allocator may have one of every class
	if t.mu.nodes+uint64(nodes) > (maxSlabs-maxWorkers-maxMends)*slabNodes || len(t.mu.pages)-len(t.mu.freePages)+pages >= maxPages {
		return fmt.Errorf("%w: %d inner nodes and %d pages of records are in memory", ErrTooLarge, t.mu.nodes, len(t.mu.pages))
	}
	return nil
}

// needs returns the maximum number of nodes and pages that changes can need. A change makes a path
// of new nodes, two more for each rotation on it, and a record. With stubs, the leaf that it
// replaces may be copied too, and a stand-in for each of the nodes.
func needs(changes []Change, v *Version) (nodes, pages int) {
	height, eighths := v.top.Height, 0
	if v.partial { // most of these trees are small; otherwise the lists grow
		eighths = len(changes) * (16 + 3*(int(height)+2)) / 16
	}
	for _, c := range changes {
		eighths += pageEighths(int(RecordBytes(len(c.Key), len(c.Value))))
	}
	return len(changes) * 3 * (int(height) + 2), eighths/8 + 1
}

// pageEighths returns how many eighths of a page a record of n bytes, as in a chunk, takes at most.
func pageEighths(n int) int {
	if n+recordHeader-1 > int(classBytes[len(classBytes)-1]) {
		return 8 // a page of its own
	}
	return 1
}
