package avlstar

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"math/bits"
	"runtime"
	"slices"
)

// Update describes one block for a replica of a range: its changes in the range, and how all
// changes altered the tree's shape there. It is logical: new nodes and their hashes follow from it
// (docs/spec/updates.md, also for its length).
type Update struct {
	// To is the version after the block. Only a header commits to To.Chunks: compare To.AppHash
	// with a proved one before you use the result of Replay.
	To Commitment
	// Changes are the effective changes of the block in the range, in ascending key order.
	Changes []UpdateChange
	// Moved are the other inner nodes with a key in the range that are new or whose height changed,
	// in ascending key order. It may contain further nodes.
	Moved []MovedNode
	// Boundary is the boundary proof of the version after the block, for the range
	// (Version.Boundary).
	Boundary []byte
}

// UpdateChange is a change of a leaf. If Value is nil, the leaf is deleted.
type UpdateChange struct {
	Change
	// Height is the height of the inner node with the same key. It is 0 if there is none, or if its
	// height did not change.
	Height uint8
}

// MovedNode is an inner node whose key belonged to an inner node of the version before, and its new
// height. Keys are long, and both sides have them, so the node is named by the old position of its
// key.
type MovedNode struct {
	// Place is where the inner node with this key was: a binary 1, and then the path from the root
	// down to it, 0 for left and 1 for right. Place 0 is the leaf with the least key, which was not
	// the key of an inner node.
	Place  uint64
	Height uint8
}

// maxPlaceDepth is the greatest depth that a Place can name. A deeper tree would have more leaves
// than fit into its memory.
const maxPlaceDepth = 63

// order returns a number that ascends with the key of the node.
func (m MovedNode) order() uint64 {
	if m.Place == 0 {
		return 0
	}
	depth := bits.Len64(m.Place) - 1
	return (m.Place<<1 | 1) << (maxPlaceDepth - depth) // the leading 1 is shifted out
}

// steps returns the number of steps from the root to the node; for Place 0, where it is not known,
// the result is 0.
func (m MovedNode) steps() int { return max(bits.Len64(m.Place)-1, 0) }

var (
	// ErrInvalidUpdate is wrapped by the errors of DecodeUpdate.
	ErrInvalidUpdate = errors.New("invalid update")
	// ErrOtherState is returned if the data do not lead to the version that they are for.
	ErrOtherState = errors.New("not the state that was named")
)

// UpdateOf returns the update of a block for replicas of r. v is the result of Apply, or a version
// that Graft made from that result. base is the version on which Apply was called. If v is another
// version, such as one that Shed made, the error is ErrOtherState. changes are those of the block,
// in any order, or only those in r. Their keys and values are not copied; changes without effect
// are left out, except perhaps a put of the present value if only Graft brought that into v. A nil
// base stands for a state without keys in r, so changes must then put every key in r. Other errors
// are those of Boundary: v needs the paths to both edges of r as they are after the block.
func (v *Version) UpdateOf(base *Version, r KeyRange, changes []Change) (Update, error) {
	if base != nil && (base.tree != v.tree || base.top != v.top && (v.from != base.epoch || v.shed)) {
		return Update{}, fmt.Errorf("avlstar: update: %w: the version was not made by applying a block to the base, or nodes of it were shed since", ErrOtherState)
	}
	boundary, err := v.Boundary(r)
	if err != nil {
		return Update{}, err
	}
	u := Update{To: v.Commitment(), Boundary: boundary}
	if base != nil && base.top == v.top {
		return u, nil // nothing changed
	}
	defer runtime.KeepAlive(base)
	w := newInRange{view: &v.view, r: r, all: base == nil}
	if base != nil {
		// A node that was copied twice records only whether the second copy moved.
		w.epoch, w.movedOnly = base.epoch, !v.grown
	}
	ordered := make([]Change, 0, len(changes))
	for _, c := range changes {
		if r.Contains(c.Key) {
			ordered = append(ordered, c)
		}
	}
	slices.SortFunc(ordered, func(a, b Change) int { return bytes.Compare(a.Key, b.Key) })
	for i := 1; i < len(ordered); i++ {
		if bytes.Equal(ordered[i-1].Key, ordered[i].Key) {
			return Update{}, fmt.Errorf("%w: key %s twice", ErrInvalidChange, abbreviate(ordered[i].Key))
		}
	}
	w.found = make([]foundInRange, 0, len(ordered))
	w.walk(v.root, v.top, len(r.First) == 0, len(r.After) == 0)
	if w.missing != nil {
		return Update{}, fmt.Errorf("avlstar: update: %w", w.missing)
	}
	if err := u.take(w.found, ordered, base); err != nil {
		return Update{}, fmt.Errorf("avlstar: update: %w", err)
	}
	return u, nil
}

