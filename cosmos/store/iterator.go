package store

import (
	"bytes"
	"errors"
	"runtime"

	"github.com/tidwall/btree"

	"github.com/cosmos/cosmos-sdk/store/v2/types"

	"github.com/starling-kv/starling/avlstar"
)

// An iterator reads the version in batches. The first batch is small because many iterations end
// early.
const (
	firstBatch = 8
	maxBatch   = 256
)

// iterator iterates over the keys in [start, end) of a version merged with pending changes, both as
// of the creation of the iterator. Keys and values are copies.
type iterator struct {
	start, end []byte
	ascending  bool
	err        error

	of      *held // the version; nil: closed or exhausted
	batch   []avlstar.KV
	at      int    // index of the next entry in batch
	size    int    // of the next batch; 0: closed
	resume  []byte // bound of the next batch, see fillUp and fillDown; nil: the domain's bound
	drained bool   // the version has no more entries

	over    btree.IterG[avlstar.Change]
	overlay bool // over is positioned at a change in the domain

	key, value []byte // nil key: the end
}

var _ types.Iterator = (*iterator)(nil)

func newIterator(v *avlstar.Version, p pending, start, end []byte, ascending bool) *iterator {
	it := &iterator{start: start, end: end, ascending: ascending, of: hold(v), size: firstBatch}
	if !p.empty() {
		it.over = p.tree.Iter()
		it.overlay = it.seek()
	}
	it.Next()
	return it
}

// seek positions over at the first change in the domain, in iteration order. It reports whether
// there is one.
func (it *iterator) seek() bool {
	switch {
	case it.ascending && it.start == nil:
		return it.over.First() && it.inDomain()
	case it.ascending:
		return it.over.Seek(avlstar.Change{Key: it.start}) && it.inDomain()
	case it.end == nil || !it.over.Seek(avlstar.Change{Key: it.end}):
		return it.over.Last() && it.inDomain()
	}
	return it.over.Prev() && it.inDomain()
}

func (it *iterator) inDomain() bool {
	key := it.over.Item().Key
	return (it.start == nil || bytes.Compare(key, it.start) >= 0) && (it.end == nil || bytes.Compare(key, it.end) < 0)
}

func (it *iterator) step() {
	if it.ascending {
		it.overlay = it.over.Next() && it.inDomain()
	} else {
		it.overlay = it.over.Prev() && it.inDomain()
	}
}

// Next implements types.Iterator.
func (it *iterator) Next() {
	if it.of == nil {
		if it.size != 0 {
			panic(errors.New("store: Next called on an invalid iterator"))
		}
		return
	}
	for {
		if it.at == len(it.batch) && !it.drained {
			it.fill()
		}
		below := it.at < len(it.batch)
		if !below && !it.overlay {
			it.finish()
			return
		}
		var order int // of the version's entry compared with the change
		switch {
		case !below:
			order = 1
		case !it.overlay:
			order = -1
		default:
			if order = bytes.Compare(it.batch[it.at].Key, it.over.Item().Key); !it.ascending {
				order = -order
			}
		}
		if order < 0 {
			it.key, it.value = it.batch[it.at].Key, Unescape(it.batch[it.at].Value)
			it.at++
			return
		}
		if order == 0 {
			it.at++ // the change replaces it
		}
		change := it.over.Item()
		it.step()
		if change.Value != nil {
			it.key, it.value = bytes.Clone(change.Key), bytes.Clone(Unescape(change.Value))
			return
		}
	}
}

// fill reads the next batch of entries from the version.
func (it *iterator) fill() {
	it.batch, it.at = make([]avlstar.KV, 0, it.size), 0
	var arena []byte
	add := func(key, value []byte) bool {
		from := len(arena)
		arena = append(append(arena, key...), value...)
		mid := from + len(key)
		// If append reallocates, earlier entries still refer to the old array.
		it.batch = append(it.batch, avlstar.KV{Key: arena[from:mid:mid], Value: arena[mid:len(arena):len(arena)]})
		return len(it.batch) < it.size
	}
	if it.ascending {
		it.fillUp(add)
	} else {
		it.fillDown(add)
	}
	runtime.KeepAlive(it.of)
	it.drained = len(it.batch) < it.size
	it.size = min(2*it.size, maxBatch)
}

func (it *iterator) fillUp(add func(key, value []byte) bool) {
	from := it.start
	if it.resume != nil {
		from = it.resume
	}
	for kv, err := range it.of.v.Ascend(from, it.end) {
		if err != nil {
			it.err = err
			return
		}
		if !add(kv.Key, kv.Value) {
			it.resume = append(bytes.Clone(kv.Key), 0) // the smallest key above kv.Key
			return
		}
	}
}

func (it *iterator) fillDown(add func(key, value []byte) bool) {
	before := it.end
	if it.resume != nil {
		before = it.resume
	}
	for {
		key, value, ok, err := last(it.of.v, before)
		switch {
		case err != nil:
			it.err = err
			return
		case !ok || it.start != nil && bytes.Compare(key, it.start) < 0:
			return
		case !add(key, value):
			it.resume = bytes.Clone(key)
			return
		}
		before = it.batch[len(it.batch)-1].Key
	}
}

// last returns the greatest key below before, or the greatest of all if before is nil.
func last(v *avlstar.Version, before []byte) (key, value []byte, ok bool, err error) {
	if before != nil {
		return v.ViewFloor(before, true)
	}
	return v.ViewFloor(aboveAll, false)
}

// aboveAll is greater than or equal to every key of a tree.
var aboveAll = bytes.Repeat([]byte{0xff}, MaxKeyBytes)

// finish ends the iteration.
func (it *iterator) finish() {
	it.key, it.value, it.batch = nil, nil, nil
	it.of.release()
	it.of = nil
}

// Domain implements types.Iterator.
func (it *iterator) Domain() (start, end []byte) { return it.start, it.end }

// Valid implements types.Iterator.
func (it *iterator) Valid() bool { return it.key != nil }

// Key implements types.Iterator.
func (it *iterator) Key() []byte {
	it.assertValid()
	return it.key
}

// Value implements types.Iterator.
func (it *iterator) Value() []byte {
	it.assertValid()
	return it.value
}

func (it *iterator) assertValid() {
	if it.key == nil {
		panic(errors.New("store: Key or Value called on an invalid iterator"))
	}
}

// Error implements types.Iterator.
func (it *iterator) Error() error { return it.err }

// Close implements types.Iterator.
func (it *iterator) Close() error {
	if it.of != nil {
		it.finish()
	}
	it.size = 0 // closed, so that Next does nothing
	return it.err
}
