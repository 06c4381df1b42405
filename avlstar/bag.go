package avlstar

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
)

// Want is what a bag is to open: the path to a key, or all paths to the keys of a range.
//
// A path is all that an update or an insertion touches. A deletion may rotate every node on the
// way: then it also touches the sibling, where that is higher, and the sibling's inner child, where
// that is higher than the outer one.
type Want struct {
	Key   []byte
	Range bool   // all keys in [Key, After)
	After []byte // nil: open
	// Next: the path to the least key above Key is opened instead, if there is one.
	Next bool
	// Deleted: the keys will be deleted. Of several deletions below one node, each may need more
	// than alone; what is missing then is re-requested.
	Deleted bool
}

// Below is what the receiver of a bag has: bags begin below it (compaction in RainBlock, section
// 4.2).
type Below struct {
	// Depth is the number of inner nodes on each way that the receiver has: 0 is none, so that a
	// bag begins with the root.
	Depth int
	// Held are the stubs that the receiver has, at any depth. On the way to one of them,
	// nothing is sent but what is below it.
	Held map[Hash]Span
	// MaxBytes limits the bag: a larger one is ErrBagTooLarge, before more of it is made. It limits
	// the search for places where trees begin, too: see packing.visit. 0: none.
	MaxBytes int
	// Partly: where the version lacks what is wanted, a stub is left, as beside the ways. The bag
	// may open nothing then. Otherwise that is an error.
	Partly bool
}

// Bag is a node bag: subtrees of one version in which paths are open (docs/spec/bags.md). Each was
// hashed from its leaves and stubs, so it proves itself to whoever knows the hash of its root. A
// bag does not change, and refers to no tree.
//
//	   (m)            the receiver has m and the stubs below it
//	 ┌──┴──┐
//	stub  stub ◄──── (s)          a tree of the bag, which opens the path to key u
//	               ┌──┴──┐
//	             stub   (u)
//	            [m,s)  ┌─┴─┐
//	                 stub  u=2
//
// Its lists are those of all trees together, so that few allocations make it, and all its nodes are
// hashed together (bag_tree.go).
type Bag struct {
	data    []byte
	at      []uint32 // where each item begins in data
	keys    []uint32 // items that have a key, in its order: each node has one in its range
	links   []link
	images  []image
	trees   []bagTree
	leaves  int
	eighths int // eighths of pages that its records take in a tree's memory, at most
}

var (
	// ErrInvalidBag is wrapped by the errors of DecodeBag.
	ErrInvalidBag = errors.New("invalid bag")
	// ErrBagTooLarge: what is wanted takes more than Below.MaxBytes.
	ErrBagTooLarge = errors.New("the bag is too large")
)

// Roots returns the commitments of the bag's subtrees, in key order.
func (b *Bag) Roots() []Stub {
	roots := make([]Stub, len(b.trees))
	for i, t := range b.trees {
		roots[i] = t.root.Stub
	}
	return roots
}

// Leaves returns how many leaves the bag has.
func (b *Bag) Leaves() int { return b.leaves }

// Bytes returns the length of the bag's encoding.
func (b *Bag) Bytes() int { return len(b.data) }

// Bag returns the encoding of the bag that opens wants below what the receiver has. It is empty,
// one byte, where the receiver has all of it. The error is ErrBagTooLarge, that of a page that
// cannot be read, or of a way of which v itself lacks a part, unless below.Partly; what v lacks
// beside the ways stays a stub.
func (v *Version) Bag(wants []Want, below Below) ([]byte, error) {
	v.inUse()
	defer runtime.KeepAlive(v)
	wants, err := v.resolveWants(wants, below.Partly)
	if err != nil {
		return nil, fmt.Errorf("avlstar: bag: %w", err)
	}
	p := packing{v: v, below: below}
	p.visits = visitsOfWant*len(wants) + below.MaxBytes/bytesOfVisit
	b, err := p.build(func() error {
		if v.top == emptyStub {
			return nil
		}
		return p.find(&v.view, Subtree{Stub: v.top}, v.root, 0, wants)
	})
	if err != nil {
		return nil, fmt.Errorf("avlstar: bag: %w", err)
	}
	return b, nil
}

