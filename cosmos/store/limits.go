package store

import (
	"errors"
	"fmt"

	"github.com/starling-kv/starling/avlstar"
)

// Limits of keys and of stored values, in bytes. They are the tree's, so they never change.
const (
	MaxKeyBytes   = avlstar.MaxKeyBytes
	MaxValueBytes = avlstar.MaxValueBytes
)

// ErrLimit is wrapped by what Set panics with where a key or a value is beyond what a store takes.
var ErrLimit = errors.New("beyond the limits of a Starling store")

// Check returns an error, which wraps ErrLimit, for what no store takes: an empty key or a nil
// value, a key above MaxKeyBytes, or a value whose stored form (Escape) is above MaxValueBytes.
func Check(key, value []byte) error {
	switch stored := storedBytes(value); {
	case len(key) == 0:
		return fmt.Errorf("%w: the key is nil or empty", ErrLimit)
	case len(key) > MaxKeyBytes:
		return fmt.Errorf("%w: a key of %d bytes, at most %d are possible", ErrLimit, len(key), MaxKeyBytes)
	case value == nil:
		return fmt.Errorf("%w: the value is nil", ErrLimit)
	case stored > MaxValueBytes:
		return fmt.Errorf("%w: a value that takes %d bytes, at most %d are possible", ErrLimit, stored, MaxValueBytes)
	}
	return nil
}

// AssertValid panics with Check's error: the SDK's stores report what they refuse so, and baseapp
// turns a panic inside of a transaction into the transaction's failure.
func AssertValid(key, value []byte) {
	if err := Check(key, value); err != nil {
		panic(err)
	}
}

// Escape returns the stored form of a value, which is what the tree hashes and proofs prove
// (docs/spec/cosmosstore.md#values): a value that is empty or begins with 0x00 gets a 0x00 before
// it, all others are stored as they are. The result is a copy.
func Escape(value []byte) []byte {
	return appendEscaped(make([]byte, 0, storedBytes(value)), value)
}

func appendEscaped(b, value []byte) []byte {
	if escapes(value) {
		b = append(b, 0)
	}
	return append(b, value...)
}

// Unescape returns the value whose stored form is given: a part of it.
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
