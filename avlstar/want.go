package avlstar

import "bytes"

// Least returns the least key that w can concern, which determines the range to which it is sent.
// For a next key, that is the key just above Key. The result may share memory with w.
func (w Want) Least() []byte {
	if w.Next {
		return append(bytes.Clone(w.Key), 0)
	}
	return w.Key
}

// Equal reports whether two wants are the same.
func (w Want) Equal(other Want) bool {
	return bytes.Equal(w.Key, other.Key) && bytes.Equal(w.After, other.After) && w.Range == other.Range && w.Next == other.Next &&
		w.Deleted == other.Deleted && w.Written == other.Written
}

// Halves cuts a want for a range of keys in the middle of the possible keys, regardless of the keys
// that exist. ok is false for other wants, and for a range that has no middle.
func (w Want) Halves() (l, r Want, ok bool) {
	if !w.Range {
		return l, r, false
	}
	middle := middleOf(w.Key, w.After)
	if bytes.Compare(middle, w.Key) <= 0 { // they differ only in zero bytes at the end
		middle = append(bytes.Clone(w.Key), 0)
	}
	if len(middle) > MaxKeyBytes || w.After != nil && bytes.Compare(middle, w.After) >= 0 {
		return l, r, false
	}
	l, r = w, w
	l.After, r.Key = middle, middle
	return l, r, true
}

// middleOf returns the middle of two keys, taken as fractions to base 256; nil is 1. It is at most
// one byte longer than the longer one.
func middleOf(a, b []byte) []byte {
	n := max(len(a), len(b)) + 1
	at := func(key []byte, i int) int {
		if i < len(key) {
			return int(key[i])
		}
		return 0
	}
	sum := make([]int, n+1) // sum[0] is the part above the point
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
