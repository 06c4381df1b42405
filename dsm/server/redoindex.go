package server

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/storage/seglog"
)

// RangeID identifies a key range in a redo log.
type RangeID [16]byte

// RangeIDOf returns the first 16 bytes of SHA-256(length of first:u64be ‖ first ‖ length of
// after:u64be ‖ after). An open end has length 0, which no other edge has.
func RangeIDOf(r avlstar.KeyRange) RangeID {
	var b []byte
	for _, edge := range [][]byte{r.First, r.After} {
		b = append(binary.BigEndian.AppendUint64(b, uint64(len(edge))), edge...)
	}
	sum := sha256.Sum256(b)
	return RangeID(sum[:16])
}

// redoKey is the key of a record in a redo log: id:16 ‖ height:u64be ‖ before:u64be. The value of
// the record is the encoded update, or empty for redoVoid.
type redoKey struct {
	id     RangeID
	height int64
	before uint64 // total length of the records before it that were written with one sync
}

// redoVoid is the height of a record that voids all earlier ones of its range.
const redoVoid = math.MaxInt64

const redoKeyBytes = 16 + 8 + 8

func (k redoKey) encode() []byte {
	b := binary.BigEndian.AppendUint64(append(make([]byte, 0, redoKeyBytes), k.id[:]...), uint64(k.height))
	return binary.BigEndian.AppendUint64(b, k.before)
}

// decodeRedoKey is the inverse of encode. Error: seglog.ErrDamaged.
func decodeRedoKey(b []byte) (redoKey, error) {
	if len(b) != redoKeyBytes || binary.BigEndian.Uint64(b[16:]) > redoVoid {
		return redoKey{}, fmt.Errorf("%w: the key %x is not a range and a height", seglog.ErrDamaged, b)
	}
	return redoKey{RangeID(b[:16]), int64(binary.BigEndian.Uint64(b[16:])), binary.BigEndian.Uint64(b[24:])}, nil
}

// redoPlace is the location of a record.
type redoPlace struct {
	segment uint32
	offset  uint64
}

// redoIndex has the locations of the durable updates in a redo log. It has a range only if there
// are durable or queued updates of it.
type redoIndex map[RangeID]*redoRange

type redoRange struct {
	// places are those of the heights [first, first+len(places)), in ascending order. They are only
	// appended to or cut off at the beginning, so that a copy of the slice stays valid.
	first  int64
	places []redoPlace
	needed int64 // the range needs no updates below this height
	queued int   // number of changes that are not yet durable
	next   int64 // height that the next change must have, after the queued ones; 0: any
}

// end returns the height after the newest durable update.
func (r *redoRange) end() int64 { return r.first + int64(len(r.places)) }

// enqueue checks the height of a change, and counts the change as queued. Error: ErrGap.
func (x redoIndex) enqueue(id RangeID, height int64) error {
	r := x[id]
	if r == nil {
		r = &redoRange{}
		x[id] = r
	}
	if r.queued == 0 {
		r.next = 0
		if len(r.places) > 0 {
			r.next = r.end()
		}
	}
	switch {
	case height == redoVoid:
		r.next = 0
	case r.next != 0 && height != r.next:
		return fmt.Errorf("%w: got the update of height %d, want %d", ErrGap, height, r.next)
	default:
		r.next = height + 1
	}
	r.queued++
	return nil
}

// dequeue counts a change as no longer queued. If it became durable, add must precede it.
func (x redoIndex) dequeue(id RangeID) {
	x[id].queued--
	x.tidy(id)
}

// add adds a durable record. Error: ErrGap.
func (x redoIndex) add(id RangeID, height int64, at redoPlace) error {
	r := x[id]
	if r == nil {
		r = &redoRange{}
		x[id] = r
	}
	if height == redoVoid {
		r.places = nil
		x.tidy(id)
		return nil
	}
	if len(r.places) == 0 {
		r.first, r.needed = height, height
	}
	if height != r.end() {
		return fmt.Errorf("%w: found the update of height %d, want %d", ErrGap, height, r.end())
	}
	r.places = append(r.places, at)
	return nil
}

// tidy removes a range that has no updates.
func (x redoIndex) tidy(id RangeID) {
	if r := x[id]; len(r.places) == 0 && r.queued == 0 {
		delete(x, id)
	}
}

// oldestNeeded returns the segment of the oldest update that the range needs. ok is false if it
// needs none.
func (r *redoRange) oldestNeeded() (segment uint32, ok bool) {
	if r == nil || r.needed >= r.end() {
		return 0, false
	}
	return r.places[r.needed-r.first].segment, true
}

// needs reports whether a range needs a segment or an older one.
func (x redoIndex) needs(segment uint32) bool {
	for _, r := range x {
		if oldest, ok := r.oldestNeeded(); ok && oldest <= segment {
			return true
		}
	}
	return false
}

// drop removes the updates in a segment and older ones. No range may need them.
func (x redoIndex) drop(segment uint32) {
	for id, r := range x {
		n, _ := slices.BinarySearchFunc(r.places, segment+1, func(p redoPlace, s uint32) int { return cmp.Compare(p.segment, s) })
		r.places = r.places[n:]
		r.first += int64(n)
		x.tidy(id)
	}
}
