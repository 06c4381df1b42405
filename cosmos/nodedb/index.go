package nodedb

import (
	"bytes"
	"errors"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
)

// index is the fast index of a store as it would be at the height of the state. IAVL keeps that of
// the latest version alone, and a node that stops between two states has one that is newer than
// what it serves: then the difference of the two trees is laid over it.
//
//	latest tree   its nodes that are newer than the height are not ours; the first ones of those
//	              that are not, from the root down, are the roots of what both trees share
//	our tree      what is not below one of these is not in the latest
//
//	fast index − leaves of the latest tree alone + leaves of ours alone
//
// A node of the latest tree that is not newer than the height is in our tree, too: versions follow
// each other, and what one does not have no later one gets back.
type index struct {
	changes []Record // keys of the database, ascending; a nil value: our tree does not have it
}

// indexing is the index of a store.
type indexing struct {
	once  sync.Once             // compares the trees
	ready atomic.Pointer[index] // nil: there is none, or none yet
}

// Bounds of the difference of two trees. Beyond these our tree is read by itself.
const (
	worthDifference = 4        // leaves for each node, of either tree, that is read at most
	leastDifference = 1 << 10  // nodes that may be read in any case
	mostDifference  = 64 << 20 // bytes of memory
	mapEntryBytes   = 128      // of these: an entry of a map beside its key and its value
)

// anyHeight is above that of every node, which is an int8 in IAVL.
const anyHeight = math.MaxUint8

var errDifference = errors.New("the trees differ too much")

// index returns the fast index at the height of s; nil: it is of no use. If mayCompare, two trees
// may be compared first, while other callers that may do so wait.
func (s *store) index(mayCompare bool) *index {
	w := &s.indexing
	if mayCompare && s.indexed > s.height {
		w.once.Do(func() {
			// What cannot be read now is read, and reported, by the walk.
			if changes, err := s.difference(mostDifference); err == nil {
				w.ready.Store(&index{changes})
			}
		})
	}
	return w.ready.Load()
}

// close drops the difference, and keeps none that is being made. An index of the state's own height
// takes no memory.
func (w *indexing) close() {
	w.once.Do(func() {})
	if x := w.ready.Load(); x != nil && x.changes != nil {
		w.ready.Store(nil)
	}
}

// difference compares the tree that the fast index is of with that of s. It fails where it would
// keep more than most bytes of memory.
func (s *store) difference(most int) ([]Record, error) {
	root, err := s.rootOf(s.indexed)
	if err != nil {
		return nil, err
	}
	d := difference{cursors: newCursors(s), shared: map[string]bool{}, changes: map[string][]byte{}, nodes: leastDifference, room: most}
	defer d.close()
	if s.root != nil {
		n, err := s.Node(s.root)
		if err != nil {
			return nil, err
		}
		d.nodes += n.Size / worthDifference
	}
	if err := d.latest(root, anyHeight); err != nil {
		return nil, err
	}
	if err := d.ours(s.root, anyHeight); err != nil {
		return nil, err
	}
	changes := make([]Record, 0, len(d.changes))
	for _, key := range slices.Sorted(maps.Keys(d.changes)) {
		changes = append(changes, Record{[]byte(key), d.changes[key]})
	}
	return changes, nil
}

// difference is one comparison.
type difference struct {
	*cursors
	shared  map[string]bool   // by node key: the roots of what the trees share
	changes map[string][]byte // by key of the database
	nodes   int64             // that may still be read
	room    int               // bytes of memory that are left
}

// latest walks over the nodes of the latest tree that are newer than the height, from a node on
// that is lower than above: a damaged record may name its own ancestor.
func (d *difference) latest(key []byte, above uint8) error {
	if key == nil {
		return nil
	}
	if len(key) == nodeKeyBytes {
		if version, _ := splitNodeKey(key); version <= d.height {
			return d.share(key)
		}
	}
	if d.nodes--; d.nodes < 0 {
		return errDifference
	}
	n, err := d.Node(key)
	switch {
	case err != nil:
		return err
	case n.Version <= d.height: // of iavl before v1, whose node keys do not have the version
		return d.share(key)
	case n.Height >= above:
		return errScan
	case n.Height == 0:
		return d.change(n.Key, nil)
	}
	if err := d.latest(n.Left, n.Height); err != nil {
		return err
	}
	return d.latest(n.Right, n.Height)
}

// ours walks over the nodes of our tree that the latest does not have, as latest does.
func (d *difference) ours(key []byte, above uint8) error {
	if key == nil || d.shared[sharedKey(key)] {
		return nil
	}
	if d.nodes--; d.nodes < 0 {
		return errDifference
	}
	n, err := d.Node(key)
	switch {
	case err != nil:
		return err
	case n.Height >= above:
		return errScan
	case n.Height == 0:
		return d.change(n.Key, AppendFast(nil, n.Version, n.Value))
	}
	if err := d.ours(n.Left, n.Height); err != nil {
		return err
	}
	return d.ours(n.Right, n.Height)
}

func (d *difference) change(key, value []byte) error {
	k := string(d.key(kindFast, key))
	_, had := d.changes[k] // of the other tree
	d.changes[k] = value
	if had {
		return d.keeps(len(value))
	}
	return d.keeps(mapEntryBytes + len(k) + len(value))
}

func (d *difference) share(key []byte) error {
	d.shared[sharedKey(key)] = true
	return d.keeps(mapEntryBytes + len(key))
}

// keeps counts bytes of memory.
func (d *difference) keeps(n int) error {
	if d.room -= n; d.room < 0 {
		return errDifference
	}
	return nil
}

// sharedKey returns what names a node in both trees: pruning moves roots, and nodes that were
// written afterwards name the new place.
func sharedKey(key []byte) string {
	if len(key) == nodeKeyBytes {
		if version, nonce := splitNodeKey(key); nonce == movedNonce {
			return string(nodeKey(version, rootNonce))
		}
	}
	return string(key)
}

// from returns an iterator over the index of s, from a key of a leaf on.
func (x *index) from(s *store, first []byte) (Iterator, error) {
	start := s.key(kindFast, first)
	it, err := s.db.Iterator(start, s.key(kindFast+1, nil))
	if err != nil || len(x.changes) == 0 {
		return it, err
	}
	at, _ := slices.BinarySearchFunc(x.changes, start, func(r Record, key []byte) int { return bytes.Compare(r.Key, key) })
	o := &overlaid{Iterator: it, changes: x.changes[at:]}
	o.settle()
	return o, nil
}

// overlaid is an iterator with changes laid over it.
type overlaid struct {
	Iterator
	changes []Record // that are not passed yet
	changed bool     // it is at the first of these
}

// settle goes to the next key that is there, from where both are.
func (o *overlaid) settle() {
	for o.changed = false; len(o.changes) > 0; o.changes = o.changes[1:] {
		if o.Iterator.Valid() {
			switch order := bytes.Compare(o.Iterator.Key(), o.changes[0].Key); {
			case order < 0:
				return
			case order == 0:
				o.Iterator.Next()
			}
		}
		if o.changed = o.changes[0].Value != nil; o.changed {
			return
		}
	}
}

func (o *overlaid) Next() {
	if o.changed {
		o.changes = o.changes[1:]
	} else {
		o.Iterator.Next()
	}
	o.settle()
}

func (o *overlaid) Valid() bool { return o.changed || o.Iterator.Valid() }

func (o *overlaid) Key() []byte {
	if o.changed {
		return o.changes[0].Key
	}
	return o.Iterator.Key()
}

func (o *overlaid) Value() []byte {
	if o.changed {
		return o.changes[0].Value
	}
	return o.Iterator.Value()
}
