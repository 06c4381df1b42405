package avlstar

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// tree is shared by the versions of one tree: it holds their memory, and the nodes that each
// version keeps alive.
//
//	versions   v3 (in use)        v7 (in use)          v8 (latest)
//	held       died in (3, 7],    died in 8,
//	           born by 3          born by 7
//
// A node that dies when a version is made is put on the list of the version before, which still
// contains it. When that version is given up, the node moves to the list of the next older version
// that contains it too, or is freed. Versions without references are given up oldest first, so a
// node never moves to a version that is about to be given up itself. It is visited once for each
// version in use that it outlives, and once to be freed. Nothing is ever searched.
//
// Readers take no lock. Release only counts. Apply gives versions up, a bounded number of nodes at
// a time (docs/decisions/0029-versions-are-given-up-oldest-first.md).
type tree struct {
	used atomic.Int64 // number of versions with references

	mu struct { // held by the methods that make a version
		sync.Mutex
		memory
		epoch uint32   // epoch of the latest version
		alive []*alive // in order of epoch; the last is the latest version, released or not
		work  resolver
		dead  spare[dead]
		made  spare[ref]
		index *index // nil if there is none
		ops   spare[indexOp]
		// failures is the number of recent blocks that could not be made in parallel. The next
		// backoff blocks are made in order from the start (parallel.go).
		failures, backoff int
		reclaimed         Reclaimed // by the last Apply
		// usual.nodes is the number of nodes that the last Apply made, or that died in it if that
		// is more; usual.changes is the number of its changes.
		usual struct{ nodes, changes int }
	}
	stats atomic.Pointer[stats]
	// If it is nil, everything is in memory. Readers use it only at stubs.
	paging    *paging
	retention *retention // nil if there is none
	gate      gate
}

// stats holds the results of Memory and Reclaimed.
type stats struct {
	memory    MemoryStats
	reclaimed Reclaimed
}

// alive is a version whose nodes are not all freed.
type alive struct {
	version *Version
	held    [][]dead // nodes of this version that are in no later one; version.held is their memory
}

// dead is a node that is not in the latest version.
type dead struct {
	n    ref
	born uint32 // epoch of the version that made it
}

var (
	// ErrTooLarge is wrapped if a tree would exceed the limits of the formats or of its memory:
	// 2^32-1 chunks, 2^31 leaves, 32 GiB of leaf records, 2^19 records larger than 8 KiB, 2^32
	// versions.
	ErrTooLarge = errors.New("tree too large")
	// ErrNotLatest is returned by Apply if a later version of the same tree is in use.
	ErrNotLatest = errors.New("not the latest version of its tree")
)

// MemoryStats describes the memory of all versions of a tree together, including those that are
// released and not yet freed.
type MemoryStats struct {
	Versions   int    // number that is not freed yet
	InnerNodes uint64 // number in use
	Leaves     uint64 // number in use
	Held       uint64 // number of these that are only in older versions
	HeldBytes  uint64 // memory of the held ones
	NodeBytes  uint64 // memory for inner nodes, in use or not
	LeafBytes  uint64 // memory for leaf records, in use or not
	Evicted    uint64 // number of pages that left memory so far
	Loaded     uint64 // number of pages that Apply has read so far
	Indexed    uint64 // number of keys in the index
	IndexBytes uint64 // memory of the index
}

// LatestBytes returns the memory of the latest version, and memory that is not in use.
func (m MemoryStats) LatestBytes() uint64 {
	all := m.NodeBytes + m.LeafBytes + m.IndexBytes
	return all - min(m.HeldBytes, all)
}

// Reclaimed counts the nodes of released versions that an Apply freed or passed on.
type Reclaimed struct {
	Freed    int // nodes and leaves
	PassedOn int // nodes that an older version in use contains too, and holds from now on
	Took     time.Duration
}

// Memory returns the memory of v's tree after its last Apply.
func (v *Version) Memory() MemoryStats { return v.tree.stats.Load().memory }

// Reclaimed returns the counts of the last Apply of v's tree. Freed and PassedOn together are at
// most about twice the number of nodes that it made, or that died in it if that is more, and with
// Paging the excess over the budget in addition (maxExcess). Later calls reclaim the rest.
func (v *Version) Reclaimed() Reclaimed { return v.tree.stats.Load().reclaimed }

// HeldBytes returns the memory, in bytes, of the nodes and leaves of v that are not in the version
// after it. The tree cannot reuse this memory because of v or of versions before v. It grows when
// Apply gives up released versions after v. The latest version holds nothing.
func (v *Version) HeldBytes() uint64 { return v.held.Load() }

// Retain adds a reference. The caller must know that the version is still referenced.
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