// Upper returns the encoding of a bag of one tree: all inner nodes that have fewer than depth above
// them. It is what NewPartial's result needs to be what Below.Depth says.
func (v *Version) Upper(depth int) ([]byte, error) { return v.UpperWithin(depth, 0) }

// UpperWithin is Upper for a bag of at most maxBytes (0: no limit), and a leaf: a larger one is
// ErrBagTooLarge. In a small tree, leaves have few nodes above them.
func (v *Version) UpperWithin(depth, maxBytes int) ([]byte, error) {
	v.inUse()
	defer runtime.KeepAlive(v)
	p := packing{v: v, upper: depth, below: Below{MaxBytes: maxBytes}}
	b, err := p.build(func() error {
		if v.top == emptyStub || depth <= 0 {
			return nil
		}
		return p.begin(func() error { return p.open(&v.view, Subtree{Stub: v.top}, v.root, 0, 0, []Want{{Range: true}}) })
	})
	if err != nil {
		return nil, fmt.Errorf("avlstar: upper tree: %w", err)
	}
	return b, nil
}

// resolveWants returns a sorted copy, in which no want is for a next key. partly: where v lacks the
// way to the next key, the key itself is wanted.
func (v *Version) resolveWants(wants []Want, partly bool) ([]Want, error) {
	sorted := make([]Want, 0, len(wants))
	for _, w := range wants {
		switch {
		case w.Range && w.Next, !w.Range && w.After != nil:
			return nil, fmt.Errorf("the want of key %s must be one of: a key, the next key, a range", abbreviate(w.Key))
		case w.Next:
			next, ok, err := v.above(w.Key)
			var missing *MissingNodeError
			switch {
			case partly && errors.As(err, &missing):
				next = w.Key
			case err != nil:
				return nil, err
			case !ok:
				continue
			}
			w.Key, w.Next = next, false
		}
		sorted = append(sorted, w)
	}
	slices.SortStableFunc(sorted, func(a, b Want) int { return bytes.Compare(a.Key, b.Key) })
	return joinRanges(sorted), nil
}

// joinRanges makes one range of those that overlap, so that at most one crosses any node: who asks
// for ten thousand open ranges is not to cost ten thousand times a walk of the tree.
func joinRanges(wants []Want) []Want {
	joined, last := wants[:0], -1 // index of the last range
	for _, w := range wants {
		if w.Range && last >= 0 {
			if r := &joined[last]; r.After == nil || bytes.Compare(w.Key, r.After) <= 0 {
				if w.After == nil || r.After != nil && bytes.Compare(w.After, r.After) > 0 {
					r.After = w.After
				}
				r.Deleted = r.Deleted || w.Deleted
				continue
			}
		}
		if w.Range {
			last = len(joined)
		}
		joined = append(joined, w)
	}
	return joined
}

// above returns a copy of the least key above key.
func (v *Version) above(key []byte) (next []byte, ok bool, err error) {
	for kv, err := range v.Ascend(append(bytes.Clone(key), 0), nil) {
		return bytes.Clone(kv.Key), err == nil, err
	}
	return nil, false, nil
}

// packing makes a bag.
type packing struct {
	v     *Version
	below Below
	out   []byte // of trees that are complete; a spare buffer's until build returns
	tree  []byte // items of the one under way; a spare buffer's, too
	items int
	upper int // the number of inner nodes of a way that are sent; 0: all
	// visits is how many more nodes outside of trees may be visited. Without this limit, a request
	// for a range of which the receiver claims to have everything would cost a walk of the range.
	visits int
}

// bagBuffers are what bags are made in. Appending would allocate five bytes for each one of a bag,
// and collecting these took a quarter of the time of witnesses.
type bagBuffers struct{ out, tree []byte }

var spareBagBuffers = sync.Pool{New: func() any { return new(bagBuffers) }}

// maxSpareBag is the capacity of a buffer that is kept: larger bags are rare.
const maxSpareBag = 4 << 20

// build returns the bag that trees appends to out.
func (p *packing) build(trees func() error) ([]byte, error) {
	b := spareBagBuffers.Get().(*bagBuffers)
	p.out, p.tree = append(b.out[:0], bagVersion), b.tree[:0]
	err := trees()
	var bag []byte
	if err == nil {
		bag = bytes.Clone(p.out)
	}
	b.out, b.tree = p.out, p.tree
	if max(cap(b.out), cap(b.tree)) <= maxSpareBag {
		spareBagBuffers.Put(b)
	}
	return bag, err
}

