package avlstar

import (
	"fmt"

	"github.com/starling-kv/starling/avlstar/record"
)

// Limits of keys and values in bytes. Neither may be empty, because ICS-23 cannot prove an empty
// one.
const (
	MaxKeyBytes   = record.MaxKeyBytes
	MaxValueBytes = record.MaxValueBytes
)

// Leaf is a key with its value, and the height of the inner node that has the same key. The height
// is 0 for the first leaf, because no inner node has its key.
type Leaf = record.Leaf

// RecordBytes returns the length of the leaf record of a key and a value of these lengths.
func RecordBytes(keyLen, valueLen int) uint64 { return record.Bytes(keyLen, valueLen) }

// checkKey and checkValue check these limits for keys and values that come from this program.
func checkKey(key []byte) error {
	if len(key) < 1 || len(key) > MaxKeyBytes {
		return fmt.Errorf("key of %d bytes, must be 1 to %d", len(key), MaxKeyBytes)
	}
	return nil
}

func checkValue(value []byte) error {
	if len(value) < 1 || len(value) > MaxValueBytes {
		return fmt.Errorf("value of %d bytes, must be 1 to %d", len(value), MaxValueBytes)
	}
	return nil
}

// abbreviate returns at most the first 32 bytes of a key in hexadecimal, for an error message.
func abbreviate(key []byte) string {
	if len(key) > 32 {
		return fmt.Sprintf("%x…", key[:32])
	}
	return fmt.Sprintf("%x", key)
}
