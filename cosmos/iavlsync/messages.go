package iavlsync

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Methods of Starling's transport (docs/spec/iavl.md#transport).
const (
	MethodOffers   = 32 // nothing ─▶ Offers
	MethodManifest = 33 // ManifestRequest ─▶ a part of the manifest
	MethodLeaves   = 34 // Request ─▶ an answer
)

// MaxOffers is the limit of heights in Offers.
const MaxOffers = 256

// MaxOffersBytes is the limit of encoded Offers.
const MaxOffersBytes = 1 + 2 + 8*MaxOffers

// ManifestPartBytes is the length of each part of a manifest but the last, which is shorter.
const ManifestPartBytes = 4 << 20

// ErrInvalidMessage is wrapped by the errors about a message.
var ErrInvalidMessage = errors.New("invalid message")

// Offers are the heights whose states a server has, ascending. They are hints: nothing proves them.
type Offers []int64

// Encode returns the only encoding of o: 1 ‖ n:u16 ‖ height:u64 × n, big endian.
func (o Offers) Encode() []byte {
	b := binary.BigEndian.AppendUint16([]byte{1}, uint16(len(o)))
	for _, h := range o {
		b = binary.BigEndian.AppendUint64(b, uint64(h))
	}
	return b
}

// DecodeOffers is the inverse of Encode.
func DecodeOffers(b []byte) (o Offers, err error) {
	if len(b) < 3 || b[0] != 1 {
		return nil, fmt.Errorf("%w: offers of another version", ErrInvalidMessage)
	}
	n := int(binary.BigEndian.Uint16(b[1:]))
	if b = b[3:]; n > MaxOffers || len(b) != 8*n {
		return nil, fmt.Errorf("%w: %d bytes for %d offers", ErrInvalidMessage, len(b), n)
	}
	for i := range n {
		h := int64(binary.BigEndian.Uint64(b[8*i:]))
		if h < 1 || i > 0 && o[i-1] >= h {
			return nil, fmt.Errorf("%w: offers that do not ascend from 1", ErrInvalidMessage)
		}
		o = append(o, h)
	}
	return o, nil
}

// ManifestRequest asks for the part of a manifest that begins at Offset, a multiple of
// ManifestPartBytes.
type ManifestRequest struct {
	Height int64
	Format Format
	Offset int64
}

// Encode returns the only encoding of q: height:u64 ‖ format:u32 ‖ offset:u32, big endian.
func (q *ManifestRequest) Encode() []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(q.Height))
	b = binary.BigEndian.AppendUint32(b, uint32(q.Format))
	return binary.BigEndian.AppendUint32(b, uint32(q.Offset))
}

// DecodeManifestRequest is the inverse of Encode.
func DecodeManifestRequest(b []byte) (q ManifestRequest, err error) {
	if len(b) != 8+4+4 {
		return q, fmt.Errorf("%w: request of %d bytes", ErrInvalidMessage, len(b))
	}
	q = ManifestRequest{int64(binary.BigEndian.Uint64(b)), Format(binary.BigEndian.Uint32(b[8:])), int64(binary.BigEndian.Uint32(b[12:]))}
	if _, known := q.Format.Leaves(); !known || q.Height < 1 || q.Offset%ManifestPartBytes != 0 || q.Offset > MaxManifestBytes {
		return ManifestRequest{}, fmt.Errorf("%w: request of format %#x, height %d, offset %d", ErrInvalidMessage, uint32(q.Format), q.Height, q.Offset)
	}
	return q, nil
}
