package app

import (
	"bytes"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/tx"
)

// Ranges are read from two disjoint ordered sets: the keys of base without an entry, and the
// entries that are present. A block that deletes many keys must not pass them again in every later
// range, so keys that were passed once are skipped:
//
//	base     a   b   c   d   e   f         entries  b: deleted   c: new value   d: deleted   cc: added
//	              └───┴───┘──────┐         present  c, cc
//	              beyond = e ◄───┘         range    a, c, cc, e, f
//
// Entries never leave an overlay, so a key of base that has an entry keeps it, and beyond stays
// valid whatever is set or undone.

// perRangeKey is the approximate number of bytes that are requested for each key of a range that is
// missing in base.
const perRangeKey = 4 << 10

// ascendRange yields the keys in [start, end) that are present, in order, until yield returns
// false; an empty bound is open. Their values may be missing in base. most is the approximate
// number of keys that the caller wants. It limits the request if nodes are missing in base. Keys
// and values may be base's own memory.
func (o *overlay) ascendRange(start, end []byte, most int, yield func(key []byte, c content) bool) error {
	if len(start) == 0 {
		start = nil
	}
	if len(end) == 0 {
		end = nil
	}
	o.listPresent()
	at, inclusive := start, true // where the present entries begin that were not yielded yet
	upTo := func(bound []byte) bool {
		more := true
		o.present.AscendGreaterOrEqual(&overlayEntry{key: at}, func(e *overlayEntry) bool {
			if bound != nil && bytes.Compare(e.key, bound) >= 0 {
				return false
			}
			if !inclusive && bytes.Equal(e.key, at) {
				return true
			}
			at, inclusive = e.key, false
			more = yield(e.key, e.value)
			return more
		})
		return more
	}
	more := true
	err := o.ascendUntouched(start, end, most, func(p avlstar.Peeked) bool {
		more = upTo(p.Key) && yield(p.Key, content{p.Value, p.Length})
		return more
	})
	if err == nil && more {
		upTo(end)
	}
	return err
}

// ascendUntouched yields the keys of base in [from, end) that have no entry, until yield returns
// false.
func (o *overlay) ascendUntouched(from, end []byte, most int, yield func(avlstar.Peeked) bool) error {
	var run []*overlayEntry // entries that were passed since the last key without an entry
	pass := func(beyond []byte) {
		for _, e := range run {
			e.beyond, e.passed = beyond, true
		}
		run = run[:0]
	}
	for {
		at, skip := from, false
		for p, err := range o.base.PeekRange(from, end) {
			if err != nil {
				o.needs.addRange(o.base, at, end, o.rangeRoom(most), true, err)
				return err
			}
			at = p.Key
			e, touched := o.entry(p.Key)
			if !touched {
				if pass(p.Key); !yield(p) {
					return nil
				}
				continue
			}
			if run = append(run, e); e.passed {
				from, skip = e.beyond, true
				break
			}
		}
		switch {
		case !skip:
			pass(end)
			return nil
		case from == nil || end != nil && bytes.Compare(from, end) >= 0:
			pass(from)
			return nil
		}
	}
}

// rangeRoom returns the number of bytes that are requested at once for a range with missing nodes,
// if the caller wants most keys.
func (o *overlay) rangeRoom(most int) uint64 {
	if o.wide {
		return min(tx.MaxDeleteBytes+tx.MaxValueBytes, uint64(most)*tx.MaxValueBytes)
	}
	return min(rangeRound, uint64(most)*perRangeKey)
}

// listPresent makes the set of entries that are present. put keeps it up to date from then on.
func (o *overlay) listPresent() {
	if o.present != nil {
		return
	}
	o.present = newEntries()
	o.entries.Ascend(func(e *overlayEntry) bool {
		if e.value.present() {
			o.present.ReplaceOrInsert(e)
		}
		return true
	})
}
