package archive

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/starling-kv/starling/avlstar"
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
	// magic is no text, so that nobody takes the file for one, and shows whether somebody did (as
	// in PNG, RFC 2083 section 12.11).
	magic        = "\x89STAR\r\n\x1a"
	trailerMagic = "END\x1a"

	crcBytes     = 4
	preludeBytes = len(magic) + 2 + 2
	fixedFields  = 8 + avlstar.CommitmentBytes + 8
	trailerBytes = int64(len(trailerMagic) + 4 + 8 + 8 + crcBytes)
	frameHead    = 1 + 4

	maxChainID = 50 // CometBFT's limit
	// maxFields bounds the fields of a header of any version, so that a damaged length is seldom
	// taken for a file that is cut short.
	maxFields = 1024
	// maxChunk is the length of the longest chunk. (A leaf may exceed a small chunk limit, but not
	// this one.)
	maxChunk = avlstar.MaxChunkBytes
)

// Methods of a frame.
const (
	stored     = 0 // as it is
	compressed = 1 // one zstd frame (RFC 8878) that is shorter than the chunk
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func appendCRC(b []byte) []byte {
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// cutCRC splits the checksum off and compares it.
func cutCRC(b []byte) (body []byte, ok bool) {
	body = b[:len(b)-crcBytes]
	return body, crc32.Checksum(body, castagnoli) == binary.BigEndian.Uint32(b[len(body):])
}

// Header says what a file holds. Nothing of it is proved.
type Header struct {
	ChainID    string
	Height     int64 // the state is the one after this block
	Commitment avlstar.Commitment
	manifest   uint64 // length
}

// AppHash is the state's, if the header is true.
func (h Header) AppHash() avlstar.Hash { return h.Commitment.AppHash() }

// maxManifest bounds a manifest of m chunks (docs/spec/chunks.md#manifest): the longest entry has
// 70 bytes.
func maxManifest(m uint32) uint64 { return 16 + 70*uint64(m) }

func (h Header) check() error {
	switch {
	case h.Height <= 0:
		return fmt.Errorf("height %d cannot be", h.Height)
	case h.ChainID == "" || len(h.ChainID) > maxChainID:
		return fmt.Errorf("a chain id of %d bytes, it has 1 to %d", len(h.ChainID), maxChainID)
	case h.manifest > maxManifest(h.Commitment.Chunks):
		return fmt.Errorf("a manifest of %d bytes for %d chunks, it has at most %d", h.manifest, h.Commitment.Chunks, maxManifest(h.Commitment.Chunks))
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

// headerBytes is how long the header is that begins with prelude. Every version has its length and
// its checksum in the same place.
func headerBytes(prelude []byte) (int, error) {
	fields := int(binary.BigEndian.Uint16(prelude[len(magic)+2:]))
	if fields > maxFields {
		return 0, fmt.Errorf("fields of %d bytes, they have at most %d", fields, maxFields)
	}
	return preludeBytes + fields + crcBytes, nil
}

// decodeHeader is the inverse of encode, b as long as headerBytes says.
func decodeHeader(b []byte) (h Header, err error) {
	body, ok := cutCRC(b)
	if !ok {
		return h, errChecksum
	}
	// after the checksum, so that a flipped bit is no version
	if v := binary.BigEndian.Uint16(body[len(magic):]); v != version {
		return h, fmt.Errorf("%w: %d, it knows %d", ErrVersion, v, version)
	}
	fields := body[preludeBytes:]
	if len(fields) < fixedFields {
		return h, errors.New("it is too short")
	}
	height := binary.BigEndian.Uint64(fields)
	if height > math.MaxInt64 {
		return h, fmt.Errorf("height %d cannot be", height)
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

// trailer is what the end of a file says about all of it.
type trailer struct {
	chunks    uint32
	bytes     uint64 // of all chunks, unpacked
	fileBytes uint64
}

func (t trailer) encode() []byte {
	b := append(make([]byte, 0, trailerBytes), trailerMagic...)
	b = binary.BigEndian.AppendUint32(b, t.chunks)
	b = binary.BigEndian.AppendUint64(b, t.bytes)
	return appendCRC(binary.BigEndian.AppendUint64(b, t.fileBytes))
}

// decodeTrailer takes trailerBytes bytes.
func decodeTrailer(b []byte) (t trailer, ok bool) {
	body, ok := cutCRC(b)
	if !ok || !bytes.HasPrefix(body, []byte(trailerMagic)) {
		return t, false
	}
	body = body[len(trailerMagic):]
	return trailer{binary.BigEndian.Uint32(body), binary.BigEndian.Uint64(body[4:]), binary.BigEndian.Uint64(body[12:])}, true
}

// checkFrame checks what a frame's head says, for a chunk of at most `chunk` bytes; exact: of
// exactly that length.
func checkFrame(method byte, length, chunk uint64, exact bool) error {
	switch {
	case method > compressed:
		return fmt.Errorf("method %d is not known", method)
	case length == 0 || length > chunk:
		return fmt.Errorf("%d bytes for a chunk of at most %d", length, chunk)
	case exact && method == stored && length != chunk:
		return fmt.Errorf("%d bytes, the chunk has %d", length, chunk)
	case exact && method == compressed && length == chunk:
		return fmt.Errorf("%d bytes compressed, the chunk has no more", length)
	}
	return nil
}
