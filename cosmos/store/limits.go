package store

import (
	"errors"
	"fmt"

	"github.com/starling-kv/starling/avlstar"
)

// Limits of keys and of stored values, in bytes. They are the tree's limits and never change.
const (
	MaxKeyBytes   = avlstar.MaxKeyBytes
	MaxValueBytes = avlstar.MaxValueBytes
)

// ErrLimit is wrapped by the panic value of Set for an invalid key or value.
var ErrLimit = errors.New("beyond the limits of a Starling store")

// Check returns an error that wraps ErrLimit if the key is empty or longer than MaxKeyBytes, the
// value is nil, or the value's stored form (Escape) is longer than MaxValueBytes.
func Check(key, value []byte) error {
	switch stored := storedBytes(value); {
	case len(key) == 0:
		return fmt.Errorf("%w: the key is nil or empty", ErrLimit)
	case len(key) > MaxKeyBytes:
		return fmt.Errorf("%w: key of %d bytes, the limit is %d", ErrLimit, len(key), MaxKeyBytes)
	case value == nil:
		return fmt.Errorf("%w: the value is nil", ErrLimit)
	case stored > MaxValueBytes:
		return fmt.Errorf("%w: stored value of %d bytes, the limit is %d", ErrLimit, stored, MaxValueBytes)
	}
	return nil
}

// AssertValid panics with the error of Check. The SDK's stores also reject keys and values with a
// panic, and baseapp turns a panic within a transaction into a failed transaction.
func AssertValid(key, value []byte) {
	if err := Check(key, value); err != nil {
		panic(err)
	}
}

// Escape returns the stored form of a value, which the tree hashes and proofs prove
// (docs/spec/cosmosstore.md#values). A value that is empty or begins with 0x00 is prefixed with
// 0x00; all others are stored unchanged. The result is a copy.
func Escape(value []byte) []byte {
	return appendEscaped(make([]byte, 0, storedBytes(value)), value)
}

func appendEscaped(b, value []byte) []byte {
	if escapes(value) {
		b = append(b, 0)
	}
	return append(b, value...)
}

// Unescape returns the value with the given stored form. The result aliases stored.
func Unescape(stored []byte) []byte {
	if len(stored) > 0 && stored[0] == 0 {
		return stored[1:]
	}
	return stored
}

func escapes(value []byte) bool { return len(value) == 0 || value[0] == 0 }

func storedBytes(value []byte) int {
	if escapes(value) {
		return len(value) + 1
	}
	return len(value)
}
