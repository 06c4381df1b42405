package avlstar

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
)

// Retention says what a Partial that gets bags keeps in memory: a validator has the upper tree, and
// below it what was needed lately (RainBlock, section 4.1). Everything else becomes a stub again.
//
//	depth 0          (n)               always in memory
//	              ┌───┴───┐
//	depth 2      (n)     stub          above Depth, a stub stays until a bag opens it
//	    ───────┌──┴──┐──────────────
//	         stub    (n)               changed or grafted in the last Window blocks
type Retention struct {
	// Depth is how many inner nodes of each way stay; 0: the root's hash is all that stays.
	Depth int
	// Window is how many blocks that stays which was changed or grafted below Depth. A path in a
	// bag that is younger than that always leads to what the tree has.
	Window int
	// Budget returns how many bytes the tree should take. While it takes more, the window is
	// shorter. nil: no limit.
	Budget func() int64
	// Keep reports whether a subtree below Depth stays whatever its age, with keys in [first,
	// after); nil is open. It is asked for each subtree that would become a stub, and must be true
	// for all that hold a key to keep. It may be nil.
	Keep func(first, after []byte) bool
	// Prefer is like Keep, for what stays only while the tree is within Budget. Without a Budget,
	// it does nothing, since what stays would have no limit.
	Prefer func(first, after []byte) bool
	// Least returns the number of last blocks of which everything stays that they changed or
	// grafted, whatever Window and Budget say: nobody else has that on disk yet, so it could not be
	// fetched again. It is called once for each block, by Shed, under the lock of the tree. nil: 0.
	Least func() int
}

// retention is the state of a tree's Retention. It is guarded by tree.mu.
type retention struct {
	Retention
	blocks []uint32 // epochs of the versions that Shed was called on, oldest first
	window int      // the current one
	cursor []byte   // where the next sweep begins; nil: at the least key
}

// EnableRetention says what Shed keeps. It must be called at most once.
func (p *Partial) EnableRetention(r Retention) {
	t := p.v.tree
	t.mu.Lock()
	defer t.mu.Unlock()
	t.retention = &retention{Retention: r, window: r.Window}
}

const (
	// minVisits is how many nodes a sweep visits at least.
	minVisits = 1024
	// lapsOfWindow is how many times in a window the sweeps come to each node, while the budget is
	// kept. More of them visit more nodes that are too young, which is most of what a sweep costs;
	// with fewer, what has aged stays longer.
	lapsOfWindow = 1
)

// Shed ends a block, so it is to be called once for each, whether it changed anything or not, but
// not again for the same one: Window counts calls. It returns a version like p, the state after the
// block, without some of what Retention does not keep. Each call visits a part of what is in
// memory, so that a few calls come to all of it. History is linear, as for Apply: ErrNotLatest.
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

// shed returns v, or a version that has less in memory. The caller holds t.mu.
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
	if at < 0 { // of blocks before these it is not known which nodes they made
		return v
	}
	next := t.sameState(v)
	next.shed = true
	a := newAllocator(&t.mu.memory, false)
	s := shedding{sweep: sweep{edit: t.newEdit(v, next, nil, nil, &a), from: r.cursor, newest: r.blocks[at]}, Retention: r.Retention}
	if !within {
		s.Prefer = nil
	}
	s.stubs, s.left = true, minVisits+laps*int(t.mu.nodes+t.mu.leaves)/(r.Window+1)
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
	left int // nodes that it may still visit
}

// between is a subtree and the inner nodes that have the keys at its ends; 0: it is open.
type between struct {
	n, first, after ref
	edge            bool // keys below the cursor may be in it
}

// keyAt returns the key of inner node n, nil for 0.
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

// walk sweeps a subtree, which has depth inner nodes above it. Of most nodes it reads link and
// epoch only: keys are compared along the cursor alone.
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
	if at.edge && bytes.Compare(s.keyOf(n), s.from) <= 0 { // the left side was swept before
		onRight = true
	} else {
		l = s.walk(between{c[left], at.first, n, at.edge}, depth+1)
	}
	r := s.walk(between{c[right], n, at.after, onRight}, depth+1)
	return s.join(n, l, r)
}

// prefetch fetches what walk reads of a node.
func (s *shedding) prefetch(n ref) {
	switch {
	case n.isLeaf():
		prefetchRecord(&s.record(n)[0])
	case n != 0:
		prefetchNode(s.link(n), s.image(n))
	}
}
