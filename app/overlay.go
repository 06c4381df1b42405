package app

import (
	"bytes"

	"github.com/google/btree"

	"github.com/starling-kv/starling/avlstar"
)

// overlay is the state of a block that is being executed: what changed so far, in key order, over a
// committed version.
//
//	get ────────► entries (btree) ─► base
//	nearest ────► added, and base without what entries delete
//	ascendRange ► present, and base without what has an entry
//	set ────────► entries, and the value before into the journal
//	undo(mark) ─► the journal backwards
//
// Methods that read base return an error if base cannot be read. No block must be made of the
// overlay after that. What base lacks (needs is not nil) is noted, and the overlay can be used
// further, to find what else is lacking, once what the failed call changed was undone.
//
// Values are never empty (they have at least 1 byte), so nil is an absent key throughout. The
// overlay keeps the slices it is given. What get, set and nearest return may be base's own memory,
// so whoever made the overlay holds a reference to base for as long as these are in use.
type overlay struct {
	base    *avlstar.Version // without a reference of its own
	byKey   bool             // base's values are read so, see newCheckOverlay
	entries *btree.BTreeG[*overlayEntry]
	added   *btree.BTreeG[*overlayEntry] // entries that are present, and were absent in base
	present *btree.BTreeG[*overlayEntry] // entries that are present; nil: no range was read yet
	journal []undoRecord
	quotas  usages
	// The number of times that a deleted key of base came back: gaps found before that are void.
	revived uint64
	// The sum of the quotas of the grants to everyone; nil: not known.
	everyone *uint64
	needs    *needs       // nil: base lacks nothing
	wide     bool         // a range is asked for as a whole: a proposer asks once in many blocks
	probe    overlayEntry // what a search compares entries with
}

// overlayEntry is a key that was written in this block. Its value may again be the one before.
type overlayEntry struct {
	key    []byte
	value  []byte
	before []byte // in base, and base's memory

	// gap belongs to a deleted key of base: the greatest key of base below it that is not deleted
	// (nil: none). It is valid while overlay.revived equals gapAt.
	gap   []byte
	gapAt uint64 // 0: not known

	// If passed is set, all keys of base between this one and beyond (nil: the end) have entries.
	beyond []byte
	passed bool
}

type undoRecord struct {
	entry        *overlayEntry
	value, after []byte // before and after the write
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

// newCheckOverlay is newOverlay for checks, which no block depends on: a value that is on disk is
// read by its key (avlstar.ByKey).
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
	if e, ok := o.entry(key); ok {
		return e.value, nil
	}
	return o.inBase(key)
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
func (o *overlay) set(key, value []byte) (old []byte, err error) {
	e, ok := o.entry(key)
	if !ok {
		before, err := o.inBase(key)
		if err != nil {
			return nil, err
		}
		e = &overlayEntry{key: key, value: before, before: before}
		o.entries.ReplaceOrInsert(e)
	}
	old = e.value
	o.journal = append(o.journal, undoRecord{e, old, value})
	o.put(e, value)
	return old, nil
}

func (o *overlay) put(e *overlayEntry, value []byte) {
	o.quotas.moved(e.key, recordBytes(e.key, e.value), recordBytes(e.key, value))
	if concernsEveryone(e.key) {
		o.everyone = nil
	}
	switch was, is := e.value != nil, value != nil; {
	case was == is:
	case e.before == nil && is:
		o.added.ReplaceOrInsert(e)
	case e.before == nil:
		o.added.Delete(e)
	case is:
		o.revived++
	}
	e.value = value
	switch {
	case o.present == nil:
	case value != nil:
		o.present.ReplaceOrInsert(e)
	default:
		o.present.Delete(e)
	}
}

// mark returns the present position in the journal, for undo.
func (o *overlay) mark() int { return len(o.journal) }

// undo reverts every set since mark.
func (o *overlay) undo(mark int) {
	for i := len(o.journal) - 1; i >= mark; i-- {
		o.put(o.journal[i].entry, o.journal[i].value)
	}
	o.keep(mark)
}

// keep drops the journal since mark: what was set can no longer be undone.
func (o *overlay) keep(mark int) {
	clear(o.journal[mark:]) // the values in it may be large
	o.journal = o.journal[:mark]
}

// nearest returns the greatest key ≤ key that is present or, if below is set, the greatest key <
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
				k, value = e.key, e.value
			}
			return false
		})
	}
	return k, value, nil
}

// baseNearest is nearest for the keys of base that are not deleted, with their present values. The
// result is stored in the entries of all deleted keys that the search passed, so that a block that
// deletes many records does not pass them again in every later search.
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
		if value = e.value; value != nil {
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
	return k, value, nil
}

// ascend visits the keys in [start, end) that were written in this block, in order; end nil is
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
		if !bytes.Equal(e.value, e.before) {
			changes = append(changes, avlstar.Change{Key: e.key, Value: e.value})
		}
	})
	return changes
}

// recordBytes returns the length of the leaf record, 0 if it is absent.
func recordBytes(key, value []byte) uint64 {
	if value == nil {
		return 0
	}
	return avlstar.RecordBytes(len(key), len(value))
}

// prefixEnd returns the least key above all keys that start with prefix, nil if there is none.
func prefixEnd(prefix []byte) []byte {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] != 0xff {
			end := bytes.Clone(prefix[:i+1])
			end[i]++
			return end
		}
	}
	return nil
}
