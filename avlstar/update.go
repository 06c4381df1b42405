package avlstar

import (
	"bytes"
	"errors"
	"fmt"
	"math/bits"
	"runtime"
	"slices"
)

// Update is what one block changes for a replica of a range: its changes, and what these and
// changes elsewhere did to the tree's shape there. It is logical: new nodes and their hashes follow
// from it (docs/spec/updates.md, also for how long it can be).
type Update struct {
	// To is the version after the block. Nothing but a header commits to To.Chunks: compare
	// To.AppHash with a proved one before the result of Replay is used.
	To Commitment
	// Changes are those of the block in the range that change something, in ascending key order.
	Changes []UpdateChange
	// Moved are the other inner nodes with a key in the range that have another height than before,
	// or are new, in ascending key order. There may be more.
	Moved []MovedNode
	// Seam is that of the version after the block, for the range (Version.Seam).
	Seam []byte
}

// UpdateChange is a change of a leaf. A nil Value: deleted.
type UpdateChange struct {
	Change
	// Height is that of the inner node with the same key; 0: there is none, or it has the height
	// that it had before.
	Height uint8
}

// MovedNode is the inner node that has the key of an inner node of the version before, and its
// height now. Keys are long, and here both sides know them: so they are named by where they were.
type MovedNode struct {
	// Place is where the inner node with this key was: a binary 1, and then the way from the root
	// down to it, 0 for left and 1 for right. Place 0 is the leaf with the least key, which no
	// inner node had.
	Place  uint64
	Height uint8
}

// maxPlaceDepth is the greatest depth of a node that a Place can name. A tree in which one is
// deeper has more leaves than its memory can hold.
const maxPlaceDepth = 63

// order is greater the greater the key of the node is.
func (m MovedNode) order() uint64 {
	if m.Place == 0 {
		return 0
	}
	depth := bits.Len64(m.Place) - 1
	return (m.Place<<1 | 1) << (maxPlaceDepth - depth) // the leading 1 is shifted out
}

var (
	// ErrInvalidUpdate is wrapped by the errors of DecodeUpdate.
	ErrInvalidUpdate = errors.New("invalid update")
	// ErrOtherState: what was given for a version does not make that version.
	ErrOtherState = errors.New("not the state that was named")
)

