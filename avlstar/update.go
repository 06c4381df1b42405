package avlstar

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
)

// Update is what one block changes for a replica of a range: its changes, and what these and
// changes elsewhere did to the tree's shape there. It is logical: new nodes and their hashes follow
// from it (docs/spec/updates.md).
type Update struct {
	// To is the version after the block. Nothing but a header commits to To.Chunks: compare
	// To.AppHash with a proved one before the result of Replay is used.
	To Commitment
	// Changes are those of the block in the range, in ascending key order. A nil Value: deleted.
	Changes []Change
	// Heights are those of the inner nodes in the range that are new, or have another height, in
	// ascending key order (NewInner). There may be more.
	Heights []KeyHeight
	// Seam is that of the version after the block, for the range (Version.Seam).
	Seam []byte
}

// KeyHeight is the key of an inner node, and its height.
type KeyHeight struct {
	Key    []byte
	Height uint8
}

var (
	// ErrInvalidUpdate is wrapped by the errors of DecodeUpdate.
	ErrInvalidUpdate = errors.New("invalid update")
	// ErrOtherState: what was given for a version does not make that version.
	ErrOtherState = errors.New("not the state that was named")
)

// UpdateOf returns the update of a block for replicas of r. base is the version to which the block
// was applied, v the result; changes are all of the block, in any order, or those in r. Their keys
// and values are not copied. A base of which v was not made directly costs bytes: the update then
// has heights that did not change. The errors are those of Seam: what v needs are the ways to both
// edges of r as they are after the block.
func (v *Version) UpdateOf(base *Version, r KeyRange, changes []Change) (Update, error) {
	seam, err := v.Seam(r)
	if err != nil {
		return Update{}, err
	}
	u := Update{To: v.Commitment(), Seam: seam}
	for _, c := range changes {
		if r.Contains(c.Key) {
			u.Changes = append(u.Changes, c)
		}
	}
	slices.SortFunc(u.Changes, func(a, b Change) int { return bytes.Compare(a.Key, b.Key) })
	for i := 1; i < len(u.Changes); i++ {
		if bytes.Equal(u.Changes[i-1].Key, u.Changes[i].Key) {
			return Update{}, fmt.Errorf("%w: key %s twice", ErrInvalidChange, abbreviate(u.Changes[i].Key))
		}
	}
	w := newInRange{view: &v.view, r: r, all: true}
	if base != nil && base.tree == v.tree {
		if base.epoch == v.epoch {
			return u, nil
		}
		w.all, w.epoch, w.movedOnly = false, base.epoch, v.parent == base.epoch
	}
	w.heights = make([]KeyHeight, 0, len(u.Changes))
	w.walk(v.root, len(r.First) == 0, r.After == nil)
	u.Heights = w.heights
	return u, nil
}

// UpdateOf is that of Version.
func (p *Partial) UpdateOf(base *Partial, r KeyRange, changes []Change) (Update, error) {
	if base == nil {
		return p.v.UpdateOf(nil, r, changes)
	}
	return p.v.UpdateOf(base.v, r, changes)
}

// newInRange is view.newInner for the keys of a range, without a visit of what is outside.
type newInRange struct {
	*view
	r              KeyRange
	epoch          uint32
	all, movedOnly bool
	heights        []KeyHeight
}

// walk visits the subtree n, of which all keys are above r.First, and all below r.After, if that is
// set: then no key is read to find out.
func (w *newInRange) walk(n ref, above, below bool) {
	if !n.isInner() {
		return
	}
	l, i := w.link(n), w.image(n)
	if !w.all && !i.newerThan(w.epoch) {
		return
	}
	atLeast := above || bytes.Compare(w.keyOf(n), w.r.First) >= 0
	less := below || bytes.Compare(w.keyOf(n), w.r.After) < 0
	if atLeast {
		w.walk(l.child[left], above, less)
	}
	if atLeast && less && (!w.movedOnly || i.flags()&moved != 0) {
		w.heights = append(w.heights, KeyHeight{bytes.Clone(w.keyOf(n)), i.ownHeight()})
	}
	if less {
		w.walk(l.child[right], atLeast, below)
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

// touched returns what u says of each key, in ascending order. It fails if u was not made for r.
func (u *Update) touched(r KeyRange) ([]touch, error) {
	touched := make([]touch, 0, len(u.Changes)+len(u.Heights))
	changes, heights := u.Changes, u.Heights
	for len(changes)+len(heights) > 0 {
		var t touch
		order := compareNext(changes, heights)
		if order <= 0 {
			if err := changes[0].check(); err != nil {
				return nil, err
			}
			t.key, t.value, t.deleted = changes[0].Key, changes[0].Value, changes[0].Value == nil
			changes = changes[1:]
		}
		if order >= 0 {
			t.key, t.height = heights[0].Key, heights[0].Height
			heights = heights[1:]
		}
		switch {
		case !r.Contains(t.key):
			return nil, fmt.Errorf("key %s is not in the range", abbreviate(t.key))
		case order >= 0 && (t.height == 0 || t.deleted):
			return nil, fmt.Errorf("no inner node has height %d and key %s", t.height, abbreviate(t.key))
		case len(touched) > 0 && bytes.Compare(t.key, touched[len(touched)-1].key) <= 0:
			return nil, fmt.Errorf("key %s does not ascend", abbreviate(t.key))
		}
		touched = append(touched, t)
	}
	return touched, nil
}

// compareNext compares the first keys of two lists, of which one is not empty.
func compareNext(changes []Change, heights []KeyHeight) int {
	switch {
	case len(heights) == 0:
		return -1
	case len(changes) == 0:
		return 1
	}
	return bytes.Compare(changes[0].Key, heights[0].Key)
}
