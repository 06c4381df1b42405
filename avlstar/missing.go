package avlstar

import (
	"bytes"
	"fmt"
	"slices"
	"sort"
)

// MissingNodeError names a subtree that an operation needs and that is only a stub. In an error of
// Apply, All names every subtree that the block is known to need, so that usually one request
// fetches them all.
//
//	      (m)            changes of c, d, t and x: the error is that c leads to a stub,
//	   ┌───┴───┐         and All names it and the two to which t and x lead
//	 stub     (s)
//	[a,m)   ┌──┴──┐
//	       stub  stub
type MissingNodeError struct {
	Node Stub   // the stub
	Key  []byte // a key whose path leads to it
	// Whether the subtree is a sibling on that path, which a deletion needs for a rotation.
	Sibling bool
	// First is the least key of the subtree, if Apply needs it: earlier changes may have moved the
	// subtree onto that path. It is nil if they deleted everything to the left of the subtree.
	First []byte

	others []*MissingNodeError // set by Apply, in key order
	wants  []Want              // set by Apply: for the others, and for this one if seen
	span   Span                // set by Apply: see Held
	// seen reports that a path of the unchanged version leads to the stub, so that wants open it.
	seen bool
}

// All returns e and, for an error of Apply, one error for each other subtree that the block needs,
// in key order. The result does not depend on the number of goroutines. Siblings on the path of a
// deletion are included if they may be rotated; the deletion may need more.
func (e *MissingNodeError) All() []*MissingNodeError {
	return append([]*MissingNodeError{e}, e.others...)
}

// Held returns the stubs of All, for Below.Held.
func (e *MissingNodeError) Held() map[Hash]Span {
	held := make(map[Hash]Span, 1+len(e.others))
	for _, m := range e.All() {
		if m == e && !e.seen {
			held[m.Node.Hash] = Span{} // its range before the block is unknown
			continue
		}
		held[m.Node.Hash] = m.span
	}
	return held
}

// Wants returns the wants to request from a node with the full version to which changes were
// applied (nil if it was only read). The request must have Held as Below.Held and Below.Depth 0.
func (e *MissingNodeError) Wants(changes []Change) []Want {
	wants := slices.Clone(e.wants)
	for _, m := range e.All() {
		if m.Sibling && m.First != nil && (m != e || e.seen) {
			// Another storage node may hold it.
			wants = append(wants, Want{Key: m.First, Written: true})
		}
	}
	if e.seen {
		return wants
	}
	// The tree's least leaf is needed itself, because only the leaf has its key.
	written := e.Node.Height > 0
	if !e.Sibling {
		wants = append(wants, Want{Key: e.Key, Written: written})
	}
	switch {
	case len(changes) == 0:
		return wants
	case e.First != nil:
		return append(wants, Want{Key: e.First, Written: written})
	}
	// The subtree begins with the least key, or with the key after a deleted one.
	wants = append(wants, Want{})
	for _, c := range changes {
		if c.Value == nil {
			wants = append(wants, Want{Key: c.Key, Next: true})
		}
	}
	return wants
}

func (e *MissingNodeError) Error() string {
	return fmt.Sprintf("the node %s of height %d and %d bytes on the path to key %s is missing",
		e.Node.Hash, e.Node.Height, e.Node.Bytes, abbreviate(e.Key))
}

// see completes e, the error of applying ops to v, with all other subtrees that ops need.
func (e *MissingNodeError) see(v *Version, ops []op, changes []Change) {
	l := missingNodes{v: v, changes: changes}
	l.walk(v.root, Subtree{Stub: v.top}, ops)
	l.behind(ops)
	for _, key := range l.before {
		e.wants = append(e.wants, Want{Key: key, Written: true})
	}
	slices.Sort(l.wanted)
	for _, i := range slices.Compact(l.wanted) {
		e.wants = append(e.wants, Want{Key: bytes.Clone(changes[i].Key), Deleted: changes[i].Value == nil, Written: true})
	}
	slices.SortFunc(l.found, func(a, b *MissingNodeError) int { return bytes.Compare(a.First, b.First) })
	for _, m := range l.found {
		if m.Node == e.Node {
			e.seen, e.span = true, m.span
			if e.First == nil {
				e.First = m.First
			}
		} else {
			e.others = append(e.others, m)
		}
	}
}

// This search finds the subtrees that a block needs and that are missing in a version. A change
// needs the path to its key. A deletion also rotates if its side gets lower and the other side is
// higher already: then it needs the root of the other side, and the inner child of that root if it
// is the higher one. Heights after the block are known as far as nodes are in memory; a stub may
// get lower.
type missingNodes struct {
	v       *Version
	changes []Change
	found   []*MissingNodeError
	wanted  []uint32 // indices of changes
	before  [][]byte // further keys whose paths are needed
}

// maxBefore limits missingNodes.before, because each of its keys has 4 KiB. A block that needs more
// gets the others with its next request.
const maxBefore = 1 << 10

