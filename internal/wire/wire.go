// Package wire strictly reads binary messages of peers, clients and files: fields of fixed width
// (big-endian), uvarints in their shortest form, and length-prefixed byte strings.
//
//	bytes ──► Reader ──► Byte, Uint32, Uvarint, Bytes16, Count32 … ──► End
//	                          │ the first field that is missing or out of range
//	                          ▼
//	                      *Error: field, offset, reason
//
// A Reader allocates nothing unless it fails: byte strings refer to the message, and a count is
// refused unless the rest of the message is long enough for that many elements. After the first
// error every field is zero (byte strings are nil), so a decoder reads all fields and checks for an
// error once. Protobuf messages go through internal/protowalk.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// ErrMalformed is wrapped by all errors of a Reader.
var ErrMalformed = errors.New("malformed message")

// Error says which field of a message is wrong, and where it begins or, for Check, where it ends.
type Error struct {
	Field  string
	Offset int
	Reason error
}

func (e *Error) Error() string {
	return fmt.Sprintf("%v: %s at offset %d: %v", ErrMalformed, e.Field, e.Offset, e.Reason)
}

func (e *Error) Unwrap() []error { return []error{ErrMalformed, e.Reason} }

var (
	errShort   = errors.New("the message ends before the end of this field")
	errUvarint = errors.New("the uvarint is not minimal, or has more than 64 bits")
)

// Reader reads the fields of a message in order. It must be used by one goroutine.
type Reader struct {
	rest []byte
	size int // of the message
	err  error
}

// NewReader returns a reader of b, which must not change before the results are used.
func NewReader(b []byte) Reader { return Reader{rest: b, size: len(b)} }

func (r *Reader) fail(field string, offset int, reason error) {
	if r.err == nil {
		r.err, r.rest = &Error{field, offset, reason}, nil
	}
}

// Check records that a field that has been read is wrong, unless reason is nil or an error is
// already recorded.
func (r *Reader) Check(field string, reason error) {
	if reason != nil {
		r.fail(field, r.Offset(), reason)
	}
}

// Err returns the first error, an *Error.
func (r *Reader) Err() error { return r.err }

// End returns the first error, or an error if bytes are left.
func (r *Reader) End() error {
	if n := len(r.rest); n > 0 {
		r.fail("end", r.Offset(), fmt.Errorf("%d more bytes follow", n))
	}
	return r.err
}

// Len returns the number of remaining bytes; 0 after an error.
func (r *Reader) Len() int { return len(r.rest) }

// Offset returns the number of bytes read. After an error it is the message's length.
func (r *Reader) Offset() int { return r.size - len(r.rest) }

// Rest returns and consumes the remaining bytes; nil if there are none.
func (r *Reader) Rest() []byte {
	if len(r.rest) == 0 {
		return nil
	}
	return r.Take("rest", len(r.rest))
}

// Take reads n bytes, n >= 0. The result refers to the message and has no spare capacity.
func (r *Reader) Take(field string, n int) []byte {
	if n > len(r.rest) {
		r.fail(field, r.Offset(), errShort)
	}
	if r.err != nil {
		return nil
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}

// Byte reads one byte.
func (r *Reader) Byte(field string) byte {
	if b := r.Take(field, 1); b != nil {
		return b[0]
	}
	return 0
}

// Uint16 reads a u16be.
func (r *Reader) Uint16(field string) uint16 {
	if b := r.Take(field, 2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

// Uint32 reads a u32be.
func (r *Reader) Uint32(field string) uint32 {
	if b := r.Take(field, 4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

// Uint64 reads a u64be.
func (r *Reader) Uint64(field string) uint64 {
	if b := r.Take(field, 8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// Height reads a u64be below 2^63.
func (r *Reader) Height(field string) int64 {
	at := r.Offset()
	h := r.Uint64(field)
	return int64(r.limit(field, at, h, math.MaxInt64))
}

// limit returns n unless it is above most.
func (r *Reader) limit(field string, at int, n, most uint64) uint64 {
	if n > most {
		r.fail(field, at, fmt.Errorf("%d is more than %d", n, most))
		return 0
	}
	return n
}

// Uvarint reads an unsigned LEB128 number of at most most, in its shortest form.
func (r *Reader) Uvarint(field string, most uint64) uint64 {
	if len(r.rest) > 0 && r.rest[0] < 0x80 && uint64(r.rest[0]) <= most {
		n := r.rest[0]
		r.rest = r.rest[1:]
		return uint64(n)
	}
	at := r.Offset()
	n, size := binary.Uvarint(r.rest)
	switch {
	case size == 0:
		r.fail(field, at, errShort)
		return 0
	case size < 0 || size > 1 && r.rest[size-1] == 0:
		r.fail(field, at, errUvarint)
		return 0
	}
	r.rest = r.rest[size:]
	return r.limit(field, at, n, most)
}

// Hash reads 32 bytes.
func (r *Reader) Hash(field string) (h [32]byte) {
	copy(h[:], r.Take(field, len(h)))
	return h
}

// Bytes16 reads length:u16be ‖ bytes, of at most most bytes.
func (r *Reader) Bytes16(field string, most int) []byte {
	at := r.Offset()
	return r.bytes(field, at, uint64(r.Uint16(field)), most)
}

// Bytes32 reads length:u32be ‖ bytes, of at most most bytes.
func (r *Reader) Bytes32(field string, most int) []byte {
	at := r.Offset()
	return r.bytes(field, at, uint64(r.Uint32(field)), most)
}

// Bytes reads uvarint(length) ‖ bytes, of at most most bytes.
func (r *Reader) Bytes(field string, most int) []byte {
	at := r.Offset()
	return r.bytes(field, at, r.Uvarint(field, uint64(most)), most)
}

func (r *Reader) bytes(field string, at int, n uint64, most int) []byte {
	return r.Take(field, int(r.limit(field, at, n, uint64(most))))
}

// Count16 reads n:u16be, the number of following elements, each of at least bytesEach bytes. It
// fails if n is above most, or if the rest of the message is too short for n elements.
func (r *Reader) Count16(field string, most, bytesEach int) int {
	at := r.Offset()
	return r.count(field, at, uint64(r.Uint16(field)), most, bytesEach)
}

// Count32 is Count16 with n:u32be.
func (r *Reader) Count32(field string, most, bytesEach int) int {
	at := r.Offset()
	return r.count(field, at, uint64(r.Uint32(field)), most, bytesEach)
}

func (r *Reader) count(field string, at int, n uint64, most, bytesEach int) int {
	n = r.limit(field, at, n, uint64(most))
	if n > uint64(len(r.rest)/bytesEach) {
		r.fail(field, at, fmt.Errorf("%d elements in %d bytes", n, len(r.rest)))
		return 0
	}
	return int(n)
}
