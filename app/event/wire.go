package event

import (
	"errors"
	"fmt"
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/starling-kv/starling/internal/protowalk"
)

// Limits that a decoder enforces. maxKeyBytes is the limit of the state, avlstar.MaxKeyBytes.
const (
	maxKeyBytes  = 4096
	maxKindBytes = 32
	hashBytes    = 32 // so that a decoded event takes less than four times its bytes
)

// Fields of the messages, see docs/spec/events.md.
const (
	eventHeight, eventIndex, eventTx, eventKind, eventKey, eventValue, eventPrevious, eventOmitted         = 1, 2, 3, 4, 5, 6, 7, 8
	requestHeight, requestIndex, requestStart, requestEnd, requestPrevious, requestWaitMS, requestMaxBytes = 1, 2, 3, 4, 5, 6, 7
	answerEvent, answerNextHeight, answerNextIndex, answerHead, answerLeast                                = 1, 2, 3, 4, 5
)

func appendNumber(b []byte, field protowire.Number, n uint64) []byte {
	if n == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), n)
}

func appendBytes[T []byte | string](b []byte, field protowire.Number, value T) []byte {
	if len(value) == 0 {
		return b
	}
	b = protowire.AppendVarint(protowire.AppendTag(b, field, protowire.BytesType), uint64(len(value)))
	return append(b, value...)
}

// fields visits the fields of a message, which are numbers or bytes. A visitor skips unknown field
// numbers, which a later version may have added.
func fields(b []byte, visit func(protowalk.Element) error) error {
	for len(b) > 0 {
		f, rest, err := next(b)
		if err != nil {
			return err
		}
		if err := visit(f); err != nil {
			return err
		}
		b = rest
	}
	return nil
}

func next(b []byte) (f protowalk.Element, rest []byte, err error) {
	f, rest, err = protowalk.Next(b)
	if err == nil && f.Kind != protowalk.Varint && f.Kind != protowalk.Bytes {
		err = fmt.Errorf("field %d has wire type %d", f.Number, f.Kind)
	}
	return f, rest, err
}

func height(n uint64) (int64, error) {
	if n > math.MaxInt64-1 {
		return 0, fmt.Errorf("%d is not a height", n)
	}
	return int64(n), nil
}

func number32(n uint64) (uint32, error) {
	if n > math.MaxUint32 {
		return 0, fmt.Errorf("%d has more than 32 bits", n)
	}
	return uint32(n), nil
}

// AppendEvent appends e as a field of an Answer. A list of events is their concatenation.
func AppendEvent(b []byte, e *Event, previous bool) []byte {
	size := sizeNumber(uint64(e.Height)) + sizeNumber(uint64(e.Index)) + sizeBytes(len(e.Tx)) + sizeBytes(len(e.Kind)) +
		sizeBytes(len(e.Key)) + sizeBytes(len(e.Value))
	if previous {
		size += sizeBytes(len(e.Previous))
	}
	if e.Omitted {
		size += sizeNumber(1)
	}
	b = protowire.AppendTag(b, answerEvent, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(size))
	b = appendNumber(b, eventHeight, uint64(e.Height))
	b = appendNumber(b, eventIndex, uint64(e.Index))
	b = appendBytes(b, eventTx, e.Tx)
	b = appendBytes(b, eventKind, e.Kind)
	b = appendBytes(b, eventKey, e.Key)
	b = appendBytes(b, eventValue, e.Value)
	if previous {
		b = appendBytes(b, eventPrevious, e.Previous)
	}
	if e.Omitted {
		b = appendNumber(b, eventOmitted, 1)
	}
	return b
}

// All field numbers are below 16, so that a tag has one byte.
func sizeNumber(n uint64) int {
	if n == 0 {
		return 0
	}
	return 1 + protowire.SizeVarint(n)
}

func sizeBytes(n int) int {
	if n == 0 {
		return 0
	}
	return 1 + protowire.SizeBytes(n)
}

// NextEvent decodes the first event of a list. Its fields refer to b.
func NextEvent(b []byte) (e Event, rest []byte, err error) {
	f, rest, err := next(b)
	if err != nil {
		return e, nil, err
	}
	if f.Number != answerEvent || f.Kind != protowalk.Bytes {
		return e, nil, fmt.Errorf("field %d instead of an event", f.Number)
	}
	e, err = decodeEvent(f.Content)
	return e, rest, err
}

func decodeEvent(b []byte) (e Event, err error) {
	err = fields(b, func(f protowalk.Element) (err error) {
		switch f.Number {
		case eventHeight:
			e.Height, err = height(f.N)
		case eventIndex:
			e.Index, err = number32(f.N)
		case eventTx:
			e.Tx = f.Content
		case eventKind:
			if len(f.Content) > maxKindBytes {
				return fmt.Errorf("a kind of %d bytes", len(f.Content))
			}
			e.Kind = kind(f.Content)
		case eventKey:
			e.Key = f.Content
		case eventValue:
			e.Value = f.Content
		case eventPrevious:
			e.Previous = f.Content
		case eventOmitted:
			e.Omitted = f.N != 0
		}
		return err
	})
	switch {
	case err != nil:
	case e.Height < 1:
		err = errors.New("an event without a height")
	case len(e.Tx) != hashBytes:
		err = fmt.Errorf("a transaction's hash of %d bytes", len(e.Tx))
	case len(e.Key) < 1 || len(e.Key) > maxKeyBytes:
		err = fmt.Errorf("a key of %d bytes", len(e.Key))
	case e.Kind == "":
		err = errors.New("an event without a kind")
	}
	if err != nil {
		return Event{}, fmt.Errorf("not an event: %w", err)
	}
	if len(e.Value) == 0 {
		e.Value = nil
	}
	if len(e.Previous) == 0 {
		e.Previous = nil
	}
	return e, nil
}

