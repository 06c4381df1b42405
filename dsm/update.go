package dsm

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/starling-kv/starling/avlstar"
)

// UpdatePart is a part of a block's changes in a range. Parts are sent in order. A part without
// bytes at offset 0 is a probe: its answer tells the sender which bytes are still needed.
type UpdatePart struct {
	Height int64            // of the block, above 0
	Range  avlstar.KeyRange // a range that the replica keeps
	Total  uint32           // length of the encoded avlstar.Update, 1 … MaxUpdateBytes
	Offset uint32           // of the part in it
	Sum    [hashBytes]byte  // SHA-256 of the whole update; distinguishes updates of one height
	Part   []byte
}

// PartOf returns the part that begins at offset of an encoded update of 1 … MaxUpdateBytes bytes;
// sum is the update's SHA-256. The part refers to update. If offset is outside the update, the part
// is a probe.
func PartOf(height int64, r avlstar.KeyRange, update []byte, sum [hashBytes]byte, offset int) UpdatePart {
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
	return checkRange(p.Range)
}

// DecodeUpdatePart is the inverse of Encode. The result refers to b.
func DecodeUpdatePart(b []byte) (UpdatePart, error) {
	r := newReader(b)
	p := UpdatePart{Height: r.Height("height"), Range: r.keyRange(), Total: r.Uint32("total"), Offset: r.Uint32("offset"), Sum: r.Hash("sum")}
	p.Part = r.Rest()
	if err := r.Err(); err != nil {
		return UpdatePart{}, fmt.Errorf("update: %w", err)
	}
	if len(b) > MaxBodyBytes {
		return UpdatePart{}, fmt.Errorf("update of %d bytes: %w", len(b), ErrMessage)
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
	// part's height once that update is complete, and below it if earlier updates are missing. 0:
	// the replica fetches chunks and accepts no updates.
	Needs int64
	// Have is the number of bytes, from the start of the update with this sum, that the replica
	// has: the next part begins there. Have equals Total once the replica has the whole update,
	// whoever sent it.
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
	r := newReader(b)
	a := UpdateAnswer{Durable: r.Height("durable"), Needs: r.Height("needs"), Have: r.Uint32("have")}
	if err := r.End(); err != nil {
		return UpdateAnswer{}, fmt.Errorf("answer to an update: %w", err)
	}
	if err := a.check(); err != nil {
		return UpdateAnswer{}, fmt.Errorf("answer to an update: %w: %w", err, ErrMessage)
	}
	return a, nil
}

// Errors of Assembly.Add.
var (
	// ErrOtherUpdate: the part belongs to a different update than the previous parts.
	ErrOtherUpdate = errors.New("the part belongs to another update")
	// ErrSum: the assembled update does not match the checksum that each part carried. Its sender
	// is faulty.
	ErrSum = errors.New("the update does not match its checksum")
)

// Assembly joins the parts of one update. All parts come from one sender, so an invalid update can
// be attributed. Its memory grows with the bytes received, never with the announced length. The
// zero value is empty.
type Assembly struct {
	first UpdatePart // identifies the update; copied from the first part
	got   []byte
}

// Add adds a part and returns the number of bytes received so far. It does not retain p. A part
// that does not begin where the received bytes end is ignored without an error. When the update is
// complete, Add returns it; the caller owns it. After that, and after an error, the Assembly is
// empty again.
func (a *Assembly) Add(p UpdatePart) (have uint32, update []byte, err error) {
	if err := p.check(); err != nil {
		return 0, nil, fmt.Errorf("dsm: %w: %w", err, ErrMessage)
	}
	if a.first.Total == 0 {
		of := avlstar.KeyRange{First: bytes.Clone(p.Range.First), After: bytes.Clone(p.Range.After)}
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

// Bytes returns the memory held by the received parts.
func (a *Assembly) Bytes() int { return cap(a.got) }
