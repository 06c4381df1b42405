package app

import (
	"bytes"

	"github.com/google/btree"

	"github.com/starling-kv/starling/avlstar"
)

// overlay is the state of a block that is being executed: the changes so far, in key order, over a
// committed version.
//
//	get ────────► entries (btree) ─► base
//	nearest ────► added, and base without the keys that entries delete
//	ascendRange ► present, and base without the keys that have an entry
//	set ────────► entries, and the previous value into the journal
//	undo(mark) ─► the journal backwards
//
// Methods that read base return an error if base cannot be read. No block may be made from the
// overlay after that. If needs is not nil, missing nodes of base are recorded. The overlay can then
// be used to find other missing nodes, after the changes of the failed call were undone.
//
// Values are never empty (they have at least 1 byte), so nil always stands for an absent key. The
// overlay keeps the slices that it is given. Results of get, set and nearest may be base's own
// memory, so the owner of the overlay must hold a reference to base as long as they are in use.
type overlay struct {
	base    *avlstar.Version // without its own reference
	byKey   bool             // whether base's values are read by key, see newCheckOverlay
	entries *btree.BTreeG[*overlayEntry]
	added   *btree.BTreeG[*overlayEntry] // entries that are present, but were absent in base
	present *btree.BTreeG[*overlayEntry] // entries that are present; nil: no range was read yet
	journal []undoRecord
	quotas  usages
	// The number of times that a deleted key of base was put again; gaps found before that are
	// invalid.
	revived uint64
	// The sum of the quotas of the grants to everyone; nil: not known.
	everyone *uint64
	needs    *needs       // nil: no node is missing in base
	wide     bool         // request ranges as a whole: a proposer requests once in many blocks
	probe    overlayEntry // the entry with which a search compares others
}

// overlayEntry is a key that was written in this block. Its value may equal the one in base again.
type overlayEntry struct {
	key    []byte
	value  content
	before content // in base, and memory of base

	// gap belongs to a deleted key of base: the greatest key of base below it that is not deleted
	// (nil: none). It is valid while overlay.revived equals gapAt.
	gap   []byte
	gapAt uint64 // 0: not known

	// If passed is set, all keys of base between this one and beyond (nil: the end) have entries.
	beyond []byte
	passed bool
}

// content is what is known of the value of a key. A write needs only its length, and whether it is
// equal to another value, so the value itself may be missing in base (avlstar.Version.Peek).
type content struct {
	value  []byte // nil: absent or, if length is not 0, missing in base
	length int    // 0: absent
}

func contentOf(value []byte) content { return content{value, len(value)} }

func (c content) present() bool { return c.length > 0 }

// missing reports whether the value is present but missing in base.
func (c content) missing() bool { return c.value == nil && c.length > 0 }

type undoRecord struct {
	entry   *overlayEntry
	value   content // before the write
	after   []byte  // after the write
	changed bool    // whether they differ
}

func newOverlay(base *avlstar.Version) *overlay {
	return &overlay{base: base, entries: newEntries(), added: newEntries(), quotas: newUsages(), revived: 1}
}

// newEntries returns a set without a list of free nodes, which would cost more than everything else
// in an overlay that is only read, such as those of CheckTx.
func newEntries() *btree.BTreeG[*overlayEntry] {
	less := func(a, b *overlayEntry) bool { return bytes.Compare(a.key, b.key) < 0 }
	return btree.NewWithFreeListG(32, less, btree.NewFreeListG[*overlayEntry](0))
}

// newCheckOverlay returns an overlay for checks, which no block depends on: a value that is on disk
// is read by its key (avlstar.ByKey).
func newCheckOverlay(base *avlstar.Version) *overlay {
	o := newOverlay(base)
	o.byKey = true
	return o
}

// entry returns the entry of key.
func (o *overlay) entry(key []byte) (*overlayEntry, bool) {
	o.probe.key = key
	return o.entries.Get(&o.probe)
}

func (o *overlay) get(key []byte) ([]byte, error) {
	if e, ok := o.entry(key); ok && !e.value.missing() {
		return e.value.value, nil
	}
	return o.inBase(key)
}

// peek does what get does, but its result may be without the value, if nodes are missing in base.
func (o *overlay) peek(key []byte) (content, error) {
	if e, ok := o.entry(key); ok {
		return e.value, nil
	}
	return o.peekBase(key)
}

// peekBase does what peek does, for base. The application's own records are always read with their
// values.
func (o *overlay) peekBase(key []byte) (content, error) {
	if o.needs == nil || key[0] == reserved {
		value, err := o.inBase(key)
		return contentOf(value), err
	}
	value, length, err := o.base.Peek(key)
	if err != nil {
		return content{}, o.lacked(err, avlstar.Want{Key: key, Written: true})
	}
	return content{value, length}, nil
}

// holds reports whether c, the content of key, is value; nil means that the key is absent.
func (o *overlay) holds(key []byte, c content, value []byte) (bool, error) {
	if len(value) != c.length || !c.missing() {
		return bytes.Equal(c.value, value) && len(value) == c.length, nil
	}
	same, err := o.base.Holds(key, value)
	return same, o.lacked(err, avlstar.Want{Key: key, Written: true})
}

