// Package record writes and reads leaf records, for the tree, its chunks and pages, and the state
// store.
//
//	leaf record = height:u8 ‖ body
//	body        = uvarint(len key) ‖ key ‖ uvarint(len value) ‖ value
//
// The format is part of consensus: a leaf's record has the length that its parent hashes
// (docs/spec/chunks.md#leaf-records). Decode accepts untrusted input. Length and Size are only for
// records that this process wrote itself; with other input they panic or return wrong results.
package record

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// Limits of keys and values in bytes. Neither may be empty, because ICS-23 cannot prove an empty
// one.
const (
	MaxKeyBytes   = 4096
	MaxValueBytes = 1 << 20
)

// The shortest record has one byte of key and one of value; the longest has 1,052,678 bytes in all.
const (
	MinBytes = 1 + 1 + 1 + 1 + 1
	MaxBytes = 1 + 2 + MaxKeyBytes + 3 + MaxValueBytes
)

var (
	// ErrShort is returned if the bytes end within a record or a number.
	ErrShort = errors.New("it ends too early")

	errLongUvarint = errors.New("a uvarint is not in its shortest form")
	errBigUvarint  = errors.New("a uvarint has more than 64 bits")
)

// Leaf is a key with its value and the height of the inner node that has the same key. The height
// is 0 for the first leaf, because no inner node has its key.
type Leaf struct {
	Key, Value []byte
	Height     uint8
}

// Bytes returns the length of the record of a key and a value of these lengths.
func Bytes(keyLen, valueLen int) uint64 {
	return 1 + UvarintBytes(keyLen) + uint64(keyLen) + UvarintBytes(valueLen) + uint64(valueLen)
}

// UvarintBytes returns the length of x as a uvarint.
func UvarintBytes(x int) uint64 { return uint64(bits.Len64(uint64(x)|1)+6) / 7 }

// Append appends the record of a leaf to b. Lengths are not checked.
func Append(b []byte, l Leaf) []byte {
	b = append(b, l.Height)
	b = binary.AppendUvarint(b, uint64(len(l.Key)))
	b = append(b, l.Key...)
	b = binary.AppendUvarint(b, uint64(len(l.Value)))
	return append(b, l.Value...)
}

// PutBody writes the body of a record to b, which must have room for it: the length that Bytes
// returns, minus 1 for the height.
func PutBody(b, key, value []byte) {
	at := binary.PutUvarint(b, uint64(len(key)))
	at += copy(b[at:], key)
	at += binary.PutUvarint(b[at:], uint64(len(value)))
	copy(b[at:], value)
}

// Decode reads the record at the beginning of b, which may be untrusted, and returns the bytes
// after it. Key and value refer to b and have no spare capacity. The error is ErrShort, or reports
// a length that is outside the limits or not in its shortest form.
func Decode(b []byte) (l Leaf, rest []byte, err error) {
	if len(b) == 0 {
		return Leaf{}, nil, ErrShort
	}
	l = Leaf{Height: b[0]}
	if l.Key, b, err = Field(b[1:], MaxKeyBytes); err != nil {
		return Leaf{}, nil, fmt.Errorf("key: %w", err)
	}
	if l.Value, b, err = Field(b, MaxValueBytes); err != nil {
		return Leaf{}, nil, fmt.Errorf("value: %w", err)
	}
	return l, b, nil
}

// Field reads uvarint(n) ‖ n bytes with 1 ≤ n ≤ limit, and returns the bytes after them.
func Field(b []byte, limit uint64) (field, rest []byte, err error) {
	n, b, err := Uvarint(b)
	switch {
	case err != nil:
		return nil, nil, err
	case n < 1 || n > limit:
		return nil, nil, fmt.Errorf("length %d, must be 1 to %d", n, limit)
	case n > uint64(len(b)):
		return nil, nil, ErrShort
	}
	return b[:n:n], b[n:], nil
}

// Uvarint reads an unsigned LEB128 number of at most 64 bits. The number must be in its shortest
// form, so that there is only one encoding.
func Uvarint(b []byte) (x uint64, rest []byte, err error) {
	if len(b) > 0 && b[0] < 0x80 { // the usual case for lengths
		return uint64(b[0]), b[1:], nil
	}
	x, n := binary.Uvarint(b)
	switch {
	case n == 0 && len(b) >= binary.MaxVarintLen64, n < 0:
		return 0, nil, errBigUvarint
	case n == 0:
		return 0, nil, ErrShort
	case n > 1 && b[n-1] == 0:
		return 0, nil, errLongUvarint
	}
	return x, b[n:], nil
}

// Length reads a length at b[at:] of a record that this process wrote, and returns it and the
// offset after it. Most lengths have one byte.
func Length(b []byte, at int) (n, end int) {
	if b[at] < 0x80 {
		return int(b[at]), at + 1
	}
	x, size := binary.Uvarint(b[at:])
	return int(x), at + size
}

// Size returns the length of the record at the beginning of b, which this process wrote.
func Size(b []byte) int {
	n, at := Length(b, 1)
	n, at = Length(b, at+n)
	return at + n
}