// take adds the nodes that the walk found and the effective changes to u.
func (u *Update) take(found []foundInRange, changes []Change, base *Version) error {
	u.Changes = make([]UpdateChange, 0, len(changes))
	for len(found)+len(changes) > 0 {
		order := -1
		switch {
		case len(changes) == 0:
			order = 1
		case len(found) > 0:
			order = bytes.Compare(changes[0].Key, found[0].key)
		}
		switch {
		case order > 0 && found[0].height > 0:
			if err := u.move(base, found[0]); err != nil {
				return err
			}
		case order == 0 && changes[0].Value != nil && found[0].leaf:
			u.Changes = append(u.Changes, UpdateChange{changes[0], found[0].height})
		case order == 0 && found[0].height > 0: // the value did not change
			if err := u.move(base, found[0]); err != nil {
				return err
			}
		case order < 0 && changes[0].Value == nil && base != nil:
			there, err := base.Has(changes[0].Key)
			if err != nil {
				return err
			}
			if there {
				u.Changes = append(u.Changes, UpdateChange{Change: changes[0]})
			}
		}
		if order <= 0 {
			changes = changes[1:]
		}
		if order >= 0 {
			found = found[1:]
		}
	}
	return nil
}

// move adds an inner node unless base has an inner node with the same key and height.
func (u *Update) move(base *Version, found foundInRange) error {
	if base == nil {
		return fmt.Errorf("%w: without a base, the changes must put every key: key %s is not put", ErrOtherState, abbreviate(found.key))
	}
	place, height, err := base.place(found.key)
	switch {
	case isMissing(err): // a graft added the node: base has its subtree as a stub, unchanged
		return nil
	case err == nil && height != found.height:
		u.Moved = append(u.Moved, MovedNode{place, found.height})
	}
	return err
}

func isMissing(err error) bool {
	var missing *MissingNodeError
	return errors.As(err, &missing)
}

// place returns the Place of the inner node with a key, and its height: 0 for the least key of all,
// which is not the key of an inner node.
func (v *Version) place(key []byte) (place uint64, height uint8, err error) {
	n, s, prefix := v.root, v.top, prefixOf(key)
	place = 1
	for depth := 0; n.isInner(); depth++ {
		l, side := v.link(n), left
		if !v.less(key, prefix, n, l) {
			if l.prefix == prefix && bytes.Equal(v.keyOf(n), key) {
				return place, s.Height, nil
			}
			side = right
		}
		if depth == maxPlaceDepth {
			return 0, 0, fmt.Errorf("%w: an inner node below %d others", ErrTooLarge, depth)
		}
		place, s, n = place<<1|uint64(side), v.image(n).stub(side), l.child[side]
	}
	switch {
	case n == 0 && s != emptyStub:
		return 0, 0, &MissingNodeError{Node: s, Key: bytes.Clone(key)}
	case n.isLeaf() && place&(place-1) == 0 && bytes.Equal(v.key(n), key): // left at each node
		return 0, 0, nil
	}
	return 0, 0, fmt.Errorf("%w: the base has no inner node with key %s", ErrOtherState, abbreviate(key))
}

