package dsm

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/starling-kv/starling/avlstar"
)

var errEmptyRange = errors.New("the range is empty")

// checkRange refuses empty ranges, and bounds that are too long to be keys.
func checkRange(r avlstar.KeyRange) error {
	switch {
	case len(r.First) > avlstar.MaxKeyBytes || len(r.After) > avlstar.MaxKeyBytes:
		return fmt.Errorf("an end of the range has more than %d bytes", avlstar.MaxKeyBytes)
	case r.Check() != nil:
		return fmt.Errorf("%v: %w", r, errEmptyRange)
	}
	return nil
}

const (
	wantRange = 1 << iota
	wantNext
	wantDeleted
	wantWritten

	wantFlags = wantRange | wantNext | wantDeleted | wantWritten
)

var errWant = errors.New("a want must be a key, a next key, or a non-empty range")

func checkWant(w avlstar.Want) error {
	if len(w.Key) > avlstar.MaxKeyBytes || len(w.After) > avlstar.MaxKeyBytes {
		return fmt.Errorf("a key has more than %d bytes", avlstar.MaxKeyBytes)
	}
	if w.Range && w.Next || !w.Range && w.After != nil || w.After != nil && bytes.Compare(w.Key, w.After) >= 0 {
		return fmt.Errorf("key %q: %w", w.Key, errWant)
	}
	return nil
}

func flagsOf(w avlstar.Want) (f byte) {
	if w.Range {
		f |= wantRange
	}
	if w.Next {
		f |= wantNext
	}
	if w.Deleted {
		f |= wantDeleted
	}
	if w.Written {
		f |= wantWritten
	}
	return f
}

// compareWants orders wants as they are encoded.
func compareWants(a, b avlstar.Want) int {
	return cmp.Or(bytes.Compare(a.Key, b.Key), cmp.Compare(flagsOf(a), flagsOf(b)), bytes.Compare(a.After, b.After))
}

// wantBytes returns the encoded length of a want. MaxBodyBytes limits their sum in a request.
func wantBytes(w avlstar.Want) int {
	n := 1 + 2 + len(w.Key)
	if w.Range {
		n += 2 + len(w.After)
	}
	return n
}

// Normal returns a copy of wants in encoding order, without duplicates.
func Normal(wants []avlstar.Want) []avlstar.Want {
	sorted := slices.Clone(wants)
	slices.SortFunc(sorted, compareWants)
	return slices.CompactFunc(sorted, avlstar.Want.Equal)
}
