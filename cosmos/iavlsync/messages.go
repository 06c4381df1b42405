package iavlsync

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/starling-kv/starling/internal/wire"
)

// Methods of Starling's transport (docs/spec/iavl.md#transport).
const (
	MethodOffers   = 32 // nothing ─▶ Offers
	MethodManifest = 33 // ManifestRequest ─▶ a part of the manifest
	MethodLeaves   = 34 // Request ─▶ an answer
	MethodFile     = 35 // FileRequest ─▶ a part of the file
)

// MaxOffers is the maximum number of heights in Offers.
const MaxOffers = 256

// MaxOffersBytes is the maximum length of encoded Offers.
const MaxOffersBytes = 1 + 2 + 8*MaxOffers

// ManifestPartBytes is the length of each part of a manifest except the last, which may be shorter.
const ManifestPartBytes = 4 << 20

// FilePartBytes is the length of each part of a file except the last, which may be shorter.
const FilePartBytes = 4 << 20

// MaxFileBytes is the maximum length of a file that MethodFile sends. The modules in question limit
// the code of a contract to 3 MiB.
const MaxFileBytes = 16 << 20

// ErrInvalidMessage is wrapped by the errors about a message.
var ErrInvalidMessage = errors.New("invalid message")

// Offers lists the heights whose states a server has, in ascending order. They are unverified
// hints.
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
	r := wire.NewReader(b)
	if v := r.Byte("version"); v != 1 {
		r.Check("version", fmt.Errorf("%d, only 1 is supported", v))
	}
	for i := range r.Count16("heights", MaxOffers, 8) {
		h := r.Height("height")
		if h < 1 || i > 0 && o[i-1] >= h {
			r.Check("height", errors.New("heights are below 1 or do not ascend"))
		}
		o = append(o, h)
	}
	if err := r.End(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidMessage, err)
	}
	return o, nil
}

// ManifestRequest requests the part of a manifest that begins at Offset, a multiple of
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
	r := wire.NewReader(b)
	q = ManifestRequest{r.Height("height"), Format(r.Uint32("format")), int64(r.Uint32("offset"))}
	if err := r.End(); err != nil {
		return ManifestRequest{}, fmt.Errorf("%w: %w", ErrInvalidMessage, err)
	}
	if _, known := q.Format.Leaves(); !known || q.Height < 1 || q.Offset%ManifestPartBytes != 0 || q.Offset > MaxManifestBytes {
		return ManifestRequest{}, fmt.Errorf("%w: request for format %#x, height %d, offset %d", ErrInvalidMessage, uint32(q.Format), q.Height, q.Offset)
	}
	return q, nil
}

// FileRequest requests the part of a file that begins at Offset, a multiple of FilePartBytes.
type FileRequest struct {
	Hash   Hash // SHA-256 of the whole file
	Offset int64
}

// Encode returns the only encoding of q: hash:32 ‖ offset:u32, big endian.
func (q *FileRequest) Encode() []byte {
	return binary.BigEndian.AppendUint32(bytes.Clone(q.Hash[:]), uint32(q.Offset))
}

// DecodeFileRequest is the inverse of Encode.
func DecodeFileRequest(b []byte) (q FileRequest, err error) {
	r := wire.NewReader(b)
	q = FileRequest{r.Hash("hash"), int64(r.Uint32("offset"))}
	if err := r.End(); err != nil {
		return FileRequest{}, fmt.Errorf("%w: %w", ErrInvalidMessage, err)
	}
	if q.Offset%FilePartBytes != 0 || q.Offset > MaxFileBytes {
		return FileRequest{}, fmt.Errorf("%w: request for a file from offset %d", ErrInvalidMessage, q.Offset)
	}
	return q, nil
}
