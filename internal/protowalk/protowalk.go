// Package protowalk checks what is in a serialised protobuf message before anything is allocated
// for it: how many elements there are, and that each has at least the bytes that it must have.
//
//	bytes ──► Walk(bytes, table) ──► Unmarshal ──► the value, of at most so many elements
//	              └──► error: nothing was allocated
//
// A generated decoder makes an element of a hundred bytes out of an element of two, so a message of
// 4 MiB can become a gigabyte. Walk allocates nothing. It is stricter than a decoder: it refuses
// field numbers that do not fit, groups, and a second value of a field that is not repeated, which
// no encoder writes. Unknown fields are skipped, as decoders do. The wire format is described at
// https://protobuf.dev/programming-guides/encoding/.
package protowalk

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Errors of Walk.
var (
	// ErrMalformed: no encoder writes these bytes.
	ErrMalformed = errors.New("malformed message")
	// ErrTooMany: there are more elements than the table allows.
	ErrTooMany = errors.New("too many elements")
)

// Message is what a table says of a type of messages.
type Message struct {
	Name   string
	Fields []Field
	// OneOf: at most one of the fields is set. Otherwise each may be.
	OneOf bool
	// Rule, if not nil, checks the content of a message whose fields have been walked already; see
	// Count.
	Rule func(content []byte) error
}

// Kind is the wire type of a field, as in its tag.
type Kind int

// The wire types. Groups (3, 4) are refused everywhere.
const (
	Varint  Kind = 0
	Fixed64 Kind = 1
	Bytes   Kind = 2 // bytes, strings, messages
	Fixed32 Kind = 5
)

// Field is what a table says of a field. Fields that are not in the table are skipped.
type Field struct {
	Number int
	Name   string
	Kind   Kind
	// Of describes the messages in the field, whose Kind is Bytes; nil: they are not looked into.
	Of *Message
	// Most is how many elements there may be in one message. 0 means 1: it is not repeated.
	Most int
	// Least is the length of the shortest element in bytes, without tag and length, where Kind is
	// Bytes.
	Least int
}

// Opaque returns a field of bytes that are not looked into.
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

// maxNumber is the greatest field number. Generated decoders cut numbers off to 32 bits: a greater
// one could stand for another field there.
const maxNumber = 1<<29 - 1

// Walk checks b, a serialised message of type m. Its errors wrap ErrMalformed or ErrTooMany, or are
// those of a Rule. It takes time proportional to len(b) and to the depth of the table, and
// allocates nothing unless it fails.
func Walk(b []byte, m *Message) error {
	var room [16]int // of most messages
	counts := room[:0]
	for range m.Fields {
		counts = append(counts, 0)
	}
	set := 0
	for rest := b; len(rest) > 0; {
		e, err := next(&rest)
		if err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
		for i := range m.Fields {
			f := &m.Fields[i]
			if f.Number != e.number {
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

// check checks an element of the field, which is the nth of its message.
func (f *Field) check(e element, nth int) error {
	switch {
	case e.kind != f.Kind:
		return fmt.Errorf("%w: wire type %d, not %d", ErrMalformed, e.kind, f.Kind)
	case nth > 1 && f.Most == 0:
		return fmt.Errorf("%w: it is there twice", ErrMalformed)
	case nth > max(f.Most, 1):
		return fmt.Errorf("%w: more than %d", ErrTooMany, f.Most)
	case f.Kind == Bytes && len(e.content) < f.Least:
		return fmt.Errorf("%w: an element of %d bytes, the shortest has %d", ErrMalformed, len(e.content), f.Least)
	case f.Of != nil:
		return Walk(e.content, f.Of)
	}
	return nil
}

// Count returns how many elements are at the end of a path of field numbers: in a message that Walk
// has accepted, Count(b, 1, 4) counts the fields 4 of all messages in fields 1. Of other bytes it
// counts what comes before the first error.
func Count(b []byte, path ...int) (n int) {
	if len(path) == 0 {
		return 1
	}
	for len(b) > 0 {
		e, err := next(&b)
		if err != nil {
			return n
		}
		if e.number == path[0] {
			n += Count(e.content, path[1:]...)
		}
	}
	return n
}

// Size returns how many bytes are in the fields of a number, without their tags and lengths. Of
// bytes that Walk refuses it counts what comes before the first error.
func Size(b []byte, number int) (n int) {
	for len(b) > 0 {
		e, err := next(&b)
		if err != nil {
			return n
		}
		if e.number == number {
			n += len(e.content)
		}
	}
	return n
}

// First returns what is in the first field of a number, a message or bytes; nil: there is none. Of
// bytes that Walk refuses it looks at what comes before the first error.
func First(b []byte, number int) []byte {
	for len(b) > 0 {
		e, err := next(&b)
		if err != nil {
			return nil
		}
		if e.number == number && e.kind == Bytes {
			return e.content
		}
	}
	return nil
}

// element is a field with its value.
type element struct {
	number  int
	kind    Kind
	content []byte // of Bytes
}

// next takes the element at the beginning of b.
func next(b *[]byte) (e element, err error) {
	tag, err := uvarint(b)
	if err != nil {
		return e, err
	}
	if number := tag >> 3; number == 0 || number > maxNumber {
		return e, fmt.Errorf("%w: field number %d", ErrMalformed, number)
	}
	e.number, e.kind = int(tag>>3), Kind(tag&7)
	var length uint64
	switch e.kind {
	case Varint:
		_, err = uvarint(b)
		return e, err
	case Fixed64:
		length = 8
	case Fixed32:
		length = 4
	case Bytes:
		if length, err = uvarint(b); err != nil {
			return e, err
		}
	default:
		return e, fmt.Errorf("%w: wire type %d", ErrMalformed, e.kind)
	}
	if length > uint64(len(*b)) {
		return e, fmt.Errorf("%w: field %d is cut off", ErrMalformed, e.number)
	}
	e.content, *b = (*b)[:length:length], (*b)[length:]
	return e, nil
}

func uvarint(b *[]byte) (uint64, error) {
	x, n := binary.Uvarint(*b)
	if n <= 0 {
		return 0, fmt.Errorf("%w: a number is cut off, or has more than 64 bits", ErrMalformed)
	}
	*b = (*b)[n:]
	return x, nil
}
