package dsm

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// UpdatePart is a part of what a block changes in a range. Parts are sent in order. A part without
// bytes, at offset 0, is a probe: who sends it learns what is still needed before sending it.
type UpdatePart struct {
	Height int64           // of the block, above 0
	Range  Range           // a range that the replica keeps
	Total  uint32          // length of the encoded avlstar.Update, 1 … MaxUpdateBytes
	Offset uint32          // of the part in it
	Sum    [hashBytes]byte // SHA-256 of the whole update: two of one height are told apart
	Part   []byte
}

// PartOf returns the part of an encoded update, of 1 … MaxUpdateBytes, that begins at offset; sum
// is its SHA-256. The part refers to update. At the end of it, and below 0, it is a probe.
func PartOf(height int64, r Range, update []byte, sum [hashBytes]byte, offset int) UpdatePart {
	p := UpdatePart{Height: height, Range: r, Total: uint32(len(update)), Sum: sum}
	if 0 <= offset && offset < len(update) {
		p.Offset, p.Part = uint32(offset), update[offset:min(len(update), offset+MaxPartBytes)]
	}
	return p
}

// Encode encodes the part.
//
//	height:u64be ‖ range ‖ total:u32be ‖ offset:u32be ‖ sum:32 ‖ the part's bytes
func (p UpdatePart) Encode() []byte {
	b := make([]byte, 0, 8+2+len(p.Range.First)+2+len(p.Range.After)+4+4+hashBytes+len(p.Part))
	b = binary.BigEndian.AppendUint64(b, uint64(p.Height))
	b = appendRange(b, p.Range)
	b = binary.BigEndian.AppendUint32(b, p.Total)
	b = binary.BigEndian.AppendUint32(b, p.Offset)
	return append(append(b, p.Sum[:]...), p.Part...)
}

func (p UpdatePart) check() error {
	switch {
	case p.Height <= 0:
		return fmt.Errorf("height %d", p.Height)
	case p.Total == 0 || p.Total > MaxUpdateBytes || len(p.Part) > MaxPartBytes:
		return fmt.Errorf("%d bytes of %d", len(p.Part), p.Total)
	case uint64(p.Offset)+uint64(len(p.Part)) > uint64(p.Total):
		return fmt.Errorf("%d bytes at %d of %d", len(p.Part), p.Offset, p.Total)
	case len(p.Part) == 0 && p.Offset > 0:
		return fmt.Errorf("a probe at %d", p.Offset)
	}
	return p.Range.check()
}

// DecodeUpdatePart is the inverse of Encode. What it returns refers to b.
func DecodeUpdatePart(b []byte) (UpdatePart, error) {
	r := reader{b: b}
	p := UpdatePart{Height: r.height(), Range: r.keyRange(), Total: r.uint32(), Offset: r.uint32(), Sum: r.hash()}
	if r.failed || len(b) > MaxBodyBytes {
		return UpdatePart{}, fmt.Errorf("update of %d bytes: %w", len(b), ErrMessage)
	}
	if len(r.b) > 0 {
		p.Part = r.b
	}
	if err := p.check(); err != nil {
		return UpdatePart{}, fmt.Errorf("update: %w: %w", err, ErrMessage)
	}
	return p, nil
}

// UpdateAnswer answers each part of an update, and each probe.
type UpdateAnswer struct {
	// Durable: the replica's updates of the range are logged and synced up to this height; 0: none.
	Durable int64
	// Needs is the height of the update that the replica waits for, above Durable. It is above the
	// part's height once the update is complete there, and below it if those before are missing. 0:
	// it takes no updates, since it fetches chunks.
	Needs int64
	// Have is how many bytes of the update, of this sum, the replica has, from the first on: the
	// next part begins there. Total: it has all, from whomever.
	Have uint32
}

func (a UpdateAnswer) check() error {
	if a.Durable < 0 || a.Needs < 0 || a.Needs != 0 && a.Needs <= a.Durable || a.Have > MaxUpdateBytes {
		return fmt.Errorf("durable at %d, waiting for %d, %d bytes", a.Durable, a.Needs, a.Have)
	}
	return nil
}

// Encode encodes the answer: durable:u64be ‖ needs:u64be ‖ have:u32be.
func (a UpdateAnswer) Encode() []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(a.Durable))
	b = binary.BigEndian.AppendUint64(b, uint64(a.Needs))
	return binary.BigEndian.AppendUint32(b, a.Have)
}

// DecodeUpdateAnswer is the inverse of Encode.
func DecodeUpdateAnswer(b []byte) (UpdateAnswer, error) {
	r := reader{b: b}
	a := UpdateAnswer{Durable: r.height(), Needs: r.height(), Have: r.uint32()}
	if err := r.end(); err != nil {
		return UpdateAnswer{}, fmt.Errorf("answer to an update: %w", err)
	}
	if err := a.check(); err != nil {
		return UpdateAnswer{}, fmt.Errorf("answer to an update: %w: %w", err, ErrMessage)
	}
	return a, nil
}

// Errors of Assembly.Add.
var (
	// ErrOtherUpdate: the part is of another update than those before.
	ErrOtherUpdate = errors.New("the part is of another update")
	// ErrSum: all parts are there, and do not have the sum that each of them named: whoever sent
	// them lied.
	ErrSum = errors.New("the parts do not have the sum that they name")
)

// Assembly joins the parts of one update, all from one sender: so a false part has an author. Its
// memory grows with the bytes that have arrived, never with those announced. The zero value is
// empty.
type Assembly struct {
	first UpdatePart // of any part: which update it is
	got   []byte
}

// Add adds a part, which is not kept, and returns how many bytes are there, from the first on. A
// part that does not begin where those before end adds nothing, which is no error. When all are
// there, update is not nil; it belongs to the caller, and the Assembly is empty again, as after an
// error.
func (a *Assembly) Add(p UpdatePart) (have uint32, update []byte, err error) {
	if err := p.check(); err != nil {
		return 0, nil, fmt.Errorf("dsm: %w: %w", err, ErrMessage)
	}
	if a.first.Total == 0 {
		of := Range{bytes.Clone(p.Range.First), bytes.Clone(p.Range.After)}
		a.first = UpdatePart{Height: p.Height, Range: of, Total: p.Total, Sum: p.Sum}
	}
	if f := a.first; f.Height != p.Height || f.Total != p.Total || f.Sum != p.Sum || !f.Range.Equal(p.Range) {
		*a = Assembly{}
		return 0, nil, ErrOtherUpdate
	}
	if int(p.Offset) == len(a.got) {
		a.got = append(a.got, p.Part...)
	}
	if len(a.got) < int(p.Total) {
		return uint32(len(a.got)), nil, nil
	}
	update = a.got
	*a = Assembly{}
	if sha256.Sum256(update) != p.Sum {
		return 0, nil, ErrSum
	}
	return p.Total, update, nil
}

// Bytes returns the memory that the parts take.
func (a *Assembly) Bytes() int { return cap(a.got) }
