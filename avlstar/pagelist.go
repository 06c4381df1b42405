package avlstar

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"runtime"
)

// PageStub is an entry of a page list. The page list of a version has the stubs of all its pages,
// in key order. It determines all nodes above pages, so FromPageList rebuilds a tree with Paging
// and reads no leaf.
//
//	       (n 3)                page list of the tree     First  Boundary
//	  ┌──────┴──────┐                         page A     -      -
//	page A        (s 2)                       page B     n      3
//	          ┌─────┴─────┐                   page C     s      2
//	        page B      page C
type PageStub struct {
	First    []byte // first key of the page; nil: the page has the least key of the tree
	Boundary uint8  // height of the inner node with the key First; 0 if First is nil
	Stub            // the zero Stub: no page begins with First any more
}

// Gone reports whether no page begins with First any more.
func (p PageStub) Gone() bool { return p.Stub == Stub{} }

// HasPageList reports whether v has nodes above pages. A tree of a single page has no page list.
func (v *Version) HasPageList() bool {
	return v.isAbovePages(v.all())
}

// PageList yields the changes from the page list of base to that of v. Some of the pages that it
// yields may not have changed; each key is yielded at most once, in any order. If base is nil, it
// yields the whole page list of v in key order. Both versions must be of the same tree, referenced,
// and have a page list. It reads no page. First is memory of v or base.
func (v *Version) PageList(base *Version) iter.Seq[PageStub] {
	return func(yield func(PageStub) bool) {
		v.inUse()
		defer runtime.KeepAlive(v)
		// The first page is always yielded: only its First does not follow from its leaves.
		o := pageLister{v: v, base: base, yield: yield}
		if base == nil {
			o.pages(v.all(), rooted{}, 0, true)
			return
		}
		base.inUse()
		defer runtime.KeepAlive(base)
		if o.compare(v.all(), base.all(), 0, true) && base.leastIsPage() && !v.leastIsPage() {
			yield(PageStub{})
		}
	}
}

// rooted is a subtree of a version with its root; the zero value: none.
type rooted struct {
	Subtree
	n ref
}

// all returns the whole tree.
func (v *Version) all() rooted { return rooted{Subtree{Stub: v.top}, v.root} }

// childrenOf returns the children of the inner node at p.
func (v *Version) childrenOf(p rooted) (l, r rooted) {
	l.Subtree, r.Subtree = splitAt(&v.view, p.Subtree, p.n)
	l.n, r.n = v.link(p.n).child[left], v.link(p.n).child[right]
	return l, r
}

// leastIsPage reports whether a page has the least key. In a tree that has only a range of the
// keys, the least key may be outside.
func (v *Version) leastIsPage() bool {
	p := v.all()
	for v.isAbovePages(p) {
		p, _ = v.childrenOf(p)
	}
	return v.isPageAt(p.n, p.Subtree)
}

// isAbovePages reports whether there is an inner node at p that is not in a page.
func (v *Version) isAbovePages(p rooted) bool { return p.n.isInner() && !v.isPageAt(p.n, p.Subtree) }

// abovePages returns the inner node of v that has this key, if it is above pages. The first attempt
// is guess.
func (v *Version) abovePages(key []byte, guess rooted) rooted {
	if v.isAbovePages(guess) && bytes.Equal(v.keyOf(guess.n), key) {
		return guess
	}
	p := v.all()
	for v.isAbovePages(p) {
		l, r := v.childrenOf(p)
		switch c := bytes.Compare(key, v.keyOf(p.n)); {
		case c == 0:
			return p
		case c < 0:
			p = l
		default:
			p = r
		}
	}
	return rooted{}
}

// pageLister compares the nodes above pages of two versions. Its walks skip subtrees that are the
// same in both, and return false if yield did.
type pageLister struct {
	v, base *Version // base is nil if all pages are yielded
	yield   func(PageStub) bool
}

