package avlstar

import (
	"bytes"
	"fmt"
	"iter"
	"runtime"
	"sync/atomic"
)

// Paging lets a tree be larger than memory. Pages are subtrees of at most 4 KiB of leaf records. A
// page leaves memory when it is stored and was not changed recently; only its stub stays. When a
// page is needed, it is read from Pages and verified; results are the same as without Paging
// (docs/decisions/0011-pages-leave-memory.md).
//
//	     root                     always in memory: nodes above pages
//	 ┌────┴────┐
//	…       ┌──┴──┐
//	      page   page             a stub; or nodes in memory, if it is not stored yet or changed recently
//
// Readers use a page as a Page. Only Apply and Replay copy nodes of a page back into the tree, and
// only those on the paths to their changes: if one key of a page changes, the rest stays out of
// memory. A tree that has only a range of the keys (FromRangePaged) keeps the paths to the edges of
// that range in memory, down to its pages there, and the stubs of the boundary proof outside: those
// are not pages.
type Paging struct {
	Pages Pages
	// Budget returns the number of bytes that the tree should take. Apply and Replay call it. Nodes
	// above pages, nodes that are not stored yet, and nodes of older versions are not evicted, so
	// the tree may exceed the budget.
	Budget func() int64
	// Apply and Replay call Evicted for each page that leaves memory. It may be nil.
	Evicted func(page Stub)
}

// paging is the state of a tree's Paging.
type paging struct {
	Paging
	stored atomic.Uint32 // epoch of the newest version that is stored completely

	// Guarded by tree.mu, except loaded.
	cursor  []byte        // where the next sweep begins
	age     uint32        // current minimum age, in versions, of pages that are evicted
	idle    uint32        // value of stored when a sweep of the whole tree freed nothing
	resting bool          // no sweep until more is stored
	evicted uint64        // number of pages
	loaded  atomic.Uint64 // number of pages that Apply and Replay read
	runs    map[Hash]*run // pages for the current block, by hash

	ahead atomic.Pointer[map[Hash]*Page] // see ReadAhead; the map is never modified

	// See Fill.
	filling  atomic.Pointer[[]*run] // what Fill has read and no Apply has taken yet; nil: nothing
	tooLarge atomic.Bool            // an Apply could not take it
	// full is the epoch of a version without stubs, after which no page was evicted; 0: none. A
	// version that was just made from a page list has epoch 0, and stubs.
	full atomic.Uint32
}

// EnablePaging lets pages of v's tree leave memory, from the next Apply or Replay on. It must be
// called at most once, and not concurrently with Stored. Versions that Apply or Replay made count
// as stored only after Stored is called; a tree made from leaves or chunks counts as stored.
func (v *Version) EnablePaging(p Paging) {
	v.tree.mu.Lock()
	defer v.tree.mu.Unlock()
	v.tree.paging = &paging{Paging: p, age: minAge}
}

// Stored tells the tree that Pages can return every page of v from now on, at least while v, or a
// later version made before this call, is referenced. v itself may have been released.
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

// PageError reports that a page could not be read.
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

// pageError returns a *PageError that may outlive the tree. It copies the keys of s, which are in
// the tree's memory.
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

// isAway reports whether the stub s of v is a page, which can be read. In a tree that has only a
// range of the keys, a stub is a page if it can have keys of the range: Replay leaves no other stub
// there (KeyRange.reaches). Subtrees that become pages have only keys of the range (sweep.walk,
// FromRangePageList). Such a page reaches the edge if no key of the range lies between, for example
// because an update deleted them.
func (v *Version) isAway(s Subtree) bool {
	return v.tree.paging != nil && (v.full == nil || v.full.Overlaps(KeyRange{s.First, s.After}))
}

// page reads the page s, a stub on the path to key.
func (v *Version) page(s Subtree, key []byte) (*Page, error) {
	if !v.isAway(s) {
		return nil, &MissingNodeError{Node: s.Stub, Key: bytes.Clone(key)}
	}
	return v.tree.fetchPage(s)
}

// pageOn reads the page on the path to key; it returns nil without an error if there is none. If v
// has no stubs, it does not read v.tree.paging, which another goroutine may be setting.
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

// pageBelow reads the page that is the child of inner node n on one side and only a stub in memory.
// If n is 0, it reads the root.
func (v *Version) pageBelow(n ref, side int) (*Page, error) {
	if n == 0 {
		return v.page(Subtree{Stub: v.top}, nil)
	}
	key := v.keyOf(n)
	s, _ := v.locate(key, side == left)
	if side == left {
		key = s.First // the path to the node's own key leads to the right
	}
	return v.page(s, key)
}

// Stubs yields the pages that are not in memory, and the missing subtrees of a Partial, in key
// order, from the one to which key from leads (nil: the first). It reads none of them. First and
// After are memory of v, valid until v is released.
func (v *Version) Stubs(from []byte) iter.Seq[Subtree] {
	return func(yield func(Subtree) bool) {
		v.inUse()
		defer runtime.KeepAlive(v)
		if v.partial {
			v.stubs(v.root, Subtree{Stub: v.top}, from, yield)
		}
	}
}

// stubs yields the pages that are not in memory in the subtree s, whose root is n.
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

// locate returns the leaf or the stub on the path to key or, if before is set, to the keys less
// than key; n is 0 for a stub.
func (v *Version) locate(key []byte, before bool) (s Subtree, n ref) {
	s, n = Subtree{Stub: v.top}, v.root
	var first, after, up ref
	prefix, side := prefixOf(key), left
	for n.isInner() {
		l := v.link(n)
		up, side = n, right
		if v.less(key, prefix, n, l) || before && prefix == l.prefix && bytes.Equal(key, v.keyOf(n)) {
			side, after = left, n
		} else {
			first = n
		}
		n = l.child[side]
	}
	// The loop read only links, with few exceptions: these three nodes are enough for the rest.
	if up != 0 {
		s.Stub = v.image(up).stub(side)
	}
	if first != 0 {
		s.First = v.keyOf(first)
	}
	if after != 0 {
		s.After = v.keyOf(after)
	}
	return s, n
}