// UpdateOf returns the update of a block for replicas of r. v is what Apply returned, or a version
// that Graft made of it, and base the version that Apply was called on: ErrOtherState if v is
// another version, such as one that Shed made of it. changes are all of the block, in any order, or
// those in r. Their keys and values are not copied; those that change nothing are left out. A nil
// base is one that has no key in r, so changes must put every key in r then. Other errors are those
// of Seam: what v needs are the ways to both edges of r as they are after the block.
func (v *Version) UpdateOf(base *Version, r KeyRange, changes []Change) (Update, error) {
	if base != nil && (base.tree != v.tree || base.top != v.top && (v.from != base.epoch || v.shed)) {
		return Update{}, fmt.Errorf("avlstar: update: %w: it is not what applying a block to the base made, or lacks some of that", ErrOtherState)
	}
	seam, err := v.Seam(r)
	if err != nil {
		return Update{}, err
	}
	u := Update{To: v.Commitment(), Seam: seam}
	if base != nil && base.top == v.top {
		return u, nil // nothing changed
	}
	defer runtime.KeepAlive(base)
	w := newInRange{view: &v.view, r: r, all: base == nil}
	if base != nil {
		// A node that was copied twice records only whether it moved the second time.
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
	w.walk(v.root, v.top, len(r.First) == 0, r.After == nil)
	if w.missing != nil {
		return Update{}, fmt.Errorf("avlstar: update: %w", w.missing)
	}
	if err := u.take(w.found, ordered, base); err != nil {
		return Update{}, fmt.Errorf("avlstar: update: %w", err)
	}
	return u, nil
}

// take adds what the walk found to u, and of changes those that change something.
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
		case order == 0 && found[0].height > 0: // the value is as it was
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

// move adds an inner node unless it was in base, with the same height.
func (u *Update) move(base *Version, found foundInRange) error {
	if base == nil {
		return fmt.Errorf("%w: without a base, all keys are to be put: %s is not", ErrOtherState, abbreviate(found.key))
	}
	place, height, err := base.place(found.key)
	switch {
	case isMissing(err): // a graft brought it: base has its subtree as a stub, as it is
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
// which none has.
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

// UpdateOf is that of Version.
func (p *Partial) UpdateOf(base *Partial, r KeyRange, changes []Change) (Update, error) {
	if base == nil {
		return p.v.UpdateOf(nil, r, changes)
	}
	return p.v.UpdateOf(base.v, r, changes)
}

// newInRange finds the inner nodes that moved, and the leaves that are new, in a range, without a
// visit of what is outside.
type newInRange struct {
	*view
	r     KeyRange
	epoch uint32
	all   bool // everything is new
	// movedOnly: nodes are left out that were copied, and have the height that they had.
	movedOnly bool
	low       ref // inner node with the least key of what is visited; 0: it is the tree's least
	found     []foundInRange
	missing   *MissingNodeError // if all: a leaf of the range is not in memory
}

// foundInRange is a key, which is the version's memory.
type foundInRange struct {
	key    []byte
	height uint8 // of its inner node, if that is new or has another height; or 0
	leaf   bool  // its leaf is new
}

// walk visits the subtree n, of which all keys are above r.First, and all below r.After, if that is
// set: then no key is read to find out. Keys are found in order: an inner node's own is the least
// of its right side.
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

// touch is what an update says of one key.
type touch struct {
	key     []byte
	value   []byte // nil: it is not put
	height  uint8  // of the inner node that has the key; 0: as it was, or there is none
	deleted bool
}

// changes reports whether the leaf may be another one, or none.
func (t *touch) changes() bool { return t.deleted || t.value != nil }

// check returns an error unless u could have been made for r, whatever the version before.
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

// check checks m, which follows others.
func (m MovedNode) check(before []MovedNode) error {
	switch {
	case m.Height == 0:
		return errors.New("no inner node has height 0")
	case len(before) > 0 && m.order() <= before[len(before)-1].order():
		return fmt.Errorf("place %b does not ascend", m.Place)
	}
	return nil
}

// touched returns what u says of each key, in ascending order. v is the version before; keys may be
// its memory.
func (u *Update) touched(v *Version, r KeyRange) ([]touch, error) {
	touched := make([]touch, 0, len(u.Changes)+len(u.Moved))
	changes := u.Changes
	add := func() {
		c := &changes[0]
		touched = append(touched, touch{c.Key, c.Value, c.Height, c.Value == nil})
		changes = changes[1:]
	}
	for _, m := range u.Moved {
		key, err := v.keyAt(m.Place, r)
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

// keyAt returns the key of the node at a Place: ErrOtherState if there is none, *MissingNodeError
// if it may be below a stub, of a version that is not known to be full in r.
func (v *Version) keyAt(place uint64, r KeyRange) ([]byte, error) {
	n, s, low := v.root, v.top, ref(0)
	down := func(side int) {
		if side == right {
			low = n
		}
		n, s = v.link(n).child[side], v.image(n).stub(side)
	}
	for i := bits.Len64(place) - 2; i >= 0 && n.isInner(); i-- {
		down(int(place >> i & 1))
		if i == 0 && n.isInner() {
			return v.keyOf(n), nil
		}
	}
	switch {
	case place == 1 && n.isInner():
		return v.keyOf(n), nil
	case place == 0:
		for n.isInner() {
			down(left)
		}
		if n.isLeaf() {
			return v.key(n), nil
		}
	}
	if n == 0 && s != emptyStub && !r.equal(v.full) {
		missing := &MissingNodeError{Node: s, Key: bytes.Clone(r.First)}
		if low != 0 {
			missing.Key = bytes.Clone(v.keyOf(low))
		}
		return nil, missing
	}
	return nil, fmt.Errorf("%w: there is no inner node at place %b", ErrOtherState, place)
}
