package archive

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/crc32c"
)

// A file (docs/spec/archive.md), integers big-endian:
//
//	file     = header ‖ manifest ‖ crc ‖ frame × m ‖ trailer
//	header   = magic:8 ‖ version:u16 ‖ length of fields:u16 ‖ fields ‖ crc
//	fields   = height:u64 ‖ commitment:53 ‖ length of manifest:u64 ‖ chain id
//	frame    = method:u8 ‖ length:u32 ‖ payload ‖ crc
//	trailer  = magic:4 ‖ m:u32 ‖ bytes of all chunks:u64 ‖ bytes of the file:u64 ‖ crc
//	crc      = CRC-32C:u32 of the part before it: header, manifest, frame or trailer
const (
	version = 1
	// magic is not text, and a transfer in text mode damages it (as in PNG, RFC 2083 section
	// 12.11).
	magic        = "\x89STAR\r\n\x1a"
	trailerMagic = "END\x1a"

	crcBytes     = 4
	preludeBytes = len(magic) + 2 + 2
	fixedFields  = 8 + avlstar.CommitmentBytes + 8
	trailerBytes = int64(len(trailerMagic) + 4 + 8 + 8 + crcBytes)
	frameHead    = 1 + 4

	maxChainID = 50 // CometBFT's limit
	// maxFields limits the length of the header's fields in any version. Without it, a damaged
	// length would look like a truncated file more often.
	maxFields = 1024
	// maxChunk is the maximum length of a chunk. (A leaf may exceed a small chunk limit, but not
	// this one.)
	maxChunk = avlstar.MaxChunkBytes
)

// Methods of a frame.
const (
	stored     = 0 // not compressed
	compressed = 1 // one zstd frame (RFC 8878) that is shorter than the chunk
)

func appendCRC(b []byte) []byte {
	return binary.BigEndian.AppendUint32(b, crc32c.Sum(b))
}

// cutCRC splits off the checksum and compares it.
func cutCRC(b []byte) (body []byte, ok bool) {
	body = b[:len(b)-crcBytes]
	return body, crc32c.Sum(body) == binary.BigEndian.Uint32(b[len(body):])
}

// Header describes the contents of a file. It is unverified.
type Header struct {
	ChainID    string
	Height     int64 // the state is the one after this block
	Commitment avlstar.Commitment
	manifest   uint64 // length
}

// AppHash returns the app hash of the header's commitment. It is as unverified as the header.
func (h Header) AppHash() avlstar.Hash { return h.Commitment.AppHash() }

// maxManifest returns the maximum length of a manifest of m chunks (docs/spec/chunks.md#manifest):
// an entry has at most 70 bytes.
func maxManifest(m uint32) uint64 { return 16 + 70*uint64(m) }

func (h Header) check() error {
	switch {
	case h.Height <= 0:
		return fmt.Errorf("invalid height %d", h.Height)
	case h.ChainID == "" || len(h.ChainID) > maxChainID:
		return fmt.Errorf("chain id of %d bytes, want 1 to %d", len(h.ChainID), maxChainID)
	case h.manifest > maxManifest(h.Commitment.Chunks):
		return fmt.Errorf("manifest of %d bytes for %d chunks, the limit is %d", h.manifest, h.Commitment.Chunks, maxManifest(h.Commitment.Chunks))
	}
	return nil
}

func (h Header) encode() []byte {
	b := append(make([]byte, 0, preludeBytes+fixedFields+maxChainID+crcBytes), magic...)
	b = binary.BigEndian.AppendUint16(b, version)
	b = binary.BigEndian.AppendUint16(b, uint16(fixedFields+len(h.ChainID)))
	b = binary.BigEndian.AppendUint64(b, uint64(h.Height))
	b = append(b, h.Commitment.Encode()...)
	b = binary.BigEndian.AppendUint64(b, h.manifest)
	return appendCRC(append(b, h.ChainID...))
}

// headerBytes returns the length of the header that begins with prelude. Every version has the
// length and the checksum in the same places.
func headerBytes(prelude []byte) (int, error) {
	fields := int(binary.BigEndian.Uint16(prelude[len(magic)+2:]))
	if fields > maxFields {
		return 0, fmt.Errorf("header fields of %d bytes, the limit is %d", fields, maxFields)
	}
	return preludeBytes + fields + crcBytes, nil
}

// decodeHeader is the inverse of encode. b has the length returned by headerBytes.
func decodeHeader(b []byte) (h Header, err error) {
	body, ok := cutCRC(b)
	if !ok {
		return h, errChecksum
	}
	// Check the version after the checksum: a flipped bit must not look like another version.
	if v := binary.BigEndian.Uint16(body[len(magic):]); v != version {
		return h, fmt.Errorf("%w: %d, want %d", ErrVersion, v, version)
	}
	fields := body[preludeBytes:]
	if len(fields) < fixedFields {
		return h, errors.New("the header fields are too short")
	}
	height := binary.BigEndian.Uint64(fields)
	if height > math.MaxInt64 {
		return h, fmt.Errorf("invalid height %d", height)
	}
	h.Height = int64(height)
	fields = fields[8:]
	if h.Commitment, err = avlstar.DecodeCommitment(fields[:avlstar.CommitmentBytes]); err != nil {
		return h, err
	}
	fields = fields[avlstar.CommitmentBytes:]
	h.manifest = binary.BigEndian.Uint64(fields)
	h.ChainID = string(fields[8:])
	return h, h.check()
}

// trailer summarizes the whole file at its end.
type trailer struct {
	chunks    uint32
	bytes     uint64 // total length of all chunks, uncompressed
	fileBytes uint64
}

func (t trailer) encode() []byte {
	b := append(make([]byte, 0, trailerBytes), trailerMagic...)
	b = binary.BigEndian.AppendUint32(b, t.chunks)
	b = binary.BigEndian.AppendUint64(b, t.bytes)
	return appendCRC(binary.BigEndian.AppendUint64(b, t.fileBytes))
}

// decodeTrailer decodes a trailer of trailerBytes bytes.
func decodeTrailer(b []byte) (t trailer, ok bool) {
	body, ok := cutCRC(b)
	if !ok || !bytes.HasPrefix(body, []byte(trailerMagic)) {
		return t, false
	}
	body = body[len(trailerMagic):]
	return trailer{binary.BigEndian.Uint32(body), binary.BigEndian.Uint64(body[4:]), binary.BigEndian.Uint64(body[12:])}, true
}

// checkFrame checks the head of a frame for a chunk of at most `chunk` bytes, or of exactly that
// length if exact is set.
func checkFrame(method byte, length, chunk uint64, exact bool) error {
	switch {
	case method > compressed:
		return fmt.Errorf("unknown method %d", method)
	case length == 0 || length > chunk:
		return fmt.Errorf("frame of %d bytes for a chunk of at most %d", length, chunk)
	case exact && method == stored && length != chunk:
		return fmt.Errorf("stored frame of %d bytes for a chunk of %d", length, chunk)
	case exact && method == compressed && length == chunk:
		return fmt.Errorf("compressed frame of %d bytes, not shorter than its chunk", length)
	}
	return nil
}
