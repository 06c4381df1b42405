package avlstar

import (
	"bytes"
	"fmt"
	"math"
	"runtime"
)

// A tree that was made from its page list can get its pages back into memory while it is used. Fill
// reads pages while blocks are made, and the next Apply copies all of their nodes into the tree, in
// a version of its own as for an eviction (sweep). When no page is away any more, the tree is like
// one that was made from its leaves.
//
//	Fill   ──pages 1─┐     ┌─pages 2─┐
//	Apply            └1,block        └2,block

// Fill reads pages of v that are not in memory, in key order from the one to which key from leads
// (nil: the first), with read and until they have at least most bytes of leaf records. The next
// Apply takes them into memory, except for those that have changed since. Fill returns the key with
// which to continue, nil after the last page. If it reads nothing because no Apply has taken the
// pages of the last call, it returns from. If from is nil and no page is away, full is true, and
// the versions that Apply makes from v have no stubs.
//
// The tree's budget must not be limited. Only one Fill of a tree may run at a time. An error is
// that of read, and what was read before it counts; or ErrTooLarge if the pages of an earlier call
// did not fit into the tree.
func (v *Version) Fill(from []byte, most uint64, read func(Subtree) (*Page, error)) (next []byte, full bool, err error) {
	if !v.partial { // another goroutine may be enabling paging
		return nil, true, nil
	}
	p := v.tree.paging
	switch {
	case p.tooLarge.Load():
		return from, false, fmt.Errorf("avlstar: fill: %w", ErrTooLarge)
	case p.filling.Load() != nil:
		return from, false, nil
	}
	v.inUse()
	defer runtime.KeepAlive(v)
	var (
		runs []*run
		sum  uint64
	)
	away := false
	for s := range v.Stubs(from) {
		if away = true; sum >= most && len(runs) > 0 {
			next = bytes.Clone(s.First)
			break
		}
		page, failed := read(s)
		if failed != nil {
			next, err = bytes.Clone(s.First), pageError(s, failed)
			break
		}
		runs = append(runs, page.nodes())
		sum += s.Bytes
	}
	if len(runs) > 0 {
		p.filling.Store(&runs)
	}
	if full = from == nil && !away; full {
		p.full.Store(v.epoch)
	}
	return next, full, err
}

// filler copies pages into a version.
type filler struct {
	*edit
	runs  []*run // in key order; those before the current position were copied, or have changed
	pages uint64
}

// fill returns a version of the same state as v with the pages that Fill has read; the caller
// releases it. It returns v itself if there are none, or if they do not fit. The caller holds t.mu.
func (t *tree) fill(v *Version) *Version {
	p := t.paging
	if p == nil || !v.partial {
		return v
	}
	var runs []*run
	if read := p.filling.Swap(nil); read != nil {
		runs = *read
	}
	// Versions before the one that has no stubs are not in use any more, or are not the latest.
	full := p.full.Load() != 0 && v.epoch >= p.full.Load()
	if len(runs) == 0 && !full || !v.root.isInner() || v.epoch+1 >= freed {
		return v
	}
	nodes, pages := needsOfRuns(runs, v)
	if t.roomOf(nodes, pages) != nil {
		t.reclaim(math.MaxInt, new(Reclaimed))
		if t.roomOf(nodes, pages) != nil {
			p.tooLarge.Store(true)
			return v
		}
	}
	next := t.sameState(v)
	next.partial = !full
	a := newAllocator(&t.mu.memory, false)
	f := filler{edit: t.newEdit(v, next, nil, nil, &a), runs: runs}
	f.stubs = true
	next.root, _ = f.walk(next.root, next.top, nil)
	p.loaded.Add(f.pages)
	if !t.keep(f.edit, next, f.pages > 0 || full) {
		return v
	}
	return next
}

// needsOfRuns returns the maximum number of nodes and of the memory's pages of records that copying
// runs into v can need: their own, and copies of the paths to them.
func needsOfRuns(runs []*run, v *Version) (nodes, pages int) {
	eighths := 0
	for _, r := range runs {
		nodes += r.len() + int(v.top.Height)
		for i := range r.len() {
			l := r.leaf(i)
			eighths += pageEighths(int(RecordBytes(len(l.Key), len(l.Value))))
		}
	}
	return nodes, eighths/8 + 1
}

// below reports whether the next page begins below key after (nil: it is below).
func (f *filler) below(after []byte) bool {
	return len(f.runs) > 0 && (after == nil || bytes.Compare(f.runs[0].leaf(0).Key, after) < 0)
}

// walk copies the pages that begin below key after into the subtree n, whose stub is s. It returns
// the subtree's root, and its least leaf if that was copied.
func (f *filler) walk(n ref, s Stub, after []byte) (root, least ref) {
	if n.isInner() {
		return f.walkInner(n, after)
	}
	for root = n; f.below(after); f.runs = f.runs[1:] {
		if r := f.runs[0]; root == 0 && r.root.Stub == s {
			root, least = f.copyPath(r, r.root.n, nil, true)
			f.pages++
		}
	}
	return root, least
}

func (f *filler) walkInner(n ref, after []byte) (root, least ref) {
	key, was := f.keyOf(n), f.link(n).child
	now, bearer := was, ref(0)
	if f.below(key) {
		now[left], least = f.walk(was[left], f.image(n).stub(left), key)
	}
	if f.below(after) {
		now[right], bearer = f.walk(was[right], f.image(n).stub(right), after)
	}
	if now == was {
		return n, 0
	}
	n = f.own(n)
	f.link(n).child = now
	if bearer != 0 {
		i := f.image(n)
		f.unless(i.leaf(), bearer)
		i.setLeaf(bearer)
	}
	return n, least
}
