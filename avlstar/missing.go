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
	span   Span                // of Apply: see Held
	// seen: the stub is where the block leads before anything changes, so that wants open it.
	seen bool
}

// All returns e and, of an error of Apply, one for each other subtree that the block needs, in key
// order. It does not depend on how many goroutines applied the block. Of what lies beside the way
// of a deletion, that is named which it may rotate; there may be more.
func (e *MissingNodeError) All() []*MissingNodeError {
	return append([]*MissingNodeError{e}, e.others...)
}

// Held returns the stubs of All, for Below.Held.
func (e *MissingNodeError) Held() map[Hash]Span {
	held := make(map[Hash]Span, 1+len(e.others))
	for _, m := range e.All() {
		if m == e && !e.seen {
			held[m.Node.Hash] = Span{} // where it lay before the block is not known
			continue
		}
		held[m.Node.Hash] = m.span
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
	l.walk(v.root, Subtree{Stub: v.top}, ops)
	slices.Sort(l.wanted)
	for _, i := range slices.Compact(l.wanted) {
		e.wants = append(e.wants, Want{Key: bytes.Clone(changes[i].Key), Deleted: changes[i].Value == nil})
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

// walk visits the subtree s, which is n, and to which ops lead. It reports whether the deletions
// among them may make it lower.
func (l *lack) walk(n ref, s Subtree, ops []op) (lower bool) {
	switch {
	case len(ops) == 0 || n == 0 && s.Stub == emptyStub:
		return false
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
		// A leaf that goes is replaced by its sibling, which need not be there.
		if other := 1 - side; lowered[side] && len(of[other]) == 0 && i.height(other) > i.height(side) && i.height(side) > 0 {
			l.beside(sides[other], at.child[other], other, of[side])
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

// beside adds what a rotation needs of s, which is n, the child of the node that rotates on one
// side. ops are on the other side.
func (l *lack) beside(s Subtree, n ref, side int, ops []op) {
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

func (l *lack) add(s Subtree, key []byte, beside bool) {
	key = bytes.Clone(key)
	l.found = append(l.found, &MissingNodeError{Node: s.Stub, Key: key, Beside: beside, First: bytes.Clone(s.First), span: spanOf(s).with(key)})
}

func (l *lack) key(o op) []byte { return l.changes[o.i].Key }

func (l *lack) deletes(o op) bool { return l.changes[o.i].Value == nil }