// compare yields the changes from was to now, its counterpart. While both versions have an inner
// node with the same key, their children are counterparts. boundary and forced are those of pages.
func (o *pageLister) compare(now, was rooted, boundary uint8, forced bool) bool {
	if !forced && o.same(now, was) {
		return true
	}
	if !o.v.isAbovePages(now) || !o.base.isAbovePages(was) || isPage(now.Stat, o.v.chunkBytes) ||
		!bytes.Equal(o.v.keyOf(now.n), o.base.keyOf(was.n)) {
		return o.pages(now, was, boundary, forced) && o.gone(was, now)
	}
	nowL, nowR := o.v.childrenOf(now)
	wasL, wasR := o.base.childrenOf(was)
	return o.compare(nowL, wasL, boundary, forced) && o.compare(nowR, wasR, now.Height, now.Height != was.Height)
}

// same reports whether the subtrees at now in v and at was in base have the same pages. At an edge
// of the range of a Partial, whether small subtrees are pages also depends on the neighboring keys.
func (o *pageLister) same(now, was rooted) bool {
	return now.Stub == was.Stub && !o.v.crosses(now.Subtree) && !o.base.crosses(was.Subtree)
}

// pages yields the pages below now that are new or begin with the key of a new inner node. boundary
// is the height of the inner node with the key now.First; forced: that node is new. was is the
// counterpart of now in base.
func (o *pageLister) pages(now, was rooted, boundary uint8, forced bool) bool {
	switch {
	case !forced && o.same(now, was):
		return true
	case o.v.isPageAt(now.n, now.Subtree):
		return o.yield(PageStub{now.First, boundary, now.Stub})
	case !now.n.isInner():
		return true // outside of the range of a Partial
	}
	var wasL, wasR rooted
	moved := true
	// In a small subtree at an edge of the range of a Partial, everything counts as new.
	if o.base != nil && !isPage(now.Stat, o.v.chunkBytes) {
		if was = o.base.abovePages(o.v.keyOf(now.n), was); was.n != 0 {
			wasL, wasR = o.base.childrenOf(was)
			moved = was.Height != now.Height
		}
	}
	l, r := o.v.childrenOf(now)
	return o.pages(l, wasL, boundary, forced) && o.pages(r, wasR, now.Height, moved)
}

// gone yields the keys of the nodes below was that are not above pages in v: no page begins with
// them any more. now is the counterpart of was in v.
func (o *pageLister) gone(was, now rooted) bool {
	if o.same(now, was) || !o.base.isAbovePages(was) {
		return true
	}
	key := o.base.keyOf(was.n)
	var nowL, nowR rooted
	if now = o.v.abovePages(key, now); now.n != 0 {
		nowL, nowR = o.v.childrenOf(now)
	} else if !o.yield(PageStub{First: key}) {
		return false
	}
	l, r := o.base.childrenOf(was)
	return o.gone(l, nowL) && o.gone(r, nowR)
}

// isPageAt reports whether the subtree at, whose root is n, is a page of v. In a tree that has only
// a range of the keys, a page has only keys of that range.
func (v *Version) isPageAt(n ref, at Subtree) bool {
	switch {
	case n == 0:
		return at.Stub != emptyStub && v.isAway(at)
	case v.full != nil && n.isLeaf():
		key, _ := v.leaf(n)
		return v.full.Contains(key)
	}
	return isPage(at.Stat, v.chunkBytes) && !v.crosses(at)
}

// crosses reports whether a subtree of a tree that has only a range of the keys is on the path to
// an edge of that range, or outside: only pages of that range are stored.
func (v *Version) crosses(at Subtree) bool {
	return v.full != nil && !v.full.Covers(KeyRange{First: at.First, After: at.After})
}

// errShortPageList: a page list has fewer than two pages.
var errShortPageList = errors.New("a page list of fewer than two pages")

// FromPageList rebuilds a version with Paging from its page list, as PageList(nil) yields it, and
// its number of leaves. No page is read, or in memory. It fails with the error that pages yields,
// or if the pages do not form a tree. The caller must compare the AppHash of the version with a
// trusted one. The number of leaves stays unverified, because no node commits to it.
func FromPageList(chunkBytes, leaves uint64, p Paging, pages iter.Seq2[PageStub, error]) (*Version, error) {
	v, err := fromPageList(chunkBytes, leaves, pages)
	if err != nil {
		return nil, fmt.Errorf("avlstar: tree from a page list: %w", err)
	}
	v.EnablePaging(p)
	return v, nil
}

