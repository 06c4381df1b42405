package avlstar

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
)

// Want names what a multiproof opens: the path to a key, or all paths to the keys of a range.
//
// An update or an insertion touches only the path to its key. A deletion may rotate each node on
// the path. It then also touches the sibling, where the sibling is higher, and the sibling's inner
// child, where that is higher than the outer one.
type Want struct {
	Key   []byte
	Range bool   // all keys in [Key, After)
	After []byte // nil: the range has no end
	// Next opens the path to the least key above Key instead, if there is one.
	Next bool
	// Deleted says that the keys will be deleted. Several deletions below one node may need more
	// nodes than each needs alone; these nodes are then requested again.
	Deleted bool
	// Written says that the key will be written or compared, and its present value is not read. The
	// leaf stays a stub if its record has more than maxWrittenRecord bytes: hash and length of the
	// stub prove what such an operation must know (Version.Peek), so that a block that writes over
	// large values does not bring them.
	Written bool
}

// maxWrittenRecord is the length of a record above which it is not sent for Want.Written. Below it,
// the path to the record is about as long as the record. Tests lower it.
var maxWrittenRecord uint64 = 1 << 10

// Below describes the nodes that the receiver of a multiproof has: multiproofs begin below them
// (compaction in RainBlock, section 5.4).
type Below struct {
	// Depth is the number of inner nodes on each path that the receiver has. If it is 0, a
	// multiproof begins with the root.
	Depth int
	// Held are the stubs that the receiver has, at any depth. On a path through one of them, only
	// the nodes below it are sent.
	Held map[Hash]Span
	// MaxBytes limits the multiproof: packing stops above it with ErrMultiproofTooLarge. It also
	// limits the search for the roots of trees: see packing.visit. 0 means no limit.
	MaxBytes int
	// Partly leaves a stub where a wanted node is missing in the version, instead of returning an
	// error. The multiproof may then open nothing.
	Partly bool
}

// Multiproof is a decoded multiproof: subtrees of one version in which paths are open
// (docs/spec/multiproofs.md). Each subtree was hashed from its leaves and stubs, so the hash of its
// root proves it. A multiproof does not change, and refers to no tree.
//
//	   (m)            the receiver has m and the stubs below it
//	 ┌──┴──┐
//	stub  stub ◄──── (s)          a tree of the multiproof, which opens the path to key u
//	               ┌──┴──┐
//	             stub   (u)
//	            [m,s)  ┌─┴─┐
//	                 stub  u=2
//
// All its trees share lists, which saves allocations, and are hashed together (multiproof_tree.go).
type Multiproof struct {
	data    []byte
	at      []uint32 // where each item begins in data
	keys    []uint32 // items that have a key, in key order: each node has one in its range
	links   []link
	images  []image
	trees   []multiproofTree
	leaves  int
	eighths int // upper bound of the eighths of pages that its records take in a tree's memory
}

var (
	// ErrInvalidMultiproof is wrapped by the errors of DecodeMultiproof.
	ErrInvalidMultiproof = errors.New("invalid multiproof")
	// ErrMultiproofTooLarge is returned if the wanted nodes take more than Below.MaxBytes.
	ErrMultiproofTooLarge = errors.New("the multiproof is too large")
)

// Roots returns the commitments of the multiproof's subtrees, in key order.
func (b *Multiproof) Roots() []Stub {
	roots := make([]Stub, len(b.trees))
	for i, t := range b.trees {
		roots[i] = t.root.Stub
	}
	return roots
}

// Leaves returns the number of leaves in the multiproof.
func (b *Multiproof) Leaves() int { return b.leaves }

// Bytes returns the length of the multiproof's encoding.
func (b *Multiproof) Bytes() int { return len(b.data) }

// Multiproof returns the encoding of the multiproof that opens wants below the receiver's nodes. It
// is empty, one byte, if the receiver has everything. The errors are ErrMultiproofTooLarge,
// *PageError and, unless below.Partly is set, *MissingNodeError if a node on a wanted path is
// missing in v. Nodes that are missing elsewhere stay stubs.
func (v *Version) Multiproof(wants []Want, below Below) ([]byte, error) {
	return MultiproofOf([]Share{{Version: v}}, wants, below)
}

// Share is a version that has all nodes on the paths to the keys of a range.
type Share struct {
	Version *Version
	Range   KeyRange
}

