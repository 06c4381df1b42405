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

// index is the fast index of a store at the height of the state. IAVL keeps the index of the latest
// version only. A node that was stopped between two states serves an older state; then the index is
// corrected by the difference of the two trees.
//
//	latest tree   nodes newer than the height are not in our tree; going down from the root, the
//	              first nodes that are not newer are the roots of the shared subtrees
//	our tree      nodes outside the shared subtrees are not in the latest tree
//
//	fast index − leaves of the latest tree alone + leaves of ours alone
//
// A node of the latest tree that is not newer than the height is also in our tree: a node that one
// version has dropped does not come back in a later one.
type index struct {
	changes []Record // by database key; nil value: not in our tree
}

// indexing manages the index of a store.
type indexing struct {
	once  sync.Once             // guards the comparison of the trees
	ready atomic.Pointer[index] // nil: no index, or not yet
}

// Limits of a comparison. If they are exceeded, our tree is read without the index.
const (
	worthDifference = 4        // leaves per node, of either tree, that may be read
	leastDifference = 1 << 10  // nodes that may always be read
	mostDifference  = 64 << 20 // bytes of memory
	mapEntryBytes   = 128      // size of a map entry without its key and value
)

// anyHeight is greater than the height of every node, which is an int8 in IAVL.
const anyHeight = math.MaxUint8

var errDifference = errors.New("the trees differ too much")

// index returns the fast index at the height of s, or nil if it cannot be used. If mayCompare is
// set, it may first compare two trees; other callers with mayCompare would wait meanwhile, so a
// State has one at a time.
func (s *store) index(mayCompare bool) *index {
	w := &s.indexing
	if mayCompare && s.indexed > s.height {
		w.once.Do(func() {
			// Ignore errors: the walk reads the same nodes, and reports them.
			if changes, err := s.difference(mostDifference); err == nil {
				w.ready.Store(&index{changes})
			}
		})
	}
	return w.ready.Load()
}

// close drops the difference, including one in progress. An index of the state's own height uses no
// memory.
func (w *indexing) close() {
	w.once.Do(func() {})
	if x := w.ready.Load(); x != nil && x.changes != nil {
		w.ready.Store(nil)
	}
}

// difference compares the tree of the fast index with the tree of s. It fails if it would keep more
// than most bytes of memory.
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

// difference is the state of one comparison.
type difference struct {
	*cursors
	shared  map[string]bool   // by node key: roots of shared subtrees
	changes map[string][]byte // by key of the database
	nodes   int64             // nodes that may still be read
	room    int               // bytes of memory left
}

// latest walks over the nodes of the latest tree that are newer than the height, starting at key.
// It fails unless heights decrease below above, because a damaged record may reference its own
// ancestor.
func (d *difference) latest(key []byte, above uint8) error {
	if key == nil {
		return nil
	}
	if version, _ := splitNodeKey(key); version <= d.height {
		return d.share(key)
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
		return d.change(n.Key, nil)
	}
	if err := d.latest(n.Left, n.Height); err != nil {
		return err
	}
	return d.latest(n.Right, n.Height)
}

// ours is latest for the nodes of our tree that are not in the latest tree.
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
	_, had := d.changes[k] // change recorded for the other tree
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

// keeps counts n bytes of memory.
func (d *difference) keeps(n int) error {
	if d.room -= n; d.room < 0 {
		return errDifference
	}
	return nil
}

// sharedKey returns the same name for a node in both trees. Pruning moves a root, and nodes written
// afterwards reference its new place.
func sharedKey(key []byte) string {
	if version, nonce := splitNodeKey(key); nonce == movedNonce {
		return string(nodeKey(version, rootNonce))
	}
	return string(key)
}

// from returns an iterator over the index of s, starting at the key of a leaf.
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

// overlaid is an iterator corrected by changes.
type overlaid struct {
	Iterator
	changes []Record // changes that are not passed yet
	changed bool     // the iterator is at the first of these
}

// settle moves to the next key of the result, from the current positions.
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
