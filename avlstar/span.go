package avlstar

import "bytes"

// Span is an interval of keys, both ends included: where to ask for what is below a stub. Each want
// that leads to the stub, or beside it, begins in it. An end that is nil is open.
type Span struct{ From, To []byte }

// spanOf returns the span of a subtree, and of the key behind it.
func spanOf(s Subtree) Span { return Span{From: bytes.Clone(s.First), To: bytes.Clone(s.After)} }

// with returns the least span that has all of s and a key. key is kept.
func (s Span) with(key []byte) Span { return s.join(Span{From: key, To: key}) }

// join returns the least span that has all of s and t.
func (s Span) join(t Span) Span {
	if s.From != nil && (t.From == nil || bytes.Compare(t.From, s.From) < 0) {
		s.From = t.From
	}
	if s.To != nil && (t.To == nil || bytes.Compare(t.To, s.To) > 0) {
		s.To = t.To
	}
	return s
}
