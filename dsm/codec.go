package dsm

import (
	"encoding/binary"
	"errors"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/wire"
)

// All integers have a fixed width and are big-endian, as in the other methods of the transport. A
// message therefore has one encoding, once its lists are sorted.

func appendKey(b, key []byte) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(key))), key...)
}

func appendRange(b []byte, r avlstar.KeyRange) []byte {
	return appendKey(appendKey(b, r.First), r.After)
}

// reader reads the fields of a message.
type reader struct{ wire.Reader }

func newReader(b []byte) *reader { return &reader{wire.NewReader(b)} }

// key reads a key of at most avlstar.MaxKeyBytes. It returns nil for an empty key.
func (r *reader) key(field string) []byte {
	if key := r.Bytes16(field, avlstar.MaxKeyBytes); len(key) > 0 {
		return key
	}
	return nil
}

func (r *reader) keyRange() avlstar.KeyRange {
	return avlstar.KeyRange{First: r.key("first key"), After: r.key("key after the range")}
}

var errFlags = errors.New("unknown flags")

// want reads a want. The caller checks that its parts are consistent.
func (r *reader) want() avlstar.Want {
	flags := r.Byte("flags of a want")
	if flags&^wantFlags != 0 {
		r.Check("flags of a want", errFlags)
	}
	w := avlstar.Want{
		Key: r.key("key of a want"), Range: flags&wantRange != 0, Next: flags&wantNext != 0,
		Deleted: flags&wantDeleted != 0, Written: flags&wantWritten != 0,
	}
	if w.Range {
		w.After = r.key("key after a want")
	}
	return w
}