// kind returns string(b), without an allocation for the usual kinds.
func kind(b []byte) string {
	switch string(b) {
	case Put:
		return Put
	case Delete:
		return Delete
	}
	return string(b)
}

// Encode returns the bytes of the request.
func (r *Request) Encode() []byte {
	var b []byte
	b = appendNumber(b, requestHeight, uint64(r.From.Height))
	b = appendNumber(b, requestIndex, uint64(r.From.Index))
	b = appendBytes(b, requestStart, r.Keys.Start)
	b = appendBytes(b, requestEnd, r.Keys.End)
	if r.Previous {
		b = appendNumber(b, requestPrevious, 1)
	}
	b = appendNumber(b, requestWaitMS, uint64(r.WaitMS))
	return appendNumber(b, requestMaxBytes, uint64(r.MaxBytes))
}

// DecodeRequest decodes and checks a request.
func DecodeRequest(b []byte) (r Request, err error) {
	err = fields(b, func(f protowalk.Element) (err error) {
		switch f.Number {
		case requestHeight:
			r.From.Height, err = height(f.N)
		case requestIndex:
			r.From.Index, err = number32(f.N)
		case requestStart:
			r.Keys.Start = f.Content
		case requestEnd:
			r.Keys.End = f.Content
		case requestPrevious:
			r.Previous = f.N != 0
		case requestWaitMS:
			r.WaitMS, err = number32(f.N)
		case requestMaxBytes:
			r.MaxBytes, err = number32(f.N)
		}
		return err
	})
	switch {
	case err != nil:
	case len(r.Keys.Start) > maxKeyBytes || len(r.Keys.End) > maxKeyBytes:
		err = fmt.Errorf("start has %d bytes and end has %d, at most %d are allowed", len(r.Keys.Start), len(r.Keys.End), maxKeyBytes)
	case len(r.Keys.End) > 0 && !r.Keys.Contains(r.Keys.Start):
		err = errors.New("start is not below end")
	case r.From.Height == 0 && r.From.Index != 0:
		err = errors.New("an index without a height")
	}
	if err != nil {
		return Request{}, fmt.Errorf("the data is not a request for events: %w", err)
	}
	return r, nil
}

// Encode returns the bytes of the answer: its list of events, followed by AppendTail.
func (a *Answer) Encode() []byte {
	var b []byte
	for i := range a.Events {
		b = AppendEvent(b, &a.Events[i], true)
	}
	return a.AppendTail(b)
}

// AppendTail appends all fields except the events.
func (a *Answer) AppendTail(b []byte) []byte {
	b = appendNumber(b, answerNextHeight, uint64(a.Next.Height))
	b = appendNumber(b, answerNextIndex, uint64(a.Next.Index))
	b = appendNumber(b, answerHead, uint64(a.Head))
	return appendNumber(b, answerLeast, uint64(a.Least))
}

// DecodeAnswer decodes an answer to r. The events are unverified, but the form of the answer is
// checked: events ascend, have requested keys, and lie between r.From and Next; Next is not before
// r.From. The events refer to b.
func DecodeAnswer(b []byte, r *Request) (a Answer, err error) {
	err = fields(b, func(f protowalk.Element) (err error) {
		switch f.Number {
		case answerEvent:
			if len(a.Events) == MaxAnswerEvents {
				return fmt.Errorf("more than %d events", MaxAnswerEvents)
			}
			e, err := decodeEvent(f.Content)
			a.Events = append(a.Events, e)
			return err
		case answerNextHeight:
			a.Next.Height, err = height(f.N)
		case answerNextIndex:
			a.Next.Index, err = number32(f.N)
		case answerHead:
			a.Head, err = height(f.N)
		case answerLeast:
			a.Least, err = height(f.N)
		}
		return err
	})
	if err == nil {
		err = a.check(r)
	}
	if err != nil {
		return Answer{}, fmt.Errorf("not an answer about events: %w", err)
	}
	return a, nil
}

// ofItsKind reports whether the kind agrees with the key and the value. A read can prove the value,
// so the kind of a change to a client's key must follow from it.
func (e *Event) ofItsKind() bool {
	if e.Key[0] == 0 {
		return true
	}
	return e.Kind == Put && e.Value != nil || e.Kind == Delete && e.Value == nil
}

func (a *Answer) check(r *Request) error {
	if a.Next.Height < 1 || a.Next.Before(r.From) {
		return fmt.Errorf("it continues from %v, but the request begins at %v", a.Next, r.From)
	}
	if a.Next != r.From && a.Next.Height > a.Head+1 {
		return fmt.Errorf("it continues from %v, but its last block is %d", a.Next, a.Head)
	}
	if a.Compacted(r.From) && (len(a.Events) > 0 || a.Next != r.From) {
		return errors.New("it has events, although they are compacted")
	}
	from := r.From
	for i := range a.Events {
		e := &a.Events[i]
		if at := (Token{e.Height, e.Index}); at.Before(from) || !at.Before(a.Next) || !r.Keys.Contains(e.Key) {
			return fmt.Errorf("event %v was not requested", at)
		}
		if !e.ofItsKind() {
			return fmt.Errorf("event %d.%d of key %q is %q, which its value contradicts", e.Height, e.Index, shorten(string(e.Key)), shorten(e.Kind))
		}
		from = e.Token()
	}
	return nil
}
