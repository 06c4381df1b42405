package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/starling-kv/starling/internal/crc32c"
)

// FormatVersion is the layout of the data that this package writes. Data of a later version are
// refused.
const FormatVersion = 1

// maxMetaField bounds the variable fields of meta: a hash has 32 bytes, CometBFT's chain ids at
// most 50.
const maxMetaField = 255

// MaxExtra is the maximum length of Meta.Extra in bytes.
const MaxExtra = 4 << 20

// Meta describes the state in the zone.
type Meta struct {
	Height     int64  // of the block whose resulting state this is; 0 is the state before the first
	AppHash    []byte // of that state
	ChunkBytes uint64 // chunk limit of the tree
	ChainID    string
	// Restored: the state was restored, and no block was written since. Set by Restore.Commit,
	// cleared by Write.
	Restored bool
	// Extra describes the state for the owner of the zone, with at most MaxExtra bytes. It becomes
	// durable together with the state. Empty: there is no description.
	Extra []byte
}

var (
	errMetaForm = errors.New("malformed record")
)

// newerMeta is the layout version of a newer program.
type newerMeta byte

func (v newerMeta) Error() string {
	return fmt.Sprintf("layout %d, this program knows %d", byte(v), FormatVersion)
}

func (newerMeta) Is(target error) bool { return target == ErrNewerFormat }

func (m Meta) validate() error {
	switch {
	case m.Height < 0:
		return fmt.Errorf("height %d is below 0", m.Height)
	case len(m.AppHash) == 0 || len(m.AppHash) > maxMetaField:
		return fmt.Errorf("app hash of %d bytes, want 1 to %d", len(m.AppHash), maxMetaField)
	case len(m.ChainID) > maxMetaField:
		return fmt.Errorf("chain id of %d bytes, want at most %d", len(m.ChainID), maxMetaField)
	case len(m.Extra) > MaxExtra:
		return fmt.Errorf("extra of %d bytes, want at most %d", len(m.Extra), MaxExtra)
	}
	return nil
}

// clone returns a copy that shares no memory with m.
func (m Meta) clone() Meta {
	m.AppHash, m.Extra = bytes.Clone(m.AppHash), bytes.Clone(m.Extra)
	return m
}

// encode returns
//
//	version:u8 ‖ restored:u8 (0 or 1) ‖ height:u64be ‖ chunk limit:u64be ‖ len:u8 ‖ app hash ‖ len:u8 ‖ chain id ‖ extra ‖ CRC-32C of all before:u32be
//
// where extra is len:u32be ‖ Extra, or nothing if Extra is empty.
func (m Meta) encode() []byte {
	b := make([]byte, 0, 1+1+8+8+1+len(m.AppHash)+1+len(m.ChainID)+4+len(m.Extra)+4)
	b = append(b, FormatVersion, 0)
	if m.Restored {
		b[1] = 1
	}
	b = binary.BigEndian.AppendUint64(b, uint64(m.Height))
	b = binary.BigEndian.AppendUint64(b, m.ChunkBytes)
	b = append(b, byte(len(m.AppHash)))
	b = append(b, m.AppHash...)
	b = append(b, byte(len(m.ChainID)))
	b = append(b, m.ChainID...)
	if len(m.Extra) > 0 {
		b = binary.BigEndian.AppendUint32(b, uint32(len(m.Extra)))
		b = append(b, m.Extra...)
	}
	return binary.BigEndian.AppendUint32(b, crc32c.Sum(b))
}

// decodeMeta is the inverse of encode.
func decodeMeta(b []byte) (Meta, error) {
	if len(b) < 1+4 {
		return Meta{}, fmt.Errorf("%w: %d bytes", errMetaForm, len(b))
	}
	body, sum := b[:len(b)-4], binary.BigEndian.Uint32(b[len(b)-4:])
	if crc32c.Sum(body) != sum {
		return Meta{}, fmt.Errorf("%w: wrong checksum", errMetaForm)
	}
	// The checksum comes first, so that a flipped bit is not taken for a newer format: every format
	// begins with the version and ends with the checksum.
	switch {
	case body[0] > FormatVersion:
		return Meta{}, newerMeta(body[0])
	case body[0] != FormatVersion:
		return Meta{}, fmt.Errorf("%w: layout %d", errMetaForm, body[0])
	}
	body = body[1:]
	if len(body) < 1+8+8 {
		return Meta{}, fmt.Errorf("%w: too short", errMetaForm)
	}
	if body[0] > 1 {
		return Meta{}, fmt.Errorf("%w: flag %d", errMetaForm, body[0])
	}
	restored, body := body[0] == 1, body[1:]
	height, chunkBytes := binary.BigEndian.Uint64(body), binary.BigEndian.Uint64(body[8:])
	if height > math.MaxInt64 {
		return Meta{}, fmt.Errorf("%w: height %d", errMetaForm, height)
	}
	appHash, body, ok := cutField(body[16:])
	if !ok {
		return Meta{}, fmt.Errorf("%w: app hash", errMetaForm)
	}
	chainID, body, ok := cutField(body)
	if !ok {
		return Meta{}, fmt.Errorf("%w: chain id", errMetaForm)
	}
	var extra []byte
	if len(body) > 0 {
		if len(body) <= 4 || uint64(binary.BigEndian.Uint32(body)) != uint64(len(body)-4) {
			return Meta{}, fmt.Errorf("%w: extra", errMetaForm)
		}
		extra = body[4:]
	}
	m := Meta{Height: int64(height), AppHash: appHash, ChunkBytes: chunkBytes, ChainID: string(chainID), Restored: restored, Extra: extra}.clone()
	if err := m.validate(); err != nil {
		return Meta{}, fmt.Errorf("%w: %w", errMetaForm, err)
	}
	return m, nil
}

// cutField splits off the first field of b, which is preceded by its length in one byte.
func cutField(b []byte) (field, rest []byte, ok bool) {
	if len(b) == 0 || len(b)-1 < int(b[0]) {
		return nil, nil, false
	}
	return b[1 : 1+b[0]], b[1+b[0]:], true
}
