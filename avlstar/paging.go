package avlstar

import (
	"bytes"
	"fmt"
	"iter"
	"runtime"
	"sync/atomic"
)

// Paging lets a tree be larger than memory. Pages, subtrees of at most 4 KiB of leaf records, leave
// memory when they are stored and were not changed lately; only their stubs stay. When they are
// needed, they are read from Pages and verified; the results are the same
// (docs/decisions/0011-pages-leave-memory.md).
//
//	     root                     always in memory: what lies above pages
//	 ┌────┴────┐
//	…       ┌──┴──┐
//	      page   page             a stub; or nodes in memory, where it was changed since it was stored, or lately
//
// Readers use a page as it is, a Page. Only Apply copies nodes of a page back into the tree, and
// only those on the way to its changes: if one key of a page changes, the rest stays out of memory.
type Paging struct {
	Pages Pages
	// Budget returns how many bytes the tree should take. Apply calls it. What lies above pages,
	// what is not stored yet, and what only older versions have are not evicted, so they may exceed
	// it.
	Budget func() int64
	// Evicted is called by Apply for each page that leaves memory. It may be nil.
	Evicted func(page Stub)
}

// paging is the state of a tree's Paging.
type paging struct {
	Paging
	stored atomic.Uint32 // epoch of the newest version that is stored completely

	// Guarded by tree.mu, but loaded.
	cursor  []byte        // where the next sweep begins
	age     uint32        // the current age, in versions, below which pages stay
	idle    uint32        // the value of stored when a whole lap freed nothing
	resting bool          // no sweep until more is stored
	evicted uint64        // pages
	loaded  atomic.Uint64 // pages, by Apply
	runs    map[Hash]*run // pages for the block that is being made, by their hashes

	ahead atomic.Pointer[map[Hash]*Page] // see ReadAhead; what it points to does not change
}

// EnablePaging lets pages of v's tree leave memory, from the next Apply on. It must be called at
// most once, and not concurrently with Stored. Of a tree that Apply made, nothing counts as stored
// until Stored is called; a tree made from leaves or chunks counts as stored.
func (v *Version) EnablePaging(p Paging) {
	v.tree.mu.Lock()
	defer v.tree.mu.Unlock()
	v.tree.paging = &paging{Paging: p, age: minAge}
}

// Stored reports that Pages can return every page of v from now on, at least while v, or a later
// version made before this call, is referenced. v itself may have been released.
func (v *Version) Stored() {
	p := v.tree.paging
	if p == nil {
		return
	}
	for {
		old := p.stored.Load()
		if v.epoch <= old || p.stored.CompareAndSwap(old, v.epoch) {
			return
		}
	}
}

// PageError: a page could not be read.
type PageError struct {
	Page Subtree
	Err  error
}

func (e *PageError) Error() string {
	from := "the first key"
	if e.Page.First != nil {
		from = "key " + abbreviate(e.Page.First)
	}
	return fmt.Sprintf("the page that begins with %s, with root %s, cannot be read: %v", from, e.Page.Hash, e.Err)
}

func (e *PageError) Unwrap() error { return e.Err }

// pageError returns a *PageError that may outlive the tree, in whose memory the keys of s are.
func pageError(s Subtree, err error) error {
	s.First, s.After = bytes.Clone(s.First), bytes.Clone(s.After)
	return &PageError{s, err}
}

// fetchPage reads the subtree s.
func (t *tree) fetchPage(s Subtree) (*Page, error) {
	if ahead := t.paging.ahead.Load(); ahead != nil {
		if page, ok := (*ahead)[s.Hash]; ok {
			return page, nil
		}
	}
	page, err := t.paging.Pages.Page(s)
	if err != nil {
		return nil, pageError(s, err)
	}
	return page, nil
}

// page reads the page s, a stub on the way to key.
func (v *Version) page(s Subtree, key []byte) (*Page, error) {
	if v.tree.paging == nil {
		return nil, &MissingNodeError{Node: s.Stub, Key: bytes.Clone(key)}
	}
	return v.tree.fetchPage(s)
}

// pageOn reads the page on the way to key; nil without an error if there is none. If v has no
// stubs, it does not look at the tree, on which another goroutine may be enabling paging.
func (v *Version) pageOn(key []byte) (*Page, error) {
	if !v.partial {
		return nil, nil
	}
	s, n := v.locate(key, false)
	if n != 0 || s.Stub == emptyStub {
		return nil, nil
	}
	return v.page(s, key)
}

// pageBelow reads the page that is the child of inner node n on one side, of which only a stub is
// in memory; n 0: the root.
func (v *Version) pageBelow(n ref, side int) (*Page, error) {
	if n == 0 {
		return v.page(Subtree{Stub: v.top}, nil)
	}
	key := v.keyOf(n)
	s, _ := v.locate(key, side == left)
	if side == left {
		key = s.First // the way to the node's own key leads to the right
	}
	return v.page(s, key)
}

// Stubs yields the pages that are not in memory, in key order, from the one to which key from leads
// (nil: the first). It reads none. First and After are v's memory, valid until it is released.
func (v *Version) Stubs(from []byte) iter.Seq[Subtree] {
	return func(yield func(Subtree) bool) {
		v.inUse()
		defer runtime.KeepAlive(v)
		if v.partial {
			v.stubs(v.root, Subtree{Stub: v.top}, from, yield)
		}
	}
}

// stubs yields those of the subtree s, which is n.
func (v *Version) stubs(n ref, s Subtree, from []byte, yield func(Subtree) bool) bool {
	switch {
	case n.isLeaf() || s.After != nil && bytes.Compare(s.After, from) <= 0:
		return true
	case n == 0:
		return s.Stub == emptyStub || yield(s)
	}
	key, l, i := v.keyOf(n), v.link(n), v.image(n)
	return v.stubs(l.child[left], Subtree{First: s.First, After: key, Stub: i.stub(left)}, from, yield) &&
		v.stubs(l.child[right], Subtree{First: key, After: s.After, Stub: i.stub(right)}, from, yield)
}

// locate returns the leaf or the stub on the way to key or, if before is set, to the keys less than
// it; n is 0 for a stub.
func (v *Version) locate(key []byte, before bool) (s Subtree, n ref) {
	s, n = Subtree{Stub: v.top}, v.root
	for n.isInner() {
		side := right
		at := v.keyOf(n)
		if c := bytes.Compare(key, at); c < 0 || c == 0 && before {
			side = left
		}
		if side == left {
			s.After = at
		} else {
			s.First = at
		}
		s.Stub = v.image(n).stub(side)
		n = v.link(n).child[side]
	}
	return s, n
}
