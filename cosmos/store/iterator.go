package store

import (
	"bytes"
	"errors"
	"runtime"

	"github.com/tidwall/btree"

	"cosmossdk.io/store/types"

	"github.com/starling-kv/starling/avlstar"
)

// An iterator takes from the version a batch at a time: few entries at first, since many iterations
// end soon.
const (
	firstBatch = 8
	maxBatch   = 256
)

// iterator yields the keys in [start, end) of a version with changes over it, as both were when it
// was made. Keys and values are copies.
type iterator struct {
	start, end []byte
	ascending  bool
	err        error

	of      *held // nil: closed, or exhausted
	batch   []avlstar.KV
	at      int
	size    int
	resume  []byte // where the next batch begins, see fill; nil: at the domain's bound
	drained bool   // the version has no more

	over    btree.IterG[avlstar.Change]
	overlay bool // over stands on a change in the domain

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

// seek sets over on the first change of the domain.
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
			panic(errors.New("store: Next of an iterator that is not valid"))
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
		var order int // of the version's entry against the change
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

// fill takes the next entries of the version.
func (it *iterator) fill() {
	it.batch, it.at = make([]avlstar.KV, 0, it.size), 0
	var arena []byte
	add := func(key, value []byte) bool {
		from := len(arena)
		arena = append(append(arena, key...), value...)
		mid := from + len(key)
		// What was taken before stays in the old array where append makes a new one.
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
			it.resume = append(bytes.Clone(kv.Key), 0) // the next key that there can be
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

// last returns the greatest key below before (nil: of all).
func last(v *avlstar.Version, before []byte) (key, value []byte, ok bool, err error) {
	if before != nil {
		return v.ViewFloor(before, true)
	}
	return v.ViewFloor(aboveAll, false)
}

// aboveAll is not below any key of a tree.
var aboveAll = bytes.Repeat([]byte{0xff}, MaxKeyBytes)

// finish ends the iteration. What is valid has a key.
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
		panic(errors.New("store: the iterator is not valid"))
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