// UpdateOf does what Version.UpdateOf does.
func (p *Partial) UpdateOf(base *Partial, r KeyRange, changes []Change) (Update, error) {
	if base == nil {
		return p.v.UpdateOf(nil, r, changes)
	}
	return p.v.UpdateOf(base.v, r, changes)
}

// newInRange finds the moved inner nodes and the new leaves in a range, without visiting nodes
// outside of it.
type newInRange struct {
	*view
	r     KeyRange
	epoch uint32
	all   bool // everything is new
	// If movedOnly is set, copied nodes with an unchanged height are left out.
	movedOnly bool
	low       ref // inner node with the least key of the visited subtree; 0: the tree's least key
	found     []foundInRange
	missing   *MissingNodeError // set if all is set and a leaf of the range is not in memory
}

// foundInRange describes one key. The key is memory of the version.
type foundInRange struct {
	key    []byte
	height uint8 // height of its inner node, if that is new or its height changed; otherwise 0
	leaf   bool  // its leaf is new
}

// walk visits the subtree n. above says that all keys of n are above r.First, and below that they
// are below r.After; these keys are then not read. Keys are found in order: an inner node's own key
// is the least key of its right side.
func (w *newInRange) walk(n ref, s Stub, above, below bool) {
	switch {
	case n == 0:
		if w.all && s != emptyStub && w.missing == nil {
			w.missing = &MissingNodeError{Node: s, Key: bytes.Clone(w.r.First)}
			if w.low != 0 {
				w.missing.Key = bytes.Clone(w.keyOf(w.low))
			}
		}
		return
	case n.isLeaf():
		if !w.all && w.recordEpoch(n) <= w.epoch {
			return
		}
		if key := w.key(n); w.r.Contains(key) {
			if last := len(w.found) - 1; last >= 0 && bytes.Equal(w.found[last].key, key) {
				w.found[last].leaf = true
			} else {
				w.found = append(w.found, foundInRange{key: key, leaf: true})
			}
		}
		return
	}
	l, i := w.link(n), w.image(n)
	if !w.all && !i.newerThan(w.epoch) {
		return
	}
	atLeast := above || bytes.Compare(w.keyOf(n), w.r.First) >= 0
	less := below || bytes.Compare(w.keyOf(n), w.r.After) < 0
	if atLeast {
		w.walk(l.child[left], i.stub(left), above, less)
	}
	if atLeast && less && (!w.movedOnly || i.flags()&moved != 0) {
		w.found = append(w.found, foundInRange{key: w.keyOf(n), height: i.ownHeight()})
	}
	if less {
		w.low = n
		w.walk(l.child[right], i.stub(right), atLeast, below)
	}
}

// touch is one key of an update.
type touch struct {
	key     []byte
	value   []byte // nil: not put
	height  uint8  // height of the inner node with the key; 0: unchanged, or there is none
	deleted bool
}

// changes reports whether the leaf may be new, changed or deleted.
func (t *touch) changes() bool { return t.deleted || t.value != nil }

// check returns an error if u cannot be an update for r, whatever the version before it is.
func (u *Update) check(r KeyRange) error {
	for i := range u.Changes {
		c := &u.Changes[i]
		if err := c.check(); err != nil {
			return err
		}
		switch {
		case !r.Contains(c.Key):
			return fmt.Errorf("key %s is not in the range", abbreviate(c.Key))
		case c.Height > 0 && c.Value == nil:
			return fmt.Errorf("no inner node has height %d and key %s", c.Height, abbreviate(c.Key))
		case i > 0 && bytes.Compare(c.Key, u.Changes[i-1].Key) <= 0:
			return fmt.Errorf("key %s does not ascend", abbreviate(c.Key))
		}
	}
	for i, m := range u.Moved {
		if err := m.check(u.Moved[:i]); err != nil {
			return err
		}
	}
	return nil
}

