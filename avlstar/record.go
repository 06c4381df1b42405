package avlstar

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// Limits of keys and values (design, section 2). Neither may be empty: ICS-23 cannot prove an empty one.
const (
	MaxKeyBytes   = 4096
	MaxValueBytes = 1 << 20
)

// The shortest leaf record has one byte of key and of value, the longest 1,052,678 bytes in all.
const (
	minRecordBytes = 1 + 1 + 1 + 1 + 1
	maxRecordBytes = 1 + 2 + MaxKeyBytes + 3 + MaxValueBytes
)

// Leaf is a key with its value and the height of the inner node that bears the same key: 0 for the first leaf, whose key no
// inner node bears.
type Leaf struct {
	Key, Value []byte
	Height     uint8
}

// RecordBytes returns the length of the leaf record of a key and a value of these lengths:
// height:u8 ‖ uvarint(len key) ‖ key ‖ uvarint(len value) ‖ value (design, section 3).
func RecordBytes(keyLen, valueLen int) uint64 {
	return 1 + uvarintBytes(keyLen) + uint64(keyLen) + uvarintBytes(valueLen) + uint64(valueLen)
}

func uvarintBytes(x int) uint64 { return uint64(bits.Len64(uint64(x)|1)+6) / 7 }

func appendRecord(b []byte, l Leaf) []byte {
	b = append(b, l.Height)
	b = binary.AppendUvarint(b, uint64(len(l.Key)))
	b = append(b, l.Key...)
	b = binary.AppendUvarint(b, uint64(len(l.Value)))
	return append(b, l.Value...)
}

// decodeRecord reads the record at the beginning of b and returns what follows it. Key and value refer to b.
func decodeRecord(b []byte) (Leaf, []byte, error) {
	if len(b) == 0 {
		return Leaf{}, nil, errShort
	}
	l := Leaf{Height: b[0]}
	var err error
	if l.Key, b, err = decodeBytes(b[1:], MaxKeyBytes); err != nil {
		return Leaf{}, nil, fmt.Errorf("key: %w", err)
	}
	if l.Value, b, err = decodeBytes(b, MaxValueBytes); err != nil {
		return Leaf{}, nil, fmt.Errorf("value: %w", err)
	}
	return l, b, nil
}

// decodeBytes reads uvarint(n) ‖ n bytes, 1 ≤ n ≤ limit, and returns what follows them.
func decodeBytes(b []byte, limit uint64) (field, rest []byte, err error) {
	n, b, err := decodeUvarint(b)
	switch {
	case err != nil:
		return nil, nil, err
	case n < 1 || n > limit:
		return nil, nil, fmt.Errorf("length %d, it is 1 to %d", n, limit)
	case n > uint64(len(b)):
		return nil, nil, errShort
	}
	return b[:n:n], b[n:], nil
}

var (
	errShort       = errors.New("it ends too early")
	errLongUvarint = errors.New("a uvarint is not in its shortest form")
	errBigUvarint  = errors.New("a uvarint has more than 64 bits")
)

// decodeUvarint reads an unsigned LEB128 of at most 64 bits in its shortest form (design, section 3, "one encoding only").
func decodeUvarint(b []byte) (uint64, []byte, error) {
	x, n := binary.Uvarint(b)
	switch {
	case n == 0 && len(b) >= binary.MaxVarintLen64, n < 0:
		return 0, nil, errBigUvarint
	case n == 0:
		return 0, nil, errShort
	case n > 1 && b[n-1] == 0:
		return 0, nil, errLongUvarint
	}
	return x, b[n:], nil
}

// checkKey and checkValue hold the limits above against what comes from our own side.
func checkKey(key []byte) error {
	if len(key) < 1 || len(key) > MaxKeyBytes {
		return fmt.Errorf("key of %d bytes, it has 1 to %d", len(key), MaxKeyBytes)
	}
	return nil
}

func checkValue(value []byte) error {
	if len(value) < 1 || len(value) > MaxValueBytes {
		return fmt.Errorf("value of %d bytes, it has 1 to %d", len(value), MaxValueBytes)
	}
	return nil
}

// abbreviate returns a key for an error message: at most 32 bytes of it.
func abbreviate(key []byte) string {
	if len(key) > 32 {
		return fmt.Sprintf("%x…", key[:32])
	}
	return fmt.Sprintf("%x", key)
}
