package dsm

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

// MaxKeyBytes is the greatest length of a key (docs/spec/chunks.md#leaf-records).
const MaxKeyBytes = 4096

// Range is the keys in [First, After). Either end is open if it is empty, and is then nil in all
// that this package returns.
type Range struct{ First, After []byte }

var errEmptyRange = errors.New("no key is in the range")

// check refuses ranges without keys and ends that are too long to be keys.
func (r Range) check() error {
	switch {
	case len(r.First) > MaxKeyBytes || len(r.After) > MaxKeyBytes:
		return fmt.Errorf("an end of the range has more than %d bytes", MaxKeyBytes)
	case len(r.After) > 0 && bytes.Compare(r.First, r.After) >= 0:
		return fmt.Errorf("%v: %w", r, errEmptyRange)
	}
	return nil
}

// Contains reports whether a key is in the range.
func (r Range) Contains(key []byte) bool {
	return bytes.Compare(key, r.First) >= 0 && (len(r.After) == 0 || bytes.Compare(key, r.After) < 0)
}

// Covers reports whether all keys of other are in the range.
func (r Range) Covers(other Range) bool {
	return bytes.Compare(r.First, other.First) <= 0 &&
		(len(r.After) == 0 || len(other.After) > 0 && bytes.Compare(other.After, r.After) <= 0)
}

// Equal reports whether two ranges are the same keys.
func (r Range) Equal(other Range) bool {
	return bytes.Equal(r.First, other.First) && bytes.Equal(r.After, other.After)
}

// String names the range for logs and errors, as ["a", "m"): an open end is empty.
func (r Range) String() string {
	return "[" + nameKey(r.First) + ", " + nameKey(r.After) + ")"
}

// nameKey quotes a key, shortened to what tells it from others in most cases.
func nameKey(key []byte) string {
	const most = 40
	switch {
	case len(key) == 0:
		return ""
	case len(key) > most:
		return strconv.QuoteToASCII(string(key[:most])) + "…"
	}
	return strconv.QuoteToASCII(string(key))
}
