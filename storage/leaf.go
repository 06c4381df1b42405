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
// A change of only the height or only the value is a merge operand of Pebble, which readers and
// compactions combine with the older records. So a rotation does not rewrite values.
//
//	SET    height ‖ value    a new leaf, or a change of both
//	MERGE  height            only the height changed; 0: no inner node has the key any more
//	MERGE  255 ‖ value       a value without a height: the older records have the height, 0 if there
//	                         are none; rare, since the tree supplies both
//	DELETE                   removes the leaf
//
// The newest height and the newest value apply independently, so merging is associative, and its
// result has the same form. Values are never empty, so a record of one byte is a height without a
// leaf.
const (
	heightBelow = 255 // in place of a height: the older records have it
	maxHeight   = heightBelow - 1
)

// errLeafForm reports a record that is not a leaf.
var errLeafForm = errors.New("malformed record of a leaf")

// splitLeaf splits the merged record of a leaf. The value aliases the record.
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

// mergerName is stored in every table and in the database options. Pebble refuses to open either
// with another merger. The name must change when the format of the operands does.
const mergerName = "starling.height.v1"

// leafMerger merges the records of leaves. It returns no errors, because an error would abort every
// compaction that includes the record. Instead, invalid operands result in a record that splitLeaf
// rejects, so that a reader of the key detects the damage.
var leafMerger = &pebble.Merger{
	Name: mergerName,
	Merge: func(_, value []byte) (pebble.ValueMerger, error) {
		m := mergedLeaves.Get().(*mergedLeaf)
		m.rec = append(m.rec[:0], value...)
		return m, nil
	},
}

var mergedLeaves = sync.Pool{New: func() any { return new(mergedLeaf) }}

// maxPooledLeaf is the size of the largest buffer that is pooled.
const maxPooledLeaf = 64 << 10

// mergedLeaf is a pebble.ValueMerger. rec is the result of the operands so far. Once empty, which
// marks damage, it stays empty.
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

// Finish implements pebble.ValueMerger. A missing base is not an error here: the reader detects it.
func (m *mergedLeaf) Finish(bool) ([]byte, io.Closer, error) { return m.rec, m, nil }

// Close implements io.Closer. It invalidates the bytes returned by Finish.
func (m *mergedLeaf) Close() error {
	if cap(m.rec) <= maxPooledLeaf {
		mergedLeaves.Put(m)
	}
	return nil
}