const (
	// visitsOfWant is above the number of nodes on any way, with siblings.
	visitsOfWant = 3 * maxSteps
	// bytesOfVisit is how many bytes of Below.MaxBytes allow another visit, which takes less time
	// than to make as many bytes.
	bytesOfVisit = 32
	// visitsOfPage is what reading a page counts for.
	visitsOfPage = 64
)

// visit counts a visit of node n. It reports whether there may be another.
func (p *packing) visit(n ref) bool {
	p.visits--
	if n == 0 {
		p.visits -= visitsOfPage
	}
	return p.below.MaxBytes == 0 || p.visits >= 0
}

// find looks for the places where trees of the bag begin in the subtree s, which is n (0: a page):
// at the depth, or below a stub that the receiver holds.
func (p *packing) find(w nodes, s Subtree, n ref, depth int, wants []Want) error {
	switch {
	case len(wants) == 0, p.below.Partly && p.lacks(n):
		return nil
	case !p.visit(n):
		return ErrBagTooLarge
	}
	w, n, err := p.enter(w, s, n)
	if err != nil {
		return err
	}
	switch {
	case p.has(s, depth):
		return p.begin(func() error { return p.open(w, s, n, 0, 0, wants) })
	case n.isLeaf():
		return nil
	}
	sides := [2]Subtree{}
	sides[left], sides[right] = splitAt(w, s, n)
	var of [2][]Want
	of[left], of[right] = splitWants(wants, sides[right].First)
	for side, child := range sides {
		c := w.link(n).child[side]
		var err error
		if len(of[side]) == 0 && child.Height > sides[1-side].Height && slices.ContainsFunc(wants, isDeleted) {
			err = p.findSibling(w, child, c, depth+1, side)
		} else {
			err = p.find(w, child, c, depth+1, of[side])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// findSibling looks for such places in what a deletion on the other side may rotate: in the subtree
// s, the higher child of its parent on one side, and in its inner child (see sibling).
func (p *packing) findSibling(w nodes, s Subtree, n ref, depth, side int) error {
	if p.lacks(n) {
		return nil
	}
	if p.isFull() || !p.visit(n) {
		return ErrBagTooLarge
	}
	w, n, err := p.enter(w, s, n)
	if err != nil {
		return err
	}
	if p.has(s, depth) {
		return p.begin(func() error { return p.sibling(w, s, n, 0, side) })
	}
	sides := [2]Subtree{}
	sides[left], sides[right] = splitAt(w, s, n)
	inner, c := sides[1-side], w.link(n).child[1-side]
	if inner.Height > sides[side].Height && p.has(inner, depth+1) && !p.lacks(c) {
		return p.begin(func() error { return p.root(w, inner, c, 0) })
	}
	return nil
}

// lacks reports whether node n of v is a stub that cannot be read. Where no want leads to it, it is
// a stub in the bag, and no tree begins there: who has a part of a tree can serve that part.
func (p *packing) lacks(n ref) bool { return n == 0 && p.v.tree.paging == nil }

// has reports whether a tree of the bag begins at the subtree s, where it is met.
func (p *packing) has(s Subtree, depth int) bool {
	_, held := p.below.Held[s.Hash]
	return held || depth >= p.below.Depth
}

// begin makes what open appends a tree of the bag.
func (p *packing) begin(open func() error) error {
	if err := open(); err != nil {
		return err
	}
	p.out = appendTree(p.out, p.items, p.tree)
	p.tree, p.items = p.tree[:0], 0 // isFull would count them twice
	return nil
}

// isFull reports whether the bag has more bytes than are allowed.
func (p *packing) isFull() bool {
	limit := p.below.MaxBytes
	return limit > 0 && len(p.out)+len(p.tree) > limit
}

// open appends the items of the subtree s, which has depth inner nodes of the tree above it. bound
// is the height of the inner node that has its least key.
func (p *packing) open(w nodes, s Subtree, n ref, bound uint8, depth int, wants []Want) error {
	absent := (p.upper > 0 || p.below.Partly) && p.lacks(n)
	if len(wants) == 0 || depth > 0 && absent || p.upper > 0 && depth == p.upper {
		p.stub(s, bound)
		return nil
	}
	if p.isFull() {
		return ErrBagTooLarge
	}
	w, n, err := p.enter(w, s, n)
	if err != nil {
		return err
	}
	if n.isLeaf() {
		key, value := w.leaf(n)
		p.items++
		p.tree = appendLeafItem(p.tree, Leaf{Key: key, Value: value, Height: bound})
		return nil
	}
	sides := [2]Subtree{}
	sides[left], sides[right] = splitAt(w, s, n)
	var of [2][]Want
	of[left], of[right] = splitWants(wants, sides[right].First)
	for side, bound := range [2]uint8{bound, s.Height} {
		child, other := sides[side], sides[1-side]
		c := w.link(n).child[side]
		var err error
		if len(of[side]) == 0 && child.Height > other.Height && slices.ContainsFunc(wants, isDeleted) {
			err = p.sibling(w, child, c, bound, side)
		} else {
			err = p.open(w, child, c, bound, depth+1, of[side])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func isDeleted(w Want) bool { return w.Deleted }

// sibling appends the subtree s, the higher child of its parent on one side, as a deletion on the
// other side may rotate it: its root is open, and its inner child's, if that one is higher.
func (p *packing) sibling(w nodes, s Subtree, n ref, bound uint8, side int) error {
	if p.lacks(n) {
		p.stub(s, bound)
		return nil
	}
	w, n, err := p.enter(w, s, n)
	if err != nil {
		return err
	}
	sides := [2]Subtree{}
	sides[left], sides[right] = splitAt(w, s, n)
	for at, bound := range [2]uint8{bound, s.Height} {
		child := sides[at]
		if at == side || child.Height <= sides[side].Height {
			p.stub(child, bound)
			continue
		}
		if err := p.root(w, child, w.link(n).child[at], bound); err != nil {
			return err
		}
	}
	return nil
}

// root appends the subtree s, of which only the root, an inner node, is open.
func (p *packing) root(w nodes, s Subtree, n ref, bound uint8) error {
	if p.lacks(n) {
		p.stub(s, bound)
		return nil
	}
	w, n, err := p.enter(w, s, n)
	if err != nil {
		return err
	}
	l, r := splitAt(w, s, n)
	p.stub(l, bound)
	p.stub(r, s.Height)
	return nil
}

func (p *packing) stub(s Subtree, bound uint8) {
	key := s.First
	if p.items == 0 {
		key, bound = nil, 0 // nothing in the tree depends on them
	}
	p.items++
	p.tree = appendStubItem(p.tree, bound, key, s.Stub)
}

// enter reads the subtree s if it is a page that is not in memory.
func (p *packing) enter(w nodes, s Subtree, n ref) (nodes, ref, error) {
	if n != 0 {
		return w, n, nil
	}
	page, err := p.v.page(s, s.First)
	if err != nil {
		return nil, 0, err
	}
	r := page.nodes()
	return runNodes{r}, r.root.n, nil
}

// splitAt returns the children of the subtree s, whose root is inner node n.
func splitAt(w nodes, s Subtree, n ref) (l, r Subtree) {
	key, i := w.keyOf(n), w.image(n)
	return Subtree{Stub: i.stub(left), First: s.First, After: key}, Subtree{Stub: i.stub(right), First: key, After: s.After}
}

// splitWants returns the wants that have keys below key, and those that have others. A range can be
// among both.
func splitWants(wants []Want, key []byte) (l, r []Want) {
	n, _ := slices.BinarySearchFunc(wants, key, func(w Want, key []byte) int { return bytes.Compare(w.Key, key) })
	l, r = wants[:n], wants[n:]
	// A range that begins below key and reaches it goes to both. Wants to the right keep their
	// order, since all of these begin below.
	var across []Want
	for _, w := range l {
		if w.Range && (w.After == nil || bytes.Compare(w.After, key) > 0) {
			across = append(across, w)
		}
	}
	if across != nil {
		r = slices.Concat(across, r)
	}
	return l, r
}
