package dsm

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Want is what a witness is to open, with the fields of avlstar.Want: the way to a key, to the
// least key above it, or to all keys of a range.
type Want struct {
	Key   []byte
	Range bool   // all keys in [Key, After)
	After []byte // nil: open
	// Next: the way to the least key above Key, of those that the answering node has. Where it has
	// none, the way to Key itself is opened: that shows where the next key is to be looked for.
	Next bool
	// Deleted: the keys will be deleted, which touches nodes beside the ways too.
	Deleted bool
}

// Least returns the least key that w can be about, which decides whose range it goes to: for a next
// key, the one just above Key. It may share its memory.
func (w Want) Least() []byte {
	if w.Next {
		return append(bytes.Clone(w.Key), 0)
	}
	return w.Key
}

const (
	wantRange = 1 << iota
	wantNext
	wantDeleted

	wantFlags = wantRange | wantNext | wantDeleted
)

var errWant = errors.New("a want is one of: a key, the next key, a range with keys")

func (w Want) check() error {
	if len(w.Key) > MaxKeyBytes || len(w.After) > MaxKeyBytes {
		return fmt.Errorf("a key has more than %d bytes", MaxKeyBytes)
	}
	if w.Range && w.Next || !w.Range && w.After != nil || w.After != nil && bytes.Compare(w.Key, w.After) >= 0 {
		return fmt.Errorf("key %s: %w", nameKey(w.Key), errWant)
	}
	return nil
}

func (w Want) flags() (f byte) {
	if w.Range {
		f |= wantRange
	}
	if w.Next {
		f |= wantNext
	}
	if w.Deleted {
		f |= wantDeleted
	}
	return f
}

// compare orders wants as they are encoded.
func (w Want) compare(other Want) int {
	return cmp.Or(bytes.Compare(w.Key, other.Key), cmp.Compare(w.flags(), other.flags()), bytes.Compare(w.After, other.After))
}

// Equal reports whether two wants are the same.
func (w Want) Equal(other Want) bool { return w.compare(other) == 0 }

// EncodedBytes returns the length of the want in a witness request: what a request can hold is
// bounded by MaxBodyBytes.
func (w Want) EncodedBytes() int {
	n := 1 + 2 + len(w.Key)
	if w.Range {
		n += 2 + len(w.After)
	}
	return n
}

// Halves cuts a want for a range of keys into two, by the keys that are possible and not by those
// that are there. ok is false for other wants, and for a range that has no middle.
func (w Want) Halves() (l, r Want, ok bool) {
	if !w.Range {
		return l, r, false
	}
	middle := between(w.Key, w.After)
	if bytes.Compare(middle, w.Key) <= 0 { // they differ in bytes 0 at the end
		middle = append(bytes.Clone(w.Key), 0)
	}
	if len(middle) > MaxKeyBytes || w.After != nil && bytes.Compare(middle, w.After) >= 0 {
		return l, r, false
	}
	l, r = w, w
	l.After, r.Key = middle, middle
	return l, r, true
}

// between returns the middle of two keys, as fractions to base 256; nil is 1. It has one byte more
// than the longer one at most.
func between(a, b []byte) []byte {
	n := max(len(a), len(b)) + 1
	at := func(key []byte, i int) int {
		if i < len(key) {
			return int(key[i])
		}
		return 0
	}
	sum := make([]int, n+1) // sum[0] is what is above the point
	for i := n - 1; i >= 0; i-- {
		sum[i+1] += at(a, i) + at(b, i)
		sum[i] += sum[i+1] >> 8
		sum[i+1] &= 0xff
	}
	if b == nil {
		sum[0]++
	}
	middle, rest := make([]byte, n), sum[0]
	for i := range n {
		rest = rest<<8 | sum[i+1]
		middle[i] = byte(rest >> 1)
		rest &= 1
	}
	for len(middle) > 0 && middle[len(middle)-1] == 0 {
		middle = middle[:len(middle)-1]
	}
	return middle
}

// Normal returns wants in the order in which they are encoded, each once. wants stays as it is.
func Normal(wants []Want) []Want {
	sorted := slices.Clone(wants)
	slices.SortFunc(sorted, Want.compare)
	return slices.CompactFunc(sorted, func(a, b Want) bool { return a.compare(b) == 0 })
}