// Release gives up a reference. After the last one, neither the version nor the slices that it lent
// may be used: Apply reuses their memory.
func (v *Version) Release() {
	switch n := v.refs.Add(-1); {
	case n > 0:
		return
	case n < 0:
		panic("avlstar: a version was released more often than it was retained")
	}
	if v.records != nil {
		v.records.Release()
	}
	if t := v.tree; t.used.Add(-1) == 0 {
		t.end()
	}
}

// end returns the memory of a tree that can no longer be used.
func (t *tree) end() {
	// If an Apply holds the lock, it must fail, and the memory is left to the garbage collector.
	if t.mu.TryLock() {
		defer t.mu.Unlock()
		t.mu.freeFrames()
	}
}

// inUse panics if the version has been released: its memory may have been reused.
func (v *Version) inUse() {
	if v.refs.Load() <= 0 {
		panic("avlstar: use of a released version")
	}
}

// publish makes v, which t.mu.memory now holds, the latest version. The caller holds t.mu.
func (t *tree) publish(v *Version) (*Version, error) {
	if v.upper >= math.MaxUint32 || v.epoch >= freed {
		t.mu.index = nil // it has leaves of v
		return nil, fmt.Errorf("%w: %d chunks after %d versions", ErrTooLarge, v.upper+1, v.epoch)
	}
	t.enlist(v)
	t.account()
	return v, nil
}

// enlist appends v, which t.mu.memory now holds, to the versions as the latest one, with one
// reference. The caller holds t.mu.
func (t *tree) enlist(v *Version) {
	v.tree, v.view, v.index = t, t.mu.view, t.mu.index
	v.refs.Store(1)
	t.used.Add(1)
	t.mu.alive = append(t.mu.alive, &alive{version: v})
	t.check(v)
}

// held returns the number of nodes and leaves that are only in older versions. The caller holds
// t.mu.
func (t *tree) held() (n uint64) {
	for _, a := range t.mu.alive {
		for _, list := range a.held {
			n += uint64(len(list))
		}
	}
	return n
}

// early returns the number of nodes that Apply frees before a block with this number of changes. It
// is the number of nodes that the block will make, if a change makes as many as in the block
// before. So new nodes reuse that memory.
func (t *tree) early(changes int) int {
	u := t.mu.usual
	return int(int64(u.nodes) * int64(changes) / int64(max(u.changes, 1)))
}

// reclaim gives up versions without references, oldest first, and frees the nodes that they kept
// alive. It stops after limit nodes, and leaves the rest with the version that it was giving up. It
// adds to done. The caller holds t.mu.
func (t *tree) reclaim(limit int, done *Reclaimed) {
	began := time.Now()
	limit += done.Freed + done.PassedOn
	all, kept := t.mu.alive, t.mu.alive[:0]
	for i, a := range all {
		if t.givenUp(i) {
			var before *alive
			if len(kept) > 0 {
				before = kept[len(kept)-1]
			}
			if t.drop(a, before, limit-done.Freed-done.PassedOn, done); len(a.held) == 0 {
				continue
			}
		}
		kept = append(kept, a)
	}
	clear(all[len(kept):])
	t.mu.alive = kept
	done.Took += time.Since(began)
}

// givenUp reports whether the version t.mu.alive[i] has no references. The latest version is not
// given up before a later version determines which of its nodes die.
func (t *tree) givenUp(i int) bool {
	return i < len(t.mu.alive)-1 && t.mu.alive[i].version.refs.Load() <= 0
}

// waiting returns the memory of the nodes of versions that were given up, in bytes.
func (t *tree) waiting() (sum uint64) {
	for i, a := range t.mu.alive {
		if t.givenUp(i) {
			sum += a.version.HeldBytes()
		}
	}
	return sum
}

// drop frees at most limit of the nodes that a holds, or passes them on to the version before (nil:
// none) if that contains them too. The caller holds t.mu.
func (t *tree) drop(a, before *alive, limit int, done *Reclaimed) {
	var bytes, passed uint64
	for limit > 0 && len(a.held) > 0 {
		last := len(a.held) - 1
		list := a.held[last]
		rest := max(0, len(list)-limit)
		for _, d := range list[rest:] {
			n := t.mu.slotBytes(d.n)
			bytes += n
			if before != nil && d.born <= before.version.epoch {
				before.hold(d)
				passed += n
				done.PassedOn++
			} else {
				t.free(d.n)
				done.Freed++
			}
		}
		limit -= len(list) - rest
		if rest > 0 {
			a.held[last] = list[:rest]
			break
		}
		a.held[last], a.held = nil, a.held[:last]
		t.mu.dead.give(list)
	}
	a.version.held.Add(-bytes) // the sum wraps around, and back
	if before != nil {
		before.version.held.Add(passed)
	}
}

// maxHeld is the length of a list at which another list is begun.
const maxHeld = 1 << 14

// hold adds a node to those that a keeps alive.
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

