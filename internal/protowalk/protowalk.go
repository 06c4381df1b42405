// Package protowalk checks a serialized protobuf message before anything is allocated for it: how
// many elements it has, and that each has its minimum length.
//
//	bytes ──► Walk(bytes, table) ──► Unmarshal ──► the value, with a limited number of elements
//	              └──► error: nothing was allocated
//
// A generated decoder turns an element of two bytes into an element of a hundred bytes, so a
// message of 4 MiB can become a gigabyte. Walk allocates nothing. It is stricter than a decoder: it
// refuses field numbers that are out of range, groups, and a second value of a field that is not
// repeated, none of which an encoder writes. Like decoders, it skips unknown fields. The wire
// format is described at https://protobuf.dev/programming-guides/encoding/.
package protowalk

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// Errors of Walk.
var (
	// ErrMalformed: no encoder writes these bytes.
	ErrMalformed = errors.New("malformed message")
	// ErrTooMany: there are more elements than the table allows.
	ErrTooMany = errors.New("too many elements")
)

// Message describes a message type.
type Message struct {
	Name   string
	Fields []Field
	// OneOf: at most one of the fields may be set.
	OneOf bool
	// Rule, if not nil, checks the content of a message after its fields were walked; see Count.
	Rule func(content []byte) error
}

// Kind is the wire type of a field, as in its tag.
type Kind int

// The wire types. Groups (3, 4) are refused everywhere.
const (
	Varint  = Kind(protowire.VarintType)
	Fixed64 = Kind(protowire.Fixed64Type)
	Bytes   = Kind(protowire.BytesType) // bytes, strings, messages
	Fixed32 = Kind(protowire.Fixed32Type)
)

// Field describes a field. Fields that are not in the table are skipped.
type Field struct {
	Number int
	Name   string
	Kind   Kind
	// Of describes the messages in the field, whose Kind is Bytes; nil: they are not examined.
	Of *Message
	// Most is the maximum number of elements in one message. 0: the field is not repeated.
	Most int
	// Least is the minimum length of an element in bytes, without tag and length, if Kind is Bytes.
	Least int
}

// Opaque returns a field of bytes that are not examined.
func Opaque(number int, name string) Field { return Field{Number: number, Name: name, Kind: Bytes} }

// Sub returns a field that holds one message.
func Sub(number int, name string, of *Message) Field {
	return Field{Number: number, Name: name, Kind: Bytes, Of: of}
}

// Repeated returns a field that holds at most most messages of at least least bytes each. of may be
// nil.
func Repeated(number int, name string, of *Message, most, least int) Field {
	return Field{Number: number, Name: name, Kind: Bytes, Of: of, Most: most, Least: least}
}

// Walk checks b, a serialized message of type m. Its errors wrap ErrMalformed or ErrTooMany, or are
// those of a Rule. It takes time proportional to len(b) and to the depth of the table, and
// allocates nothing unless it fails.
func Walk(b []byte, m *Message) error {
	var room [24]int // enough for most messages
	counts := room[:0]
	for range m.Fields {
		counts = append(counts, 0)
	}
	set := 0
	for rest := b; len(rest) > 0; {
		e, after, err := Next(rest)
		if err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
		rest = after
		for i := range m.Fields {
			f := &m.Fields[i]
			if f.Number != e.Number {
				continue
			}
			counts[i]++
			set++
			if err := f.check(e, counts[i]); err != nil {
				return fmt.Errorf("%s: %s: %w", m.Name, f.Name, err)
			}
			if m.OneOf && set > 1 {
				return fmt.Errorf("%s: %w: more than one field", m.Name, ErrMalformed)
			}
		}
	}
	if m.Rule != nil {
		if err := m.Rule(b); err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
	}
	return nil
}

// check checks the nth element of the field in its message.
func (f *Field) check(e Element, nth int) error {
	switch {
	case e.Kind != f.Kind:
		return fmt.Errorf("%w: wire type %d, not %d", ErrMalformed, e.Kind, f.Kind)
	case nth > 1 && f.Most == 0:
		return fmt.Errorf("%w: set twice", ErrMalformed)
	case nth > max(f.Most, 1):
		return fmt.Errorf("%w: more than %d", ErrTooMany, f.Most)
	case f.Kind == Bytes && len(e.Content) < f.Least:
		return fmt.Errorf("%w: element of %d bytes, the minimum is %d", ErrMalformed, len(e.Content), f.Least)
	case f.Of != nil:
		return Walk(e.Content, f.Of)
	}
	return nil
}

// Count returns the number of elements at the end of a path of field numbers: in a message that
// Walk has accepted, Count(b, 1, 4) counts the fields 4 of all messages in fields 1. In other
// messages it counts up to the first error.
func Count(b []byte, path ...int) (n int) {
	if len(path) == 0 {
		return 1
	}
	for len(b) > 0 {
		e, rest, err := Next(b)
		if err != nil {
			return n
		}
		if e.Number == path[0] {
			n += Count(e.Content, path[1:]...)
		}
		b = rest
	}
	return n
}

// Size returns the total length of the fields with a number, without their tags and lengths. In a
// message that Walk refuses, it counts up to the first error.
func Size(b []byte, number int) (n int) {
	for len(b) > 0 {
		e, rest, err := Next(b)
		if err != nil {
			return n
		}
		if e.Number == number {
			n += len(e.Content)
		}
		b = rest
	}
	return n
}

// First returns the content of the first field with a number, a message or bytes; nil if there is
// none. In a message that Walk refuses, it searches up to the first error.
func First(b []byte, number int) []byte {
	for len(b) > 0 {
		e, rest, err := Next(b)
		if err != nil {
			return nil
		}
		if e.Number == number && e.Kind == Bytes {
			return e.Content
		}
		b = rest
	}
	return nil
}

// Element is a field with its value.
type Element struct {
	Number int
	Kind   Kind
	N      uint64 // value of a Varint
	// Content is the value of Bytes (never nil), Fixed32 or Fixed64. It refers to the message.
	Content []byte
}

// Next returns the Element at the beginning of b, and the bytes after it. Errors: ErrMalformed.
func Next(b []byte) (e Element, rest []byte, err error) {
	tag, n := protowire.ConsumeVarint(b)
	if n < 0 {
		return e, nil, malformed(n)
	}
	b = b[n:]
	// Not ConsumeTag: a generated decoder truncates a number of more than 32 bits, to that of
	// another field.
	number, kind := tag>>3, protowire.Type(tag&7)
	if number == 0 || number > uint64(protowire.MaxValidNumber) {
		return e, nil, fmt.Errorf("%w: field number %d", ErrMalformed, number)
	}
	e.Number, e.Kind = int(number), Kind(kind)
	switch kind {
	case protowire.VarintType:
		e.N, n = protowire.ConsumeVarint(b)
	case protowire.BytesType:
		e.Content, n = protowire.ConsumeBytes(b)
	case protowire.Fixed64Type, protowire.Fixed32Type:
		if n = protowire.ConsumeFieldValue(protowire.Number(number), kind, b); n >= 0 {
			e.Content = b[:n]
		}
	default:
		return e, nil, fmt.Errorf("%w: wire type %d", ErrMalformed, kind)
	}
	if n < 0 {
		return e, nil, malformed(n)
	}
	e.Content = e.Content[:len(e.Content):len(e.Content)]
	return e, b[n:], nil
}

func malformed(n int) error { return fmt.Errorf("%w: %w", ErrMalformed, protowire.ParseError(n)) }
