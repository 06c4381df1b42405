package avlstar

import "bytes"

// Span is an interval of keys, with both ends included. It determines which nodes to ask for the
// nodes below a stub: each want that leads to the stub, or to a sibling of it, begins in the span.
// An end that is nil is open.
type Span struct{ From, To []byte }

// spanOf returns the span of a subtree, including the key behind it.
func spanOf(s Subtree) Span { return Span{From: bytes.Clone(s.First), To: bytes.Clone(s.After)} }

// with returns the least span that contains s and key. The result refers to key.
func (s Span) with(key []byte) Span { return s.join(Span{From: key, To: key}) }

// join returns the least span that contains s and t.
func (s Span) join(t Span) Span {
	if s.From != nil && (t.From == nil || bytes.Compare(t.From, s.From) < 0) {
		s.From = t.From
	}
	if s.To != nil && (t.To == nil || bytes.Compare(t.To, s.To) > 0) {
		s.To = t.To
	}
	return s
}
