package avlstar

import (
	"bytes"
	"crypto/sha256"
	"iter"
	"runtime"

	"github.com/starling-kv/starling/avlstar/record"
)

// In a version with missing nodes, a leaf can be a stub whose key is known: every key but the least
// is the key of an inner node above its leaf. Hash and length of the stub then prove whether the
// key is present, how long its value is, and whether it equals another value. A write needs no
// more, so Apply changes such a leaf without its value.
//
//	   (m)           m is present; its value has the length that follows from the stub
//	 ┌──┴──┐         a put of m replaces the stub, a put of n gets a new inner node above the stub
//	 …    stub
//	    height 0

// IsKnownLeaf reports whether s is a leaf whose key, s.First, is that of an inner node. Peek,
// PeekRange and Apply then need nothing below s.
func (s Subtree) IsKnownLeaf() bool { return s.Height == 0 && s.First != nil }

// isLeafOf reports whether s is the stub of the leaf with this key and value.
func (s Stub) isLeafOf(key, value []byte) bool {
	return s.Bytes == RecordBytes(len(key), len(value)) && s.Hash == hashLeaf(sha256.Sum256(key), sha256.Sum256(value))
}

// valueBytes returns the length of the value of a leaf with this key, or 0 if no value has the
// length of the stub.
func (s Stub) valueBytes(key []byte) int {
	least := RecordBytes(len(key), 0)
	for coded := range record.UvarintBytes(MaxValueBytes) {
		if n := int(s.Bytes - least - coded); n > 0 && RecordBytes(len(key), n) == s.Bytes {
			return n
		}
	}
	return 0
}

// Peek returns the length of the value of key, 0 if key is absent. value is that value, as View
// returns it, or nil if it is missing in v while other nodes prove the length.
func (v *Version) Peek(key []byte) (value []byte, length int, err error) {
	defer runtime.KeepAlive(v)
	if n := v.leafOf(key); n != 0 {
		_, value = v.leaf(n)
		return value[:len(value):len(value)], len(value), nil
	}
	if s, ok := v.knownLeaf(key); ok {
		if !bytes.Equal(s.First, key) {
			return nil, 0, nil
		}
		if n := s.valueBytes(key); n > 0 {
			return nil, n, nil
		}
	}
	value, _, err = v.viewPage(key, nil)
	return value, len(value), err
}

// Peeked is a key with the length of its value. Value is nil if it is missing in the version.
type Peeked struct {
	Key, Value []byte
	Length     int
}

// PeekRange does what Ascend does, but yields values as Peek returns them.
func (v *Version) PeekRange(start, end []byte) iter.Seq2[Peeked, error] {
	return func(yield func(Peeked, error) bool) {
		v.inUse()
		defer runtime.KeepAlive(v)
		if v.lacking() && v.top != emptyStub {
			v.peekRange(v.root, Subtree{Stub: v.top}, start, end, yield)
			return
		}
		for kv, err := range v.Ascend(start, end) {
			if !yield(Peeked{kv.Key, kv.Value, len(kv.Value)}, err) {
				return
			}
		}
	}
}

// peekRange yields the keys of the subtree s, whose root is n.
func (v *Version) peekRange(n ref, s Subtree, start, end []byte, yield func(Peeked, error) bool) bool {
	switch {
	case s.After != nil && bytes.Compare(s.After, start) <= 0 || end != nil && s.First != nil && bytes.Compare(s.First, end) >= 0:
		return true
	case n.isInner():
		l := v.link(n)
		sides := [2]Subtree{}
		sides[left], sides[right] = splitAt(&v.view, s, n)
		return v.peekRange(l.child[left], sides[left], start, end, yield) && v.peekRange(l.child[right], sides[right], start, end, yield)
	}
	var p Peeked
	switch {
	case n != 0:
		p.Key, p.Value = v.leaf(n)
		p.Length = len(p.Value)
		p.Value = p.Value[:p.Length:p.Length]
	case s.IsKnownLeaf() && !v.isAway(s):
		p.Key, p.Length = s.First, s.valueBytes(s.First)
	}
	if p.Length == 0 {
		page, err := v.page(s, s.First)
		if err != nil {
			yield(Peeked{}, err)
			return false
		}
		return page.leaves(start, end, 0, func(l Leaf) bool { return yield(Peeked{l.Key, l.Value, len(l.Value)}, nil) })
	}
	if bytes.Compare(p.Key, start) < 0 || end != nil && bytes.Compare(p.Key, end) >= 0 {
		return true
	}
	return yield(p, nil)
}

// Holds reports whether the value of key is value. Like Peek, it needs no value of v.
func (v *Version) Holds(key, value []byte) (bool, error) {
	if s, ok := v.knownLeaf(key); ok {
		return bytes.Equal(s.First, key) && s.isLeafOf(key, value), nil
	}
	have, ok, err := v.View(key)
	return ok && bytes.Equal(have, value), err
}

// leafKey returns the key of the leaf at the end of the path to key, or nil if it is not known.
func (v *Version) leafKey(key []byte) []byte {
	switch s, n := v.locate(key, false); {
	case n != 0:
		return v.key(n)
	case s.IsKnownLeaf():
		return s.First
	}
	return nil
}

// knownLeaf returns the leaf at the end of the path to key if it is a stub that cannot be read and
// whose key is known.
func (v *Version) knownLeaf(key []byte) (s Subtree, ok bool) {
	if !v.lacking() {
		return Subtree{}, false
	}
	v.inUse()
	defer runtime.KeepAlive(v)
	s, n := v.locate(key, false)
	return s, n == 0 && s.IsKnownLeaf() && !v.isAway(s)
}