// MultiproofOf does what Version.Multiproof does, with the nodes that versions of one state have
// together: where one has a stub on a wanted path, the nodes of another continue. So nodes above
// several ranges are sent once. Shares ascend by First and After; there is at least one. With
// several, a want must not have Next.
//
//	     (n)               the first share has n, and the stub of m;
//	 ┌────┴────┐           the second one has n, m and the stub of l
//	(l)       (m)
//	[, m)     [m, )
func MultiproofOf(shares []Share, wants []Want, below Below) ([]byte, error) {
	p := packing{below: below}
	b, err := p.pack(shares, func(v *Version) error {
		if len(shares) > 1 && slices.ContainsFunc(wants, func(w Want) bool { return w.Next }) {
			return errNextOfShares
		}
		wants, err := v.resolveWants(wants, below.Partly)
		if err != nil || v.top == emptyStub {
			return err
		}
		p.visits = visitsOfWant*len(wants) + below.MaxBytes/bytesOfVisit
		return p.find(&v.view, Subtree{Stub: v.top}, v.root, 0, wants)
	})
	if err != nil {
		return nil, fmt.Errorf("avlstar: multiproof: %w", err)
	}
	return b, nil
}

var (
	errNextOfShares = errors.New("a next key is searched in one version")
	errOtherShare   = errors.New("the versions are not of one state")
)

// Upper returns the encoding of a multiproof of one tree: all inner nodes with fewer than depth
// inner nodes above them. A receiver that grafts it onto the result of NewPartial has the nodes
// that Below.Depth describes.
func (v *Version) Upper(depth int) ([]byte, error) { return v.UpperWithin(depth, 0) }

// UpperWithin does what Upper does, but returns ErrMultiproofTooLarge if the multiproof takes more
// than maxBytes plus a leaf (0: no limit). In a small tree, leaves have few nodes above them.
func (v *Version) UpperWithin(depth, maxBytes int) ([]byte, error) {
	return UpperOf([]Share{{Version: v}}, depth, maxBytes)
}

