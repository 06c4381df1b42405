package seglog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/starling-kv/starling/internal/crc32c"
)

// ErrDamaged: the bytes differ from the record that was written.
var ErrDamaged = errors.New("segment is damaged")

const (
	mark      = 'S'
	headBytes = 1 + 2 + 4 + 4 + 4
	// MaxKey is the maximum length of a key.
	MaxKey = math.MaxUint16
	// MaxValue is the maximum length of a value.
	MaxValue = 1 << 30
)

// Ref is the location of a record, with its length and checksum.
type Ref struct {
	Segment uint32
	Offset  uint64
	Length  uint32 // of the record
	Sum     uint32 // checksum of the head, which includes that of the value
}

// RefBytes is the length of an encoded Ref.
const RefBytes = 4 + 8 + 4 + 4

// AppendTo appends segment:u32 ‖ offset:u64 ‖ length:u32 ‖ sum:u32 to b.
func (r Ref) AppendTo(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, r.Segment)
	b = binary.BigEndian.AppendUint64(b, r.Offset)
	b = binary.BigEndian.AppendUint32(b, r.Length)
	return binary.BigEndian.AppendUint32(b, r.Sum)
}

// DecodeRef is the inverse of AppendTo. b must have RefBytes bytes.
func DecodeRef(b []byte) Ref {
	_ = b[RefBytes-1]
	return Ref{
		Segment: binary.BigEndian.Uint32(b), Offset: binary.BigEndian.Uint64(b[4:]),
		Length: binary.BigEndian.Uint32(b[12:]), Sum: binary.BigEndian.Uint32(b[16:]),
	}
}

// head is the beginning of a record.
type head struct {
	key      int // length
	value    int // length
	valueSum uint32
	sum      uint32
}

func (h head) length() uint32 { return uint32(headBytes + h.key + h.value) }

// decodeHead decodes the fields without comparing the checksum, which also covers the key.
func decodeHead(b []byte) (head, error) {
	if len(b) < headBytes {
		return head{}, fmt.Errorf("%w: %d bytes are too short for the head of a record", ErrDamaged, len(b))
	}
	key, value := binary.BigEndian.Uint16(b[1:]), binary.BigEndian.Uint32(b[3:])
	if b[0] != mark || key == 0 || value > MaxValue {
		return head{}, fmt.Errorf("%w: no record begins with %x", ErrDamaged, b[:headBytes])
	}
	return head{int(key), int(value), binary.BigEndian.Uint32(b[7:]), binary.BigEndian.Uint32(b[11:])}, nil
}

// place is the location at which a record is valid.
type place struct {
	salt    []byte // of a Log
	segment uint32
	offset  uint64
}

// headSum returns the checksum of a head with bytes b and of the key, at a location.
func headSum(b, key []byte, at place) uint32 {
	place := Ref{Segment: at.segment, Offset: at.offset}.AppendTo(make([]byte, 0, RefBytes+len(at.salt)))[:4+8]
	place = append(place, at.salt...)
	sum := crc32c.Sum(b[:headBytes-4])
	sum = crc32c.Update(sum, key)
	return crc32c.Update(sum, place)
}

// decodeKey returns head and key of the record at the beginning of b, which must be at that
// location. b may end before the value.
func decodeKey(b []byte, at place) (head, []byte, error) {
	h, err := decodeHead(b)
	if err != nil {
		return head{}, nil, err
	}
	if len(b) < headBytes+h.key {
		return head{}, nil, fmt.Errorf("%w: the segment ends inside a key", ErrDamaged)
	}
	key := b[headBytes : headBytes+h.key]
	if got := headSum(b, key, at); got != h.sum {
		return head{}, nil, fmt.Errorf("%w: the checksum of a record's head is %08x, want %08x", ErrDamaged, got, h.sum)
	}
	return h, key, nil
}

// decode returns head, key and value of the record at the beginning of b, which must be at that
// location. They alias b. It fails with ErrDamaged.
func decode(b []byte, at place) (h head, key, value []byte, err error) {
	h, key, err = decodeKey(b, at)
	if err != nil {
		return h, nil, nil, err
	}
	if uint64(len(b)) < uint64(h.length()) {
		return h, nil, nil, fmt.Errorf("%w: the segment ends inside a value", ErrDamaged)
	}
	end := headBytes + h.key + h.value
	value = b[headBytes+h.key : end : end]
	if got := crc32c.Sum(value); got != h.valueSum {
		return h, nil, nil, fmt.Errorf("%w: the checksum of a value is %08x, want %08x", ErrDamaged, got, h.valueSum)
	}
	return h, key, value, nil
}

// Group is a group of records that are appended together. The zero value is empty. It must be used
// by one goroutine.
type Group struct {
	records [][]byte
	bytes   int
}

// Add adds a copy of the pair. The key must have 1 to MaxKey bytes, the value at most MaxValue.
func (g *Group) Add(key, value []byte) {
	if len(key) == 0 || len(key) > MaxKey || len(value) > MaxValue {
		panic(fmt.Sprintf("seglog: key of %d bytes, value of %d", len(key), len(value)))
	}
	b := make([]byte, 0, headBytes+len(key)+len(value))
	b = append(b, mark)
	b = binary.BigEndian.AppendUint16(b, uint16(len(key)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(value)))
	b = binary.BigEndian.AppendUint32(b, crc32c.Sum(value))
	b = binary.BigEndian.AppendUint32(b, 0) // set by place
	b = append(append(b, key...), value...)
	g.records, g.bytes = append(g.records, b), g.bytes+len(b)
}

// Len returns the number of records.
func (g *Group) Len() int { return len(g.records) }

// Bytes returns the total length of the records.
func (g *Group) Bytes() int { return g.bytes }

// Key returns the key of record i, which must not be modified.
func (g *Group) Key(i int) []byte {
	b := g.records[i]
	return b[headBytes : headBytes+int(binary.BigEndian.Uint16(b[1:]))]
}

// Value returns the value of record i, which must not be modified.
func (g *Group) Value(i int) []byte {
	return g.records[i][headBytes+len(g.Key(i)):]
}

// place completes record i for a location.
func (g *Group) place(i int, at place) Ref {
	b := g.records[i]
	sum := headSum(b, g.Key(i), at)
	binary.BigEndian.PutUint32(b[headBytes-4:], sum)
	return Ref{at.segment, at.offset, uint32(len(b)), sum}
}
