package avlstar

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"sort"
)

// maxPageBytes is the maximum length of a page. Page lists on disk depend on it. Most pages have a
// third of it or more, because a parent of two smaller ones would be a page itself. Smaller pages
// are read faster (docs/decisions/0011-pages-leave-memory.md); with larger pages, fewer nodes stay
// in memory above them.
const maxPageBytes = 4 << 10

// ErrInvalidPage is wrapped by the errors of VerifyPage.
var ErrInvalidPage = errors.New("invalid page")

// Pages holds the pages that have left the memory of a tree. Its methods are called concurrently,
// by readers and by Apply.
type Pages interface {
	// Page returns the subtree s, verified: the result of VerifyPage for its leaves. An error is a
	// failure of this node; it never means that a key is absent.
	//
	// The leaves of s begin with key s.First, and their records have s.Bytes bytes. A stored state
	// may have other leaves behind them, still below s.After, that have been deleted since. If
	// s.First is nil, it may also have such leaves before them.
	Page(s Subtree) (*Page, error)
}

// Page is a subtree whose leaf records were verified against its stub. It never changes and refers
// to no tree, so it can be kept as long as needed, and serves every version that contains it.
//
//	data   record 0 │ record 1 │ …      as in a chunk; the first has height 0
//	at     0          offset     …
type Page struct {
	data []byte
	at   []uint32
	run  *run // from VerifyPage; if nil, it is rebuilt when needed
}

// VerifyPage verifies that records, encoded as in a chunk (docs/spec/chunks.md#leaf-records), are
// the leaves of the subtree with this stub. It ignores the height of the first record, so records
// may be cut out of a longer list of leaves. It keeps no reference to records.
func VerifyPage(s Stub, records []byte) (*Page, error) {
	if uint64(len(records)) != s.Bytes {
		return nil, fmt.Errorf("%w: %d bytes, want %d", ErrInvalidPage, len(records), s.Bytes)
	}
	data := bytes.Clone(records)
	if len(data) > 0 {
		data[0] = 0
	}
	r, err := newRun(data, limits{chunkBytes: math.MaxUint64, height: s.Height})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidPage, err)
	}
	if r.root.Stub != s {
		return nil, fmt.Errorf("%w: root %s of height %d, want %s of height %d", ErrInvalidPage, r.root.Hash, r.root.Height, s.Hash, s.Height)
	}
	return &Page{data: data, at: r.at, run: r}, nil
}

// Compact returns the page without its nodes, which makes it about half as large. Apply and proofs
// rebuild the nodes when they need them.
func (p *Page) Compact() *Page { return &Page{data: p.data, at: p.at} }

// Size returns the approximate memory that the page takes when it is compact, in bytes.
func (p *Page) Size() int { return cap(p.data) + 4*cap(p.at) + 96 }

// nodes returns the page as a subtree with its hashes.
func (p *Page) nodes() *run {
	if p.run != nil {
		return p.run
	}
	r, err := newRun(p.data, limits{chunkBytes: math.MaxUint64, height: math.MaxUint8})
	if err != nil {
		panic(fmt.Sprintf("avlstar: a verified page: %v", err))
	}
	return r
}

// records returns the page as a run without nodes.
func (p *Page) records() *run { return &run{data: p.data, at: p.at} }

// below returns the number of records with keys less than key.
func (p *Page) below(key []byte) int {
	r := p.records()
	return sort.Search(r.len(), func(i int) bool { return bytes.Compare(r.leaf(i).Key, key) >= 0 })
}

// find returns the leaf with the greatest key that is not above key. If there is none, it returns
// the first leaf.
func (p *Page) find(key []byte) Leaf {
	i := p.below(key)
	r := p.records()
	if i < r.len() && bytes.Equal(r.leaf(i).Key, key) {
		return r.leaf(i)
	}
	return r.leaf(max(i-1, 0))
}

// leaves yields the leaves in [start, end) until yield returns false; a nil bound is open. It
// returns false if yield did. The first leaf of the page gets the height first.
func (p *Page) leaves(start, end []byte, first uint8, yield func(Leaf) bool) bool {
	r, i := p.records(), 0
	if start != nil {
		i = p.below(start)
	}
	for ; i < r.len(); i++ {
		l := r.leaf(i)
		if end != nil && bytes.Compare(l.Key, end) >= 0 {
			return true
		}
		if i == 0 {
			l.Height = first
		}
		l.Key, l.Value = l.Key[:len(l.Key):len(l.Key)], l.Value[:len(l.Value):len(l.Value)]
		if !yield(l) {
			return false
		}
	}
	return true
}

// bytesBelow returns the total length of the records with keys less than key.
func (p *Page) bytesBelow(key []byte) uint64 {
	if i := p.below(key); i < len(p.at) {
		return uint64(p.at[i])
	}
	return uint64(len(p.data))
}

// nodes gives a walk that also enters pages access to nodes: those of a tree, or those of a page.
type nodes interface {
	link(n ref) *link
	image(n ref) *image
	keyOf(n ref) []byte
	leaf(n ref) (key, value []byte)
}

var _, _ nodes = (*view)(nil), runNodes{}

// runNodes gives access to the nodes of a run by their refs in it.
type runNodes struct{ r *run }

func (w runNodes) link(n ref) *link   { return &w.r.links[n] }
func (w runNodes) image(n ref) *image { return &w.r.images[n] }
func (w runNodes) keyOf(n ref) []byte { return w.r.leaf(int(n)).Key }
func (w runNodes) leaf(n ref) (key, value []byte) {
	l := w.r.leaf(int(n &^ leafBit))
	return l.Key, l.Value
}

// childOf returns a child of inner node n.
func childOf(w nodes, n ref, side int) sub { return sub{w.image(n).stub(side), w.link(n).child[side]} }

// node returns the node with this stub on the path to key.
func (r *run) node(s Stub, key []byte) (ref, bool) {
	at := r.root
	for at.Stub != s {
		if !at.n.isInner() || at.Height <= s.Height {
			return 0, false
		}
		side := right
		if bytes.Compare(key, r.leaf(int(at.n)).Key) < 0 {
			side = left
		}
		at = childOf(runNodes{r}, at.n, side)
	}
	return at.n, true
}
