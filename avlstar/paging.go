package avlstar

import (
	"bytes"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
)

// Paging lets a tree be larger than its memory: subtrees of up to 4 KiB of leaf records (pages, design section 7) that are stored and were
// not changed lately leave it, and only their stubs stay. What needs them gets them from Pages, verified; results are the same.
//
//	     root                     always in memory: what lies above pages
//	 ┌────┴────┐
//	…       ┌──┴──┐
//	      page   page             a stub; or nodes in memory, where it was changed since it was stored, or lately
//
// Readers take a page as it is, a Page; only Apply puts nodes of it back into the tree: those on the way to its changes, so that
// of a page in which one key changes the rest stays away.
type Paging struct {
	Pages Pages
	// Budget is asked by Apply how many bytes the tree should take. What lies above pages, what is not stored yet and what only
	// older versions have stays beyond it.
	Budget func() int64
	// Evicted is told by Apply of each page that leaves memory; nil: nobody is.
	Evicted func(page Stub)
}

// paging is the state of a tree's Paging.
type paging struct {
	Paging
	stored atomic.Uint32 // epoch of the newest version of which everything is stored

	// What follows belongs to who holds tree.mu.
	cursor  []byte        // where the sweep goes on
	age     uint32        // pages younger than so many versions stay, for now
	idle    uint32        // stored when a whole lap gained nothing
	resting bool          // no sweep until more is stored
	evicted uint64        // pages
	loaded  atomic.Uint64 // pages, by Apply
	runs    map[Hash]*run // pages for the block that is made, by their hashes
}

// EnablePaging lets pages of v's tree leave its memory, from the next Apply on. It must not be called again, nor together with Stored.
// Of a tree made by Apply nothing is taken for stored before Stored says so, one from leaves or chunks is.
func (v *Version) EnablePaging(p Paging) {
	v.tree.mu.Lock()
	defer v.tree.mu.Unlock()
	v.tree.paging = &paging{Paging: p, age: minAge}
}

// Stored says that everything in v can be had from Pages from now on, at least as long as v is referenced.
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

// Err returns the first failure to bring back a page that a reader of v met; that reader saw a key or a range as absent. nil in
// a tree without paging.
func (v *Version) Err() error {
	if err := v.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// PageError says that a page could not be brought back.
type PageError struct {
	Page Subtree
	Err  error
}

func (e *PageError) Error() string {
	from := "the first key"
	if e.Page.First != nil {
		from = "key " + abbreviate(e.Page.First)
	}
	return fmt.Sprintf("the page from %s on, with root %s, cannot be read: %v", from, e.Page.Hash, e.Err)
}

func (e *PageError) Unwrap() error { return e.Err }

// fetchPage brings back the subtree s.
func (t *tree) fetchPage(s Subtree) (*Page, error) {
	page, err := t.paging.Pages.Page(s)
	if err != nil {
		return nil, &PageError{s, err}
	}
	return page, nil
}

// page returns the page s for a reader. Where it fails, Err says so.
func (v *Version) page(s Subtree) *Page {
	p, err := v.tree.fetchPage(s)
	if err != nil {
		v.failed.CompareAndSwap(nil, &err)
		return nil
	}
	return p
}

// paged says whether stubs of v can be brought back. Where there are none, it does not look at the tree, which another goroutine may
// just enable paging on.
func (v *Version) paged() bool { return v.partial && v.tree.paging != nil }

// pageOn returns the page on the way to key; nil where there is none, or it cannot be had.
func (v *Version) pageOn(key []byte) *Page {
	if !v.paged() {
		return nil
	}
	s, n := v.locate(key, false)
	if n != 0 || s.Stub == emptyStub {
		return nil
	}
	return v.page(s)
}

// pageBelow returns the page that is the child of inner node n on one side.
func (v *Version) pageBelow(n ref, side int) *Page {
	if !v.paged() {
		return nil
	}
	s, _ := v.locate(v.keyOf(n), side == left)
	return v.page(s)
}

// locate returns the leaf or the stub on the way to key or, where before is set, to the keys less than it; n is 0 for a stub.
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

// maxBrought bounds the memory of the pages that are ready before a block is made.
const maxBrought = 4096

// bring gets the pages that ops lead to, in parallel, before the walk needs them one after another. Failures are left to that.
func (t *tree) bring(v *Version, ops []op, changes []Change) {
	p := t.paging
	if p == nil || !v.partial {
		return
	}
	var wanted []Subtree // maxBrought at most: the walk gets what else it needs
	var after []byte     // of the last stub
	for _, o := range ops {
		if len(wanted) == maxBrought {
			break
		}
		key := changes[o.i].Key
		if len(wanted) > 0 && (after == nil || bytes.Compare(key, after) < 0) {
			continue
		}
		if v.find(key) != 0 {
			continue
		}
		if s, n := v.locate(key, false); n == 0 && s.Stub != emptyStub {
			wanted, after = append(wanted, s), s.After
		}
	}
	if len(wanted) == 0 {
		return
	}
	p.runs = make(map[Hash]*run, len(wanted))
	var (
		mu   sync.Mutex
		wg   sync.WaitGroup
		next atomic.Int64
	)
	for range min(4*runtime.GOMAXPROCS(0), len(wanted)) { // they wait for the disk
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(wanted); i = int(next.Add(1)) - 1 {
				page, err := t.fetchPage(wanted[i])
				if err != nil {
					return
				}
				r := page.nodes()
				mu.Lock()
				p.runs[wanted[i].Hash] = r
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	p.loaded.Add(uint64(len(p.runs)))
}
