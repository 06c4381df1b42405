package storage

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// A leaf is one record in the database:
//
//	'k' ‖ key  →  height:u8 ‖ value
//
// A change that brings only one of the two is a merge operand of Pebble, which a reader, or a
// compaction, joins with the older records below it. So a rotation rewrites no value.
//
//	SET    height ‖ value    a new leaf, or a change of both
//	MERGE  height            the height changed alone; 0: no inner node bears the key any more
//	MERGE  255 ‖ value       a value came without a height, which is that of the records below, 0 if
//	                         there are none; rare: the tree gives both
//	DELETE                   the leaf
//
// Of the height and of the value, the newest one counts each for itself: so joining is associative,
// and what is joined has the same form again. Values are never empty, so a record of one byte is a
// height that has no leaf.
const (
	heightBelow = 255 // in place of a height: that of the records below
	maxHeight   = heightBelow - 1
)

// errLeafForm is for a record that is no leaf.
var errLeafForm = errors.New("malformed record of a leaf")

// splitLeaf splits the record of a leaf, as it is after merging. The value is a part of the record.
func splitLeaf(key, rec []byte) (value []byte, height uint8, err error) {
	switch {
	case len(rec) == 0:
		return nil, 0, fmt.Errorf("%w: key %x has no bytes", errLeafForm, key)
	case len(rec) == 1:
		return nil, 0, fmt.Errorf("%w: key %x has a height and no value", errLeafForm, key)
	case rec[0] == heightBelow:
		return rec[1:], 0, nil
	}
	return rec[1:], rec[0], nil
}

// mergerName stands in every table and in the database's options: Pebble opens neither with another
// merger. It changes with the form of the operands.
const mergerName = "starling.height.v1"

// leafMerger merges records of leaves. It has no errors: Pebble would end every compaction that
// meets one. What cannot be right becomes a record that splitLeaf refuses, so that the reader of
// that key finds it.
var leafMerger = &pebble.Merger{
	Name: mergerName,
	Merge: func(_, value []byte) (pebble.ValueMerger, error) {
		m := mergedLeaves.Get().(*mergedLeaf)
		m.rec = append(m.rec[:0], value...)
		return m, nil
	},
}

var mergedLeaves = sync.Pool{New: func() any { return new(mergedLeaf) }}

// maxPooledLeaf is the maximum of bytes that a mergedLeaf keeps for the next one.
const maxPooledLeaf = 64 << 10

// mergedLeaf is a pebble.ValueMerger. Its record is that of all operands so far; an empty one
// stays empty.
type mergedLeaf struct{ rec []byte }

// MergeOlder implements pebble.ValueMerger.
func (m *mergedLeaf) MergeOlder(older []byte) error {
	switch {
	case len(m.rec) == 0 || len(older) == 0:
		m.rec = m.rec[:0]
		return nil
	case m.rec[0] == heightBelow:
		m.rec[0] = older[0]
	}
	if len(m.rec) == 1 {
		m.rec = append(m.rec, older[1:]...)
	}
	return nil
}

// MergeNewer implements pebble.ValueMerger.
func (m *mergedLeaf) MergeNewer(newer []byte) error {
	if len(m.rec) == 0 || len(newer) == 0 {
		m.rec = m.rec[:0]
		return nil
	}
	if len(newer) > 1 {
		m.rec = append(m.rec[:1], newer[1:]...)
	}
	if newer[0] != heightBelow {
		m.rec[0] = newer[0]
	}
	return nil
}

// Finish implements pebble.ValueMerger. That no base was among the operands is no error: the reader
// finds it.
func (m *mergedLeaf) Finish(bool) ([]byte, io.Closer, error) { return m.rec, m, nil }

// Close implements io.Closer: the bytes that Finish returned are not used any more.
func (m *mergedLeaf) Close() error {
	if cap(m.rec) <= maxPooledLeaf {
		mergedLeaves.Put(m)
	}
	return nil
}