// check checks m, which follows the nodes before.
func (m MovedNode) check(before []MovedNode) error {
	switch {
	case m.Height == 0:
		return errors.New("no inner node has height 0")
	case len(before) > 0 && m.order() <= before[len(before)-1].order():
		return fmt.Errorf("place %b does not ascend", m.Place)
	}
	return nil
}

// touched returns the keys of u in ascending order. v is the version before; the keys may be memory
// of v.
func (u *Update) touched(v *Version, r KeyRange) ([]touch, error) {
	var latest latestPage
	touched := make([]touch, 0, len(u.Changes)+len(u.Moved))
	changes := u.Changes
	add := func() {
		c := &changes[0]
		touched = append(touched, touch{c.Key, c.Value, c.Height, c.Value == nil})
		changes = changes[1:]
	}
	for _, m := range u.Moved {
		key, err := v.keyAt(m, r, &latest)
		if err != nil {
			return nil, err
		}
		for len(changes) > 0 && bytes.Compare(changes[0].Key, key) < 0 {
			add()
		}
		switch {
		case !r.Contains(key):
			return nil, fmt.Errorf("%w: key %s is not in the range", ErrOtherState, abbreviate(key))
		case len(changes) > 0 && bytes.Equal(changes[0].Key, key):
			return nil, fmt.Errorf("%w: key %s is named twice", ErrOtherState, abbreviate(key))
		}
		touched = append(touched, touch{key: key, height: m.Height})
	}
	for len(changes) > 0 {
		add()
	}
	return touched, nil
}

// leadTo yields keys that lead to the pages of v that u needs, though perhaps not to all.
func (u *Update) leadTo(v *Version) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for _, m := range u.Moved {
			_, s, n, _ := v.toPlace(&v.view, Subtree{Stub: v.top}, v.root, m.Place, m.steps())
			if n == 0 && !yield(s.First) {
				return
			}
		}
		for i := range u.Changes {
			if !yield(u.Changes[i].Key) {
				return
			}
		}
	}
}

// keyAt returns the key of the node at the Place of m. The error is ErrOtherState if there is no
// such node; *MissingNodeError if it may be below a stub of a version that is not known to be full
// in r; and *PageError if a page on the path cannot be read.
func (v *Version) keyAt(m MovedNode, r KeyRange, latest *latestPage) ([]byte, error) {
	place := m.Place
	w, s, n, rest := v.toPlace(&v.view, Subtree{Stub: v.top}, v.root, place, m.steps())
	if n == 0 && s.Stub != emptyStub && v.isAway(s) {
		page, err := latest.page(v.tree, s)
		if err != nil {
			return nil, err
		}
		w, s, n, rest = v.toPlace(runNodes{page}, s, page.root.n, place, rest)
	}
	switch {
	case place > 0 && rest == 0 && n.isInner():
		return w.keyOf(n), nil
	case place == 0 && n.isLeaf():
		key, _ := w.leaf(n)
		return key, nil
	case n == 0 && s.Stub != emptyStub && (v.full == nil || !r.Equal(*v.full)):
		key := s.First
		if key == nil {
			key = r.First
		}
		return nil, &MissingNodeError{Node: s.Stub, Key: bytes.Clone(key)}
	}
	return nil, fmt.Errorf("%w: there is no inner node at place %b", ErrOtherState, place)
}

// toPlace goes down from the subtree s, whose root is n, along the last rest steps of a Place, or
// to the left for place 0. It stops at a leaf or a stub, and returns the number of steps that are
// left.
func (v *Version) toPlace(w nodes, s Subtree, n ref, place uint64, rest int) (nodes, Subtree, ref, int) {
	for n.isInner() && (place == 0 || rest > 0) {
		side := left
		if place > 0 {
			rest--
			side = int(place >> rest & 1)
		}
		sides := [2]Subtree{}
		sides[left], sides[right] = splitAt(w, s, n)
		s, n = sides[side], w.link(n).child[side]
	}
	return w, s, n, rest
}