// behind finds the subtrees that need to be known for puts right behind deleted keys. If an inner
// node has the first of these keys, it gets the next remaining key, which is behind the put: the
// put then goes to the right edge of the subtree on its left, to which no path of the block leads.
//
//	  (x)         x is deleted, and x0 is put:        (z)
//	┌──┴──┐                                         ┌──┴──┐
//	…    (z)                                        …     z
//	    ┌─┴─┐                                      ┌┴┐
//	    x   z                                      w x0
func (l *missingNodes) behind(ops []op) {
	known := make(map[Hash]bool, len(l.found))
	for _, m := range l.found {
		known[m.Node.Hash] = true
	}
	first, last := -1, -1 // the deletions before the current change: first and last
	for k, o := range ops {
		switch {
		case l.deletes(o):
			if first < 0 {
				first = k
			}
			last = k
			continue
		case first >= 0 && bytes.Equal(l.v.leafKey(l.key(o)), l.key(ops[last])):
			l.addBefore(l.key(ops[first]), known)
		}
		first = -1
	}
}

// addBefore adds the subtree that has the greatest key below key, unless it is in memory or among
// known, the hashes of those that were found.
func (l *missingNodes) addBefore(key []byte, known map[Hash]bool) {
	s, n := l.v.locate(key, true)
	if n != 0 || s.Stub == emptyStub || s.IsKnownLeaf() || known[s.Hash] || len(l.before) == maxBefore {
		return
	}
	before := justBelow(key)
	if before == nil {
		return
	}
	known[s.Hash] = true
	l.before = append(l.before, before)
	l.found = append(l.found, &MissingNodeError{Node: s.Stub, Key: before, First: bytes.Clone(s.First), span: spanOf(s).with(before)})
}

// walk visits the subtree s, whose root is n. ops lead to it. walk reports whether the deletions
// among ops may make it lower.
func (l *missingNodes) walk(n ref, s Subtree, ops []op) (lower bool) {
	switch {
	case len(ops) == 0 || n == 0 && s.Stub == emptyStub:
		return false
	case n == 0 && s.IsKnownLeaf() && l.v.tree.paging == nil:
		return slices.ContainsFunc(ops, func(o op) bool { return l.deletes(o) && bytes.Equal(l.key(o), s.First) })
	case n == 0:
		l.add(s, l.key(ops[0]), false)
		for _, o := range ops {
			l.wanted = append(l.wanted, o.i)
		}
		return slices.ContainsFunc(ops, l.deletes)
	case n.isLeaf():
		return slices.ContainsFunc(ops, func(o op) bool { return l.deletes(o) && bytes.Equal(l.key(o), l.v.key(n)) })
	}
	at, i := l.v.link(n), l.v.image(n)
	split := sort.Search(len(ops), func(k int) bool { return !l.v.less(l.key(ops[k]), ops[k].prefix, n, at) })
	of := [2][]op{ops[:split], ops[split:]}
	sides := [2]Subtree{}
	sides[left], sides[right] = splitAt(&l.v.view, s, n)
	var lowered [2]bool
	for side := range 2 {
		lowered[side] = l.walk(at.child[side], sides[side], of[side])
		// A deleted leaf is replaced by its sibling, which need not be in memory.
		if other := 1 - side; lowered[side] && len(of[other]) == 0 && i.height(other) > i.height(side) && i.height(side) > 0 {
			l.sibling(sides[other], at.child[other], other, of[side])
		}
	}
	switch {
	case lowered[left] && lowered[right]:
		return true
	case !lowered[left] && !lowered[right]:
		return false
	}
	// If both sides are equally high, and are not leaves, one deletion does not change the height.
	return i.height(left) != i.height(right) || i.height(left) == 0 || len(ops) > 1
}

// A rotation at the parent of s needs s, or its inner child: this method adds the one that is
// missing. n is the root of s, and side is the side of s in its parent. ops are on the other side.
func (l *missingNodes) sibling(s Subtree, n ref, side int, ops []op) {
	deletion := ops[slices.IndexFunc(ops, l.deletes)]
	if n != 0 {
		inner := [2]Subtree{}
		inner[left], inner[right] = splitAt(&l.v.view, s, n)
		if inner[1-side].Height <= inner[side].Height || l.v.link(n).child[1-side] != 0 {
			return
		}
		s = inner[1-side]
	}
	l.add(s, l.key(deletion), true)
	l.wanted = append(l.wanted, deletion.i)
}

func (l *missingNodes) add(s Subtree, key []byte, sibling bool) {
	key = bytes.Clone(key)
	l.found = append(l.found, &MissingNodeError{Node: s.Stub, Key: key, Sibling: sibling, First: bytes.Clone(s.First), span: spanOf(s).with(key)})
}

func (l *missingNodes) key(o op) []byte { return l.changes[o.i].Key }

func (l *missingNodes) deletes(o op) bool { return l.changes[o.i].Value == nil }
