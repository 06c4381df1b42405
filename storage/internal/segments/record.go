package segments

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
)

// ErrDamaged: the bytes are not the record that was written there.
var ErrDamaged = errors.New("segment is damaged")

const (
	mark      = 'S'
	headBytes = 1 + 2 + 4 + 4 + 4
	// MaxKey is the greatest length of a key.
	MaxKey = math.MaxUint16
	// MaxValue is the greatest length of a value.
	MaxValue = 1 << 30
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Ref is the place of a record, and what it must be.
type Ref struct {
	Segment uint32
	Offset  uint64
	Length  uint32 // of the record
	Sum     uint32 // of its head, which contains that of its value
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

// DecodeRef is the inverse of AppendTo. b has RefBytes bytes.
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

// decodeHead reads the fields without comparing the checksum, which is over the key too.
func decodeHead(b []byte) (head, error) {
	if len(b) < headBytes {
		return head{}, fmt.Errorf("%w: %d bytes are no head of a record", ErrDamaged, len(b))
	}
	key, value := binary.BigEndian.Uint16(b[1:]), binary.BigEndian.Uint32(b[3:])
	if b[0] != mark || key == 0 || value > MaxValue {
		return head{}, fmt.Errorf("%w: no record begins with %x", ErrDamaged, b[:headBytes])
	}
	return head{int(key), int(value), binary.BigEndian.Uint32(b[7:]), binary.BigEndian.Uint32(b[11:])}, nil
}

// headSum is the checksum of a head whose bytes are b, with the key, at that place.
func headSum(b, key []byte, segment uint32, offset uint64) uint32 {
	place := Ref{Segment: segment, Offset: offset}.AppendTo(make([]byte, 0, RefBytes))[:4+8]
	sum := crc32.Update(0, castagnoli, b[:headBytes-4])
	sum = crc32.Update(sum, castagnoli, key)
	return crc32.Update(sum, castagnoli, place)
}

// decodeKey returns head and key of the record that b begins with, which lies at that place. b need
// not contain the value.
func decodeKey(b []byte, segment uint32, offset uint64) (head, []byte, error) {
	h, err := decodeHead(b)
	if err != nil {
		return head{}, nil, err
	}
	if len(b) < headBytes+h.key {
		return head{}, nil, fmt.Errorf("%w: it ends in a key", ErrDamaged)
	}
	key := b[headBytes : headBytes+h.key]
	if got := headSum(b, key, segment, offset); got != h.sum {
		return head{}, nil, fmt.Errorf("%w: the checksum of a record's head is %08x, it says %08x", ErrDamaged, got, h.sum)
	}
	return h, key, nil
}

// Decode returns key and value of the record that b begins with, which lies at that place, and its
// length. They alias b. Error: ErrDamaged.
func Decode(b []byte, segment uint32, offset uint64) (key, value []byte, length uint32, err error) {
	h, key, err := decodeKey(b, segment, offset)
	if err != nil {
		return nil, nil, 0, err
	}
	if uint64(len(b)) < uint64(h.length()) {
		return nil, nil, 0, fmt.Errorf("%w: it ends in a value", ErrDamaged)
	}
	end := headBytes + h.key + h.value
	value = b[headBytes+h.key : end : end]
	if got := crc32.Checksum(value, castagnoli); got != h.valueSum {
		return nil, nil, 0, fmt.Errorf("%w: the checksum of a value is %08x, the record says %08x", ErrDamaged, got, h.valueSum)
	}
	return key, value, h.length(), nil
}

// Group is records that are appended together. The zero value has none. It is for one goroutine.
type Group struct {
	records [][]byte
	bytes   int
}

// Add adds a copy of the pair. The key has 1 to MaxKey bytes, the value at most MaxValue.
func (g *Group) Add(key, value []byte) {
	if len(key) == 0 || len(key) > MaxKey || len(value) > MaxValue {
		panic(fmt.Sprintf("segments: key of %d bytes, value of %d", len(key), len(value)))
	}
	b := make([]byte, 0, headBytes+len(key)+len(value))
	b = append(b, mark)
	b = binary.BigEndian.AppendUint16(b, uint16(len(key)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(value)))
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(value, castagnoli))
	b = binary.BigEndian.AppendUint32(b, 0) // by place
	b = append(append(b, key...), value...)
	g.records, g.bytes = append(g.records, b), g.bytes+len(b)
}

// Len is the number of records.
func (g *Group) Len() int { return len(g.records) }

// Bytes is the length of all records.
func (g *Group) Bytes() int { return g.bytes }

// Key returns the key of record i, which is not to be changed.
func (g *Group) Key(i int) []byte {
	b := g.records[i]
	return b[headBytes : headBytes+int(binary.BigEndian.Uint16(b[1:]))]
}

// Value returns the value of record i, which is not to be changed.
func (g *Group) Value(i int) []byte {
	return g.records[i][headBytes+len(g.Key(i)):]
}

// place completes record i for that place.
func (g *Group) place(i int, segment uint32, offset uint64) Ref {
	b := g.records[i]
	sum := headSum(b, g.Key(i), segment, offset)
	binary.BigEndian.PutUint32(b[headBytes-4:], sum)
	return Ref{segment, offset, uint32(len(b)), sum}
}
