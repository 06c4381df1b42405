package avlstar

import (
	"bytes"
	"fmt"
	"slices"
	"sort"
)

// MissingNodeError names the subtree that an operation needs, and of which there is only a stub.
// That of Apply knows more: All is what the block needs as far as that can be seen without it, so
// that one request brings it, as a rule.
//
//	      (m)            changes of c, d, t and x: the error is that c leads to a stub,
//	   ┌───┴───┐         and All names it and the two to which t and x lead
//	 stub     (s)
//	[a,m)   ┌──┴──┐
//	       stub  stub
type MissingNodeError struct {
	Node Stub   // the stub
	Key  []byte // the key on whose way it lies
	// Beside: it lies beside that way, where a deletion needs it to rotate.
	Beside bool
	// First is its least key, if Apply needs it: changes before may have brought it to that way.
	// nil: all that is left before it was deleted by them.
	First []byte

	others []*MissingNodeError // of Apply, in key order
	wants  []Want              // of Apply: for the others, and for this one if it is seen
	// seen: the stub is where the block leads before anything changes, so that wants open it.
	seen bool
}

// All returns e and, of an error of Apply, one for each other subtree that the block needs, in key
// order. It does not depend on how many goroutines applied the block. Of what lies beside the way
// of a deletion, that is named which it may rotate; there may be more.
func (e *MissingNodeError) All() []*MissingNodeError {
	return append([]*MissingNodeError{e}, e.others...)
}

// Held returns the hashes of the stubs of All, for Below.Held.
func (e *MissingNodeError) Held() map[Hash]struct{} {
	held := make(map[Hash]struct{}, 1+len(e.others))
	for _, m := range e.All() {
		held[m.Node.Hash] = struct{}{}
	}
	return held
}

// Wants returns what to ask a node that has all of the version to which changes were applied (nil:
// which was read), with Held as Below.Held and nothing above Below.Depth.
func (e *MissingNodeError) Wants(changes []Change) []Want {
	wants := slices.Clone(e.wants)
	for _, m := range e.All() {
		if m.Beside && m.First != nil && (m != e || e.seen) {
			wants = append(wants, Want{Key: m.First}) // perhaps another node has it than the way
		}
	}
	if e.seen {
		return wants
	}
	if !e.Beside {
		wants = append(wants, Want{Key: e.Key})
	}
	switch {
	case len(changes) == 0:
		return wants
	case e.First != nil:
		return append(wants, Want{Key: e.First})
	}
	// It begins with the least key, or with that behind one that was deleted.
	wants = append(wants, Want{})
	for _, c := range changes {
		if c.Value == nil {
			wants = append(wants, Want{Key: c.Key, Next: true})
		}
	}
	return wants
}

func (e *MissingNodeError) Error() string {
	return fmt.Sprintf("the node %s of height %d and %d bytes on the way to key %s is missing",
		e.Node.Hash, e.Node.Height, e.Node.Bytes, abbreviate(e.Key))
}

// see completes e, the error of applying ops to v, with all else that they need.
func (e *MissingNodeError) see(v *Version, ops []op, changes []Change) {
	l := lack{v: v, changes: changes}
	l.walk(v.root, v.top, nil, ops)
	slices.Sort(l.wanted)
	for _, i := range slices.Compact(l.wanted) {
		e.wants = append(e.wants, Want{Key: bytes.Clone(changes[i].Key), Deleted: changes[i].Value == nil})
	}
	slices.SortFunc(l.found, func(a, b *MissingNodeError) int { return bytes.Compare(a.First, b.First) })
	for _, m := range l.found {
		if m.Node == e.Node {
			e.seen = true
			if e.First == nil {
				e.First = m.First
			}
		} else {
			e.others = append(e.others, m)
		}
	}
}

// lack finds what a version lacks of what a block needs. A change needs the way to its key. A
// deletion also rotates where the side that it is on gets lower, and the other is higher already:
// it needs that node, and its inner child where that is the higher one. How high a subtree will be
// is known as far as its nodes are there; of a stub, that it may get lower.
type lack struct {
	v       *Version
	changes []Change
	found   []*MissingNodeError
	wanted  []uint32 // indices of changes
}

// walk visits the subtree n, whose keys begin with first (nil: the tree's least), and to which ops
// lead. It reports whether the deletions among them may make it lower.
func (l *lack) walk(n ref, stub Stub, first []byte, ops []op) (lower bool) {
	switch {
	case len(ops) == 0 || n == 0 && stub == emptyStub:
		return false
	case n == 0:
		l.add(stub, first, l.key(ops[0]), false)
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
	firsts := [2][]byte{first, l.v.keyOf(n)}
	var lowered [2]bool
	for side := range 2 {
		lowered[side] = l.walk(at.child[side], i.stub(side), firsts[side], of[side])
		// A leaf that goes is replaced by its sibling, which need not be there.
		if other := 1 - side; lowered[side] && len(of[other]) == 0 && i.height(other) > i.height(side) && i.height(side) > 0 {
			l.beside(n, other, firsts[other], of[side])
		}
	}
	switch {
	case lowered[left] && lowered[right]:
		return true
	case !lowered[left] && !lowered[right]:
		return false
	}
	// If both sides are equally high, and not leaves, one deletion does not matter.
	return i.height(left) != i.height(right) || i.height(left) == 0 || len(ops) > 1
}

// beside adds what a rotation at inner node n needs of its child on one side, whose keys begin with
// first. ops are on the other side.
func (l *lack) beside(n ref, side int, first []byte, ops []op) {
	deletion := ops[slices.IndexFunc(ops, l.deletes)]
	c, stub := l.v.link(n).child[side], l.v.image(n).stub(side)
	if c != 0 {
		i, inner := l.v.image(c), 1-side
		if i.height(inner) <= i.height(side) || l.v.link(c).child[inner] != 0 {
			return
		}
		if inner == right {
			first = l.v.keyOf(c)
		}
		stub = i.stub(inner)
	}
	l.add(stub, first, l.key(deletion), true)
	l.wanted = append(l.wanted, deletion.i)
}

func (l *lack) add(stub Stub, first, key []byte, beside bool) {
	l.found = append(l.found, &MissingNodeError{Node: stub, Key: bytes.Clone(key), Beside: beside, First: bytes.Clone(first)})
}

func (l *lack) key(o op) []byte { return l.changes[o.i].Key }

func (l *lack) deletes(o op) bool { return l.changes[o.i].Value == nil }