func fromPageList(chunkBytes, leaves uint64, pages iter.Seq2[PageStub, error]) (*Version, error) {
	if err := checkChunkBytes(chunkBytes); err != nil {
		return nil, err
	}
	s := newPageListStream(chunkBytes)
	first, err := s.placePages(pages)
	switch {
	case err != nil:
		return nil, err
	case s.count < 2:
		return nil, errShortPageList
	case first != nil:
		return nil, fmt.Errorf("it begins with the page of key %s", abbreviate(first))
	}
	v := &Version{chunkBytes: chunkBytes, leaves: s.count, top: emptyStub, partial: true}
	if err := s.joinPlaced(v, false); err != nil {
		return nil, err
	}
	v.leaves = leaves
	return s.tree.publish(v)
}

// FromRangePageList does what FromRangePaged does, from the page list of the result instead of its
// leaves. Errors: ErrOtherState, and that which pages yields, as it is.
func FromRangePageList(
	c Commitment, r KeyRange, boundary *Multiproof, p Paging, pages iter.Seq2[PageStub, error],
) (*Partial, error) {
	v, err := fromRangePageList(c, r, boundary, pages)
	if err != nil {
		return nil, fmt.Errorf("avlstar: tree from the page list of a range: %w", err)
	}
	v.EnablePaging(p)
	return &Partial{v}, nil
}

func fromRangePageList(
	c Commitment, r KeyRange, boundary *Multiproof, pages iter.Seq2[PageStub, error],
) (*Version, error) {
	before, behind, err := outsideOf(c, r, boundary)
	if err != nil {
		return nil, err
	}
	s := newPageListStream(c.ChunkBytes)
	if err := s.placeBoundary(before); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrOtherState, err)
	}
	var unread error
	first, err := s.placePages(func(yield func(PageStub, error) bool) {
		for p, err := range pages {
			switch unread = err; {
			case err != nil:
			case p.First == nil && len(before) > 0 || p.First != nil && !r.Contains(p.First):
				err = fmt.Errorf("a page that begins with key %s is not in the range", abbreviate(p.First))
			}
			if !yield(p, err) {
				return
			}
		}
	})
	if unread != nil {
		return nil, unread
	}
	if err == nil {
		err = s.placeBoundary(behind)
	}
	if err == nil && s.count < 2 {
		err = errShortPageList
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrOtherState, err)
	}
	return s.publishRange(c, r, before, behind, first)
}

// newPageListStream returns a stream to which only pages and boundary items are added.
func newPageListStream(chunkBytes uint64) *stream {
	s := &stream{loader: newLoader(chunkBytes)}
	s.paged = true
	return s
}

// placePages places the pages of a page list like runs, joins them while pages reads ahead, and
// returns the first key of the first one.
func (s *stream) placePages(pages iter.Seq2[PageStub, error]) (first []byte, err error) {
	var keys bulk
	var last []byte // first key of the page before
	n := 0
	for p, err := range pages {
		switch {
		case err != nil:
			return nil, err
		case s.count >= uint64(leafBit):
			return nil, fmt.Errorf("%w: more than 2^31 pages", ErrTooLarge)
		case n > 0 && bytes.Compare(p.First, last) <= 0:
			return nil, fmt.Errorf("page %d: key %s does not ascend", n, abbreviate(p.First))
		case !isPage(p.Stat, s.chunkBytes):
			return nil, fmt.Errorf("page %d has %d bytes: a page has at most %d", n, p.Bytes, min(maxPageBytes, s.chunkBytes))
		}
		at := placed{base: uint32(s.count), boundary: p.Boundary, root: sub{Stub: p.Stub}}
		if p.First != nil {
			if err := checkKey(p.First); err != nil {
				return nil, fmt.Errorf("page %d: %w", n, err)
			}
			last = append(last[:0], p.First...)
		}
		if s.count > 0 { // no inner node has the first key of the tree
			at.leaf = s.leaves.putRecord(0, p.First, nil) // a stand-in
		}
		if n == 0 {
			first = bytes.Clone(p.First)
		}
		s.placed.add(at)
		if at.leaf != 0 {
			keys.add(s.leaves.key(at.leaf), &s.placed.at(s.placed.n-1).keyHash)
		}
		s.count++
		n++
		if n%placedBlock == 0 {
			keys.flush()
			if err := s.joinMore(false); err != nil {
				return nil, err
			}
		}
	}
	keys.flush()
	return first, nil
}