// rewind makes v the latest version. Later versions must have been released: the nodes that they
// added are freed, and those that died in them are alive again. The caller holds t.mu.
func (t *tree) rewind(v *Version) error {
	for i := len(t.mu.alive) - 1; ; i-- {
		switch a := t.mu.alive[i]; {
		case a.version == v && i == len(t.mu.alive)-1:
			return nil
		case a.version == v:
			latest := t.mu.alive[len(t.mu.alive)-1].version
			if t.mu.index != nil {
				t.mu.index.close()
			}
			t.freeSince(latest.root, v.epoch, latest.partial)
			if t.paging != nil { // evicted nodes are in memory again
				t.paging.resting = false
				if t.paging.full.Load() > v.epoch {
					t.paging.full.Store(0)
				}
			}
			for _, later := range t.mu.alive[i+1:] {
				for _, list := range later.held {
					for _, d := range list {
						if d.born > v.epoch { // made and died after v
							t.free(d.n)
						} else {
							t.reenter(d)
						}
					}
				}
			}
			for _, list := range a.held {
				for _, d := range list {
					t.reenter(d)
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

// freeSince frees the nodes below n that were made after epoch. If there may be stubs, it also
// frees the stand-ins of these nodes.
func (t *tree) freeSince(n ref, epoch uint32, stubs bool) {
	switch {
	case n.isLeaf():
		if born := t.mu.recordEpoch(n); born > epoch {
			t.reindex(n, 0, born)
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

// reenter adds a leaf that is alive again to the index.
func (t *tree) reenter(d dead) {
	if d.n.isLeaf() && !t.mu.standIn(d.n) {
		t.reindex(0, d.n, d.born)
	}
}

// reindex changes the entry of one leaf if there is an index, which must be closed.
func (t *tree) reindex(old, now ref, born uint32) {
	if x := t.mu.index; x != nil {
		x.change([]indexOp{{x.tag(t.mu.key(max(old, now))), old, now}}, born)
	}
}

// account stores the result of Memory. The caller holds t.mu.
func (t *tree) account() {
	s := &stats{reclaimed: t.mu.reclaimed}
	s.memory = MemoryStats{
		Versions: len(t.mu.alive), InnerNodes: t.mu.nodes, Leaves: t.mu.leaves, LeafBytes: t.mu.leafBytes,
		NodeBytes: uint64(t.mu.slabCount) * slabNodes * nodeBytes, Held: t.held(),
	}
	for _, a := range t.mu.alive {
		s.memory.HeldBytes += a.version.HeldBytes()
	}
	if x := t.mu.index; x != nil {
		s.memory.Indexed, s.memory.IndexBytes = uint64(x.used.Load()), uint64(len(x.table.Load().segments))*segmentPairs*128
	}
	if p := t.paging; p != nil {
		s.memory.Evicted, s.memory.Loaded = p.evicted, p.loaded.Load()
	}
	t.stats.Store(s)
}

// room returns an error if changes might not fit into the memory.
func (t *tree) room(changes []Change, v *Version) error { return t.roomOf(needs(changes, v)) }

// roomOf does what room does for this number of nodes and pages.
func (t *tree) roomOf(nodes, pages int) error {
	pages += (maxWorkers + maxMends) * len(classBytes) // each allocator may have one of every class
	if t.mu.nodes+uint64(nodes) > (maxSlabs-maxWorkers-maxMends)*slabNodes || len(t.mu.pages)-len(t.mu.freePages)+pages >= maxPages {
		return fmt.Errorf("%w: %d inner nodes and %d pages of records are in memory", ErrTooLarge, t.mu.nodes, len(t.mu.pages))
	}
	return nil
}

// needs returns the maximum number of nodes and pages that changes can need. A change makes a path
// of new nodes, two more for each rotation on it, and a record. In a tree with stubs, the leaf that
// it replaces may be copied too, and a stand-in for each of the nodes.
func needs(changes []Change, v *Version) (nodes, pages int) {
	eighths := 0
	for _, c := range changes {
		eighths += pageEighths(int(RecordBytes(len(c.Key), len(c.Value))))
	}
	return needsOf(len(changes), eighths, v)
}

// needsOf does what needs does for n changes, whose records take at most that many eighths of
// pages.
func needsOf(n, eighths int, v *Version) (nodes, pages int) {
	height := int(v.top.Height)
	if v.partial { // stand-ins; most of them are small, and otherwise the lists grow
		eighths += n * (16 + 3*(height+2)) / 16
	}
	return n * 3 * (height + 2), eighths/8 + 1
}

// pageEighths returns the most eighths of a page that a record of n bytes, as in a chunk, can take.
func pageEighths(n int) int {
	if n+recordHeader-1 > int(classBytes[len(classBytes)-1]) {
		return 8 // a page of its own
	}
	return 1
}
