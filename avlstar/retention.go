package avlstar

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
)

// Retention determines which nodes a Partial that receives multiproofs keeps in memory. A validator
// keeps the upper tree and recently used nodes below it (RainBlock, section 5.3). All others become
// stubs again.
//
//	depth 0          (n)               always in memory
//	              ┌───┴───┐
//	depth 2      (n)     stub          above Depth, a stub stays until a multiproof opens it
//	    ───────┌──┴──┐──────────────
//	         stub    (n)               changed or grafted in the last Window blocks
type Retention struct {
	// Depth is the number of inner nodes of each path that stay. If it is 0, only the root's hash
	// stays.
	Depth int
	// Window is the number of blocks that nodes below Depth stay after they were changed or
	// grafted. A path in a multiproof younger than Window always leads to nodes that are in the
	// tree.
	Window int
	// Budget returns the number of bytes that the tree should take. While the tree takes more, the
	// window is shorter. If Budget is nil, there is no limit.
	Budget func() int64
	// Keep reports whether a subtree below Depth, with keys in [first, after) (nil: open), stays
	// whatever its age. It is called for each subtree that would become a stub, and must return
	// true if the subtree has a key to keep. Shed holds the lock of the tree meanwhile, so it must
	// be fast, and must not call the tree. It may be nil.
	Keep func(first, after []byte) bool
	// Prefer is like Keep, but is called only while the tree is within Budget. Without a Budget it
	// has no effect, since nothing would limit the nodes that stay.
	Prefer func(first, after []byte) bool
	// Least returns the number of recent blocks whose changed and grafted nodes stay regardless of
	// Window and Budget: no storage node has them on disk yet, so they could not be fetched again.
	// Shed calls it once per block, while it holds the lock of the tree. If Least is nil, the
	// number is 0.
	Least func() int
}

// retention is the state of a tree's Retention. It is guarded by tree.mu.
type retention struct {
	Retention
	blocks []uint32 // epochs of the versions on which Shed was called, oldest first
	window int      // current window, in blocks
	cursor []byte   // where the next sweep begins; nil: at the least key
}

// EnableRetention determines which nodes Shed keeps. It must be called at most once.
func (p *Partial) EnableRetention(r Retention) {
	t := p.v.tree
	t.mu.Lock()
	defer t.mu.Unlock()
	t.retention = &retention{Retention: r, window: r.Window}
}

const (
	// minVisits is the least number of nodes that a sweep visits.
	minVisits = 1024
	// lapsOfWindow is the number of times per window that sweeps visit each node of the latest
	// version, while the tree is within its budget. With more laps, more nodes are visited too
	// early, which is most of the cost of a sweep; with fewer, old nodes stay longer.
	lapsOfWindow = 1
)

// Shed must be called exactly once after each block, even if the block changed nothing: Window
// counts calls. p is the state after the block. Shed returns a version of the same state without
// some of the nodes that Retention does not keep. Each call visits a part of the nodes in memory,
// so that a few calls visit all. History is linear, as for Apply: otherwise the error is
// ErrNotLatest.
func (p *Partial) Shed() (*Partial, error) {
	v, t := p.v, p.v.tree
	t.mu.Lock()
	defer t.mu.Unlock()
	v.inUse()
	defer runtime.KeepAlive(v)
	if err := t.rewind(v); err != nil {
		return nil, fmt.Errorf("avlstar: shed: %w", err)
	}
	next := t.shed(v)
	if next == v {
		v.Retain()
	}
	return &Partial{next}, nil
}

// shed returns v, or a version with fewer nodes in memory. The caller holds t.mu.
func (t *tree) shed(v *Version) *Version {
	r := t.retention
	if r == nil || v.epoch+1 >= freed {
		return v
	}
	laps, within := lapsOfWindow, r.Budget != nil
	if r.Budget != nil && t.resident() > r.Budget() {
		r.window /= 2
		laps *= 4
		within = false
	} else {
		r.window = min(r.window+1, r.Window)
	}
	least := 0
	if r.Least != nil {
		least = r.Least()
	}
	r.blocks = append(slices.DeleteFunc(r.blocks, func(epoch uint32) bool { return epoch > v.epoch }), v.epoch)
	if n, most := len(r.blocks), max(r.Window, least)+1; n > most {
		r.blocks = slices.Delete(r.blocks, 0, n-most)
	}
	at := len(r.blocks) - 1 - max(r.window, least)
	if at < 0 { // the nodes of earlier blocks are not known
		return v
	}
	next := t.sameState(v)
	next.shed, next.full = true, nil
	a := newAllocator(&t.mu.memory, false)
	s := shedding{sweep: sweep{edit: t.newEdit(v, next, nil, nil, &a), from: r.cursor, newest: r.blocks[at]}, Retention: r.Retention}
	if !within {
		s.Prefer = nil
	}
	s.stubs, s.left = true, minVisits+laps*int(t.latest())/(r.Window+1)
	next.root = s.walk(between{n: v.root, edge: r.cursor != nil}, 0).n
	r.cursor = bytes.Clone(s.to)
	if !t.keep(s.edit, next, s.pages > 0) {
		return v
	}
	t.tidy(len(s.dead))
	return next
}

// shedding is a sweep for Retention.
type shedding struct {
	sweep
	Retention
	left int // number of nodes that it may still visit
}

// between is a subtree, and the inner nodes that have the keys at its ends; 0 means an open end.
type between struct {
	n, first, after ref
	edge            bool // whether it may contain keys below the cursor
}

// keyAt returns the key of inner node n, or nil if n is 0.
func (s *shedding) keyAt(n ref) []byte {
	if n == 0 {
		return nil
	}
	return s.keyOf(n)
}

// keeps reports whether the subtree is to be kept whatever its age.
func (s *shedding) keeps(at between) bool {
	if s.Keep == nil && s.Prefer == nil {
		return false
	}
	first, after := s.keyAt(at.first), s.keyAt(at.after)
	return s.Keep != nil && s.Keep(first, after) || s.Prefer != nil && s.Prefer(first, after)
}

// walk sweeps a subtree, which has depth inner nodes above it. It reads only the link and the epoch
// of most nodes: keys are compared only along the cursor.
func (s *shedding) walk(at between, depth int) swept {
	n := at.n
	kept := swept{n: n}
	switch {
	case n == 0:
		return kept
	case s.left <= 0:
		if s.to == nil {
			s.to = s.keyAt(at.first)
		}
		return kept
	}
	s.left--
	// A node is as new as its newest descendant.
	if depth >= s.Depth && s.epochOf(n) <= s.newest && !s.keeps(at) {
		s.drop(n)
		s.pages++
		return swept{other: true, least: true}
	}
	if n.isLeaf() {
		return kept
	}
	c := s.link(n).child
	s.prefetch(c[right])
	l, onRight := swept{n: c[left]}, false
	if at.edge && bytes.Compare(s.keyOf(n), s.from) <= 0 { // the left side was swept earlier
		onRight = true
	} else {
		l = s.walk(between{c[left], at.first, n, at.edge}, depth+1)
	}
	r := s.walk(between{c[right], n, at.after, onRight}, depth+1)
	return s.join(n, l, r)
}

// prefetch fetches the parts of a node that walk reads into the cache.
func (s *shedding) prefetch(n ref) {
	switch {
	case n.isLeaf():
		prefetchRecord(&s.record(n)[0])
	case n != 0:
		prefetchNode(s.link(n), s.image(n))
	}
}
