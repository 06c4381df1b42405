package disk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	dbm "github.com/cosmos/cosmos-db"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/avlstar/record"
)

// A record holds what one commit changed in all stores. It is stored in parts, under the keys
//
//	"s/starling/log/" ‖ height:u64be ‖ part:u32be
//
// The parts together are
//
//	uvarint(format = 1) ‖ uvarint(previous height) ‖ uvarint(parts) ‖ store…
//	store  = uvarint(len name) ‖ name ‖ uvarint(changes) ‖ change…
//	change = uvarint(len key) ‖ key ‖ (deleted: uvarint(0) | put: uvarint(len value) ‖ stored value)
//
// Stores ascend by name, and the changes of a store by key. A name can occur twice if an earlier
// store of that name was removed: the first entry deletes the keys that the earlier store left, the
// second has the changes of the new store. The previous height is 0 if there was no state before.
// Stored values are never empty. Parts beyond the last one come from an interrupted commit.
const (
	logPrefix    = "s/starling/log/"
	recordFormat = 1
)

// partBytes is the length of each part except the last. Records are split because databases are
// slow with long values.
var partBytes = 4 << 20

var errRecord = errors.New("malformed record of a commit")

// Changes are the changes of one store.
type Changes struct {
	Name    string
	Changes []avlstar.Change
}

type commitRecord struct {
	previous int64
	stores   []Changes
}

func logKey(height int64, part uint32) []byte {
	b := binary.BigEndian.AppendUint64([]byte(logPrefix), uint64(height))
	return binary.BigEndian.AppendUint32(b, part)
}

// encode returns the parts of the record.
func (r commitRecord) encode() [][]byte {
	size := 0
	for _, s := range r.stores {
		size += 2*binary.MaxVarintLen32 + len(s.Name)
		for _, c := range s.Changes {
			size += 2*binary.MaxVarintLen32 + len(c.Key) + len(c.Value)
		}
	}
	const header = 1 + binary.MaxVarintLen64 + binary.MaxVarintLen32
	parts := 1 + (header+size)/partBytes // an upper bound; the last parts may be empty
	b := make([]byte, 0, header+size)
	b = binary.AppendUvarint(b, recordFormat)
	b = binary.AppendUvarint(b, uint64(r.previous))
	b = binary.AppendUvarint(b, uint64(parts))
	for _, s := range r.stores {
		b = appendField(b, []byte(s.Name))
		b = binary.AppendUvarint(b, uint64(len(s.Changes)))
		for _, c := range s.Changes {
			b = appendField(appendField(b, c.Key), c.Value)
		}
	}
	out := make([][]byte, 0, parts)
	for range parts {
		n := min(len(b), partBytes)
		out, b = append(out, b[:n:n]), b[n:]
	}
	return out
}

func appendField(b, field []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(field))), field...)
}

// decodeHeader decodes the header of a record, and returns the bytes after it as rest.
func decodeHeader(b []byte) (previous int64, parts uint32, rest []byte, err error) {
	var n [3]uint64
	for i := range n {
		if n[i], b, err = uvarint(b); err != nil {
			return 0, 0, nil, err
		}
	}
	switch {
	case n[0] != recordFormat:
		return 0, 0, nil, fmt.Errorf("%w: format %d is not supported, only %d", errRecord, n[0], recordFormat)
	case n[1] > math.MaxInt64 || n[2] < 1 || n[2] > math.MaxUint32:
		return 0, 0, nil, fmt.Errorf("%w: previous height %d, %d parts", errRecord, n[1], n[2])
	}
	return int64(n[1]), uint32(n[2]), b, nil
}

// decodeStores decodes the bytes after the header. The result refers to b.
func decodeStores(b []byte) (stores []Changes, err error) {
	for len(b) > 0 {
		var s Changes
		var name []byte
		var n uint64
		if name, b, err = field(b, record.MaxKeyBytes); err != nil {
			return nil, err
		}
		s.Name = string(name)
		if n, b, err = uvarint(b); err != nil {
			return nil, err
		}
		for range n { // each change takes at least two bytes, so the loop is bounded by len(b)
			var c avlstar.Change
			if c.Key, b, err = field(b, record.MaxKeyBytes); err != nil {
				return nil, err
			}
			if c.Value, b, err = field(b, record.MaxValueBytes); err != nil {
				return nil, err
			}
			if len(c.Value) == 0 {
				c.Value = nil
			}
			s.Changes = append(s.Changes, c)
		}
		stores = append(stores, s)
	}
	return stores, nil
}

func uvarint(b []byte) (uint64, []byte, error) {
	n, size := binary.Uvarint(b)
	if size <= 0 {
		return 0, nil, fmt.Errorf("%w: it ends in a number", errRecord)
	}
	return n, b[size:], nil
}

func field(b []byte, limit uint64) (content, rest []byte, err error) {
	n, b, err := uvarint(b)
	if err != nil {
		return nil, nil, err
	}
	if n > limit || n > uint64(len(b)) {
		return nil, nil, fmt.Errorf("%w: a field of %d bytes", errRecord, n)
	}
	return b[:n:n], b[n:], nil
}

// readRecord returns the record of a height. ok is false if there is none.
func readRecord(db dbm.DB, height int64) (r commitRecord, ok bool, err error) {
	b, err := db.Get(logKey(height, 0))
	if err != nil || b == nil {
		return r, false, err
	}
	previous, parts, rest, err := decodeHeader(b)
	if err != nil {
		return r, false, fmt.Errorf("height %d: %w", height, err)
	}
	rest = bytes.Clone(rest)
	for part := uint32(1); part < parts; part++ {
		b, err := db.Get(logKey(height, part))
		if err != nil {
			return r, false, err
		}
		if b == nil {
			return r, false, fmt.Errorf("height %d: %w: part %d of %d is missing", height, errRecord, part, parts)
		}
		rest = append(rest, b...)
	}
	stores, err := decodeStores(rest)
	if err != nil {
		return r, false, fmt.Errorf("height %d: %w", height, err)
	}
	return commitRecord{previous, stores}, true, nil
}

// heights calls visit for each part of the records at heights in [from, to], in ascending order,
// with the height and the key of the part.
func heights(db dbm.DB, from, to int64, visit func(height int64, key []byte)) error {
	if from > to {
		return nil
	}
	it, err := db.Iterator(logKey(from, 0), logKey(to+1, 0))
	if err != nil {
		return err
	}
	for ; it.Valid(); it.Next() {
		key := it.Key()
		if len(key) == len(logPrefix)+12 {
			visit(int64(binary.BigEndian.Uint64(key[len(logPrefix):])), bytes.Clone(key))
		}
	}
	return errors.Join(it.Error(), it.Close())
}