// UpperOf does what Version.UpperWithin does, with the nodes that versions of one state have
// together (MultiproofOf). Other nodes are stubs.
func UpperOf(shares []Share, depth, maxBytes int) ([]byte, error) {
	p := packing{upper: depth, below: Below{MaxBytes: maxBytes}}
	b, err := p.pack(shares, func(v *Version) error {
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

// resolveWants returns a sorted copy of wants in which Next is resolved. If partly is set and the
// path to the next key is missing in v, the key itself is wanted instead.
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

// joinRanges joins ranges that overlap, so that at most one crosses any node: a request for ten
// thousand open ranges must not cost ten thousand walks of the tree.
func joinRanges(wants []Want) []Want {
	joined, last := wants[:0], -1 // index of the last range
	for _, w := range wants {
		if w.Range && last >= 0 {
			if r := &joined[last]; r.After == nil || bytes.Compare(w.Key, r.After) <= 0 {
				if w.After == nil || r.After != nil && bytes.Compare(w.After, r.After) > 0 {
					r.After = w.After
				}
				r.Deleted, r.Written = r.Deleted || w.Deleted, r.Written && w.Written
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

// packing makes a multiproof.
type packing struct {
	shares []Share // nil: v has all nodes
	// v is the version that may read the current stub as a page; nil: none has it. See turn.
	v     *Version
	below Below
	out   []byte // complete trees; part of a spare buffer until build returns
	tree  []byte // items of the current tree; part of a spare buffer, too
	items int
	upper int // number of inner nodes of each path that are sent; 0: all
	// visits is the number of nodes outside of trees that may still be visited. Without this limit,
	// a request for a range that the receiver claims to have would cost a walk of the whole range.
	visits int
}

// multiproofBuffers are reused to make multiproofs. Growing new buffers would allocate five bytes
// for each byte of a multiproof, and collecting those took a quarter of the time of making
// witnesses.
type multiproofBuffers struct{ out, tree []byte }

var spareMultiproofBuffers = sync.Pool{New: func() any { return new(multiproofBuffers) }}

// maxSpareMultiproof is the largest capacity of a buffer that is kept: larger multiproofs are rare.
const maxSpareMultiproof = 4 << 20

// pack returns the multiproof with the trees that the function trees appends to out, beginning in
// the first version.
func (p *packing) pack(shares []Share, trees func(*Version) error) ([]byte, error) {
	for _, s := range shares {
		v := s.Version
		v.inUse()
		defer runtime.KeepAlive(v)
		if v.top != shares[0].Version.top {
			return nil, errOtherShare
		}
	}
	if p.v = shares[0].Version; len(shares) > 1 {
		p.shares = shares
	}
	b := spareMultiproofBuffers.Get().(*multiproofBuffers)
	p.out, p.tree = append(b.out[:0], multiproofVersion), b.tree[:0]
	err := trees(shares[0].Version)
	var multiproof []byte
	if err == nil {
		multiproof = bytes.Clone(p.out)
	}
	b.out, b.tree = p.out, p.tree
	if max(cap(b.out), cap(b.tree)) <= maxSpareMultiproof {
		spareMultiproofBuffers.Put(b)
	}
	return multiproof, err
}

const (
	// visitsOfWant exceeds the number of nodes on any path, with siblings.
	visitsOfWant = 3 * maxSteps
	// bytesOfVisit is the number of bytes of Below.MaxBytes that allow another visit. A visit takes
	// less time than packing as many bytes.
	bytesOfVisit = 32
	// visitsOfPage is the number of visits that reading a page counts as.
	visitsOfPage = 64
)

// visit counts a visit of node n. It reports whether further visits are allowed.
func (p *packing) visit(n ref) bool {
	p.visits--
	if n == 0 {
		p.visits -= visitsOfPage
	}
	return p.below.MaxBytes == 0 || p.visits >= 0
}

// find finds the roots of the multiproof's trees in the subtree s, whose root is n (0: a page). A
// tree begins at Below.Depth, or at a stub that the receiver holds.
func (p *packing) find(w nodes, s Subtree, n ref, depth int, wants []Want) error {
	if len(wants) == 0 {
		return nil
	}
	w, n, err := p.turn(w, s, n, wants)
	switch {
	case err != nil:
		return err
	case p.below.Partly && p.unreadable(s, n):
		return nil
	case !p.visit(n):
		return ErrMultiproofTooLarge
	}
	if w, n, err = p.enter(w, s, n); err != nil {
		return err
	}
	switch {
	case n.isLeaf() && onlyWrites(s, wants):
		return nil // the receiver has its stub
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

// findSibling finds roots of trees among the nodes that a deletion on the other side may rotate: in
// the subtree s, the higher child of its parent on one side, and in the inner child of s (see
// sibling).
func (p *packing) findSibling(w nodes, s Subtree, n ref, depth, side int) error {
	w, n, err := p.turn(w, s, n, nil)
	if err != nil || p.unreadable(s, n) {
		return err
	}
	if p.isFull() || !p.visit(n) {
		return ErrMultiproofTooLarge
	}
	if w, n, err = p.enter(w, s, n); err != nil {
		return err
	}
	if p.has(s, depth) {
		return p.begin(func() error { return p.sibling(w, s, n, 0, side) })
	}
	sides := [2]Subtree{}
	sides[left], sides[right] = splitAt(w, s, n)
	inner := sides[1-side]
	if inner.Height <= sides[side].Height || !p.has(inner, depth+1) {
		return nil
	}
	w, c, err := p.turn(w, inner, w.link(n).child[1-side], nil)
	if err != nil || p.unreadable(inner, c) {
		return err
	}
	return p.begin(func() error { return p.root(w, inner, c, 0) })
}

// turn returns the nodes and the root of the subtree s, whose root is n in w, in the version that
// has it. Only a stub, of which n is 0, may be a node of another share, or a page of its own: p.v
// is then the version that reads it. wants lead into s; a sibling has none.
func (p *packing) turn(w nodes, s Subtree, n ref, wants []Want) (nodes, ref, error) {
	if n != 0 || p.shares == nil {
		return w, n, nil
	}
	if p.v != nil && w == nodes(&p.v.view) && p.v.isAway(s) {
		return w, 0, nil
	}
	key := s.First
	if len(wants) > 0 && bytes.Compare(wants[0].Key, key) > 0 {
		key = wants[0].Key
	}
	i, found := slices.BinarySearchFunc(p.shares, key, func(h Share, key []byte) int { return bytes.Compare(h.Range.First, key) })
	if !found { // key is in the share before, or near the edge of this one
		i = max(i-1, 0)
	}
	for _, h := range p.shares[i:min(i+2, len(p.shares))] {
		p.v = h.Version
		if w == nodes(&p.v.view) {
			if p.v.isAway(s) {
				return w, 0, nil
			}
			continue
		}
		if of, n, err := p.nodeOf(s, key); of != nil || err != nil {
			return of, n, err
		}
	}
	p.v = nil
	return w, 0, nil
}

// nodeOf returns the nodes and the root of the subtree s in p.v, if p.v has it and the path to key
// leads into it; n is 0 for a page. At the edge of a range, s may be in a page. Otherwise w is nil.
func (p *packing) nodeOf(s Subtree, key []byte) (w nodes, n ref, err error) {
	v := p.v
	at, n := v.descend(s.Height, key)
	switch {
	case at == s.Stub && (n != 0 || v.isAway(s)):
		return &v.view, n, nil
	case n != 0 || at.Height <= s.Height:
		return nil, 0, nil
	}
	page, _ := v.locate(key, false)
	if !v.isAway(page) {
		return nil, 0, nil
	}
	p.visits -= visitsOfPage
	of, err := v.tree.fetchPage(page)
	if err != nil {
		return nil, 0, err
	}
	r := of.nodes()
	if n, has := r.node(s.Stub, key); has {
		return runNodes{r}, n, nil
	}
	return nil, 0, nil
}

// descend returns the first node on the path to key that is not above height, or is a stub.
func (v *Version) descend(height uint8, key []byte) (at Stub, n ref) {
	n, high, up, side := v.root, v.top.Height, ref(0), left
	for prefix := prefixOf(key); n.isInner() && high > height; {
		l := v.link(n)
		up, side = n, right
		if v.less(key, prefix, n, l) {
			side = left
		}
		n, high = l.child[side], v.image(n).height(side)
	}
	if up == 0 {
		return v.top, n
	}
	return v.image(up).stub(side), n
}

// unreadable reports whether the subtree s, whose root is n, is a stub that cannot be read. If no
// want leads to such a node, it is a stub in the multiproof, and no tree begins there. So an
// incomplete tree can serve multiproofs too.
func (p *packing) unreadable(s Subtree, n ref) bool {
	return n == 0 && (p.v == nil || !p.v.isAway(s))
}

// has reports whether a tree of the multiproof begins at the subtree s.
func (p *packing) has(s Subtree, depth int) bool {
	_, held := p.below.Held[s.Hash]
	return held || depth >= p.below.Depth
}

// begin appends what open packs to the multiproof, as one tree.
func (p *packing) begin(open func() error) error {
	if err := open(); err != nil {
		return err
	}
	p.out = appendTree(p.out, p.items, p.tree)
	p.tree, p.items = p.tree[:0], 0 // otherwise isFull would count them twice
	return nil
}

// isFull reports whether the multiproof exceeds its limit.
func (p *packing) isFull() bool {
	limit := p.below.MaxBytes
	return limit > 0 && len(p.out)+len(p.tree) > limit
}

// open appends the items of the subtree s, which has depth inner nodes of the tree above it. bound
// is the height of the inner node that has the least key of s.
func (p *packing) open(w nodes, s Subtree, n ref, bound uint8, depth int, wants []Want) error {
	if len(wants) == 0 {
		p.stub(s, bound)
		return nil
	}
	w, n, err := p.turn(w, s, n, wants)
	if err != nil {
		return err
	}
	absent := (p.upper > 0 || p.below.Partly) && p.unreadable(s, n)
	if depth > 0 && absent || p.upper > 0 && depth == p.upper || depth > 0 && onlyWrites(s, wants) {
		p.stub(s, bound)
		return nil
	}
	if p.isFull() {
		return ErrMultiproofTooLarge
	}
	if w, n, err = p.enter(w, s, n); err != nil {
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

// onlyWrites reports whether s is a leaf that stays a stub, because wants only write its key, and
// its record is long. The receiver then knows the key from an inner node.
func onlyWrites(s Subtree, wants []Want) bool {
	return s.IsKnownLeaf() && s.Bytes > maxWrittenRecord && !slices.ContainsFunc(wants, func(w Want) bool { return !w.Written })
}

// sibling appends the subtree s, the higher child of its parent on one side, which a deletion on
// the other side may rotate. The root of s is open, and the root of its inner child if that is
// higher than the outer one.
func (p *packing) sibling(w nodes, s Subtree, n ref, bound uint8, side int) error {
	w, n, err := p.turn(w, s, n, nil)
	if err != nil {
		return err
	}
	if p.unreadable(s, n) {
		p.stub(s, bound)
		return nil
	}
	if w, n, err = p.enter(w, s, n); err != nil {
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

// root appends the subtree s with only its root, an inner node, open.
func (p *packing) root(w nodes, s Subtree, n ref, bound uint8) error {
	w, n, err := p.turn(w, s, n, nil)
	if err != nil {
		return err
	}
	if p.unreadable(s, n) {
		p.stub(s, bound)
		return nil
	}
	if w, n, err = p.enter(w, s, n); err != nil {
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

// enter returns the nodes and the root of the subtree s. If s is a page that is not in memory, it
// reads the page.
func (p *packing) enter(w nodes, s Subtree, n ref) (nodes, ref, error) {
	if n != 0 {
		return w, n, nil
	}
	if p.v == nil {
		return nil, 0, &MissingNodeError{Node: s.Stub, Key: bytes.Clone(s.First)}
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

// splitWants returns the wants with keys below key, and those with other keys. A range can be in
// both.
func splitWants(wants []Want, key []byte) (l, r []Want) {
	n, _ := slices.BinarySearchFunc(wants, key, func(w Want, key []byte) int { return bytes.Compare(w.Key, key) })
	l, r = wants[:n], wants[n:]
	// A range that begins below key and reaches it goes to both sides. The wants on the right keep
	// their order, since all of these ranges begin below key.
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