// inBase returns the value of key in base, without a copy: if a block overwrites many large values,
// copies could be as large as the whole state.
func (o *overlay) inBase(key []byte) ([]byte, error) {
	var (
		value []byte
		err   error
	)
	if o.byKey {
		value, _, err = o.base.ByKey().View(key)
	} else {
		value, _, err = o.base.View(key)
	}
	if err != nil {
		return nil, o.lacked(err, avlstar.Want{Key: key})
	}
	return value, nil
}

// set writes value at key (nil: deletes it) and returns the previous value.
func (o *overlay) set(key, value []byte) (old content, err error) {
	e, ok := o.entry(key)
	if !ok {
		before, err := o.peekBase(key)
		if err != nil {
			return content{}, err
		}
		e = &overlayEntry{key: key, value: before, before: before}
	}
	old = e.value
	same, err := o.holds(key, old, value)
	if err != nil {
		return content{}, err
	}
	if !ok {
		o.entries.ReplaceOrInsert(e)
	}
	o.journal = append(o.journal, undoRecord{e, old, value, !same})
	o.put(e, contentOf(value))
	return old, nil
}

// wrote reports whether the last set changed the value.
func (o *overlay) wrote() bool { return o.journal[len(o.journal)-1].changed }

func (o *overlay) put(e *overlayEntry, value content) {
	o.quotas.moved(e.key, recordBytes(e.key, e.value), recordBytes(e.key, value))
	if concernsEveryone(e.key) {
		o.everyone = nil
	}
	switch was, is := e.value.present(), value.present(); {
	case was == is:
	case !e.before.present() && is:
		o.added.ReplaceOrInsert(e)
	case !e.before.present():
		o.added.Delete(e)
	case is:
		o.revived++
	}
	e.value = value
	switch {
	case o.present == nil:
	case value.present():
		o.present.ReplaceOrInsert(e)
	default:
		o.present.Delete(e)
	}
}

// mark returns the current position in the journal, for undo.
func (o *overlay) mark() int { return len(o.journal) }

// undo reverts every set since mark.
func (o *overlay) undo(mark int) {
	for i := len(o.journal) - 1; i >= mark; i-- {
		o.put(o.journal[i].entry, o.journal[i].value)
	}
	o.keep(mark)
}

// keep drops the journal since mark, so that the writes since then can no longer be undone.
func (o *overlay) keep(mark int) {
	clear(o.journal[mark:]) // the values in it may be large
	o.journal = o.journal[:mark]
}

// nearest returns the greatest present key ≤ key or, if below is set, the greatest present key <
// key; nil if there is none.
func (o *overlay) nearest(key []byte, below bool) (k, value []byte, err error) {
	if k, value, err = o.baseNearest(key, below); err != nil {
		return nil, nil, err
	}
	if o.added.Len() > 0 {
		o.probe.key = key
		o.added.DescendLessOrEqual(&o.probe, func(e *overlayEntry) bool {
			if below && bytes.Equal(e.key, key) {
				return true
			}
			if bytes.Compare(e.key, k) > 0 {
				k, value = e.key, e.value.value // not missing: it was set
			}
			return false
		})
	}
	return k, value, nil
}

// baseNearest does what nearest does, for the keys of base that are not deleted, with their current
// values. The result is stored in the entries of all deleted keys that the search passed, so that
// later searches in a block that deletes many records do not pass them again.
func (o *overlay) baseNearest(key []byte, below bool) (k, value []byte, err error) {
	var run []*overlayEntry
	for key != nil {
		var ok bool
		if k, value, ok, err = o.base.ViewFloor(key, below); err != nil {
			return nil, nil, o.lacked(err)
		}
		if !ok {
			break
		}
		e, written := o.entry(k)
		if !written {
			break
		}
		if value = nil; e.value.present() {
			value, err = o.get(k)
			break
		}
		run = append(run, e)
		if key, below = k, true; e.gapAt == o.revived {
			key, below = e.gap, false // present, or deleted since
		}
		k = nil
	}
	for _, e := range run {
		e.gap, e.gapAt = k, o.revived
	}
	return k, value, err
}

// ascend visits the keys in [start, end) that were written in this block, in order; a nil end is
// open.
func (o *overlay) ascend(start, end []byte, visit func(*overlayEntry)) {
	o.entries.AscendGreaterOrEqual(&overlayEntry{key: start}, func(e *overlayEntry) bool {
		if end != nil && bytes.Compare(e.key, end) >= 0 {
			return false
		}
		visit(e)
		return true
	})
}

// changes returns the final change of each key that differs from base, in ascending key order.
func (o *overlay) changes() []avlstar.Change {
	var changes []avlstar.Change
	o.ascend(nil, nil, func(e *overlayEntry) {
		if o.differs(e) {
			changes = append(changes, avlstar.Change{Key: e.key, Value: e.value.value})
		}
	})
	return changes
}

// differs reports whether the value of an entry differs from that in base.
func (o *overlay) differs(e *overlayEntry) bool {
	if e.value.missing() {
		return false // it is the one in base
	}
	same, err := o.holds(e.key, e.before, e.value.value)
	return err != nil || !same // base proved the value when the key was set
}

// recordBytes returns the length of the leaf record, or 0 for an absent key.
func recordBytes(key []byte, c content) uint64 {
	if !c.present() {
		return 0
	}
	return avlstar.RecordBytes(len(key), c.length)
}
