package dsm

import (
	"encoding/binary"
	"fmt"
	"math"
)

// All integers have a fixed width and are big-endian, as in the other methods of the transport: so
// there is one encoding of a message, and nothing to normalize but the order of lists.

func appendKey(b, key []byte) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(key))), key...)
}

func appendRange(b []byte, r Range) []byte { return appendKey(appendKey(b, r.First), r.After) }

// reader reads fields. After the first that is not there, all others are zero and failed is set.
type reader struct {
	b      []byte
	failed bool
}

// next returns the next n bytes, without room behind them; nil if they are not there.
func (r *reader) next(n int) []byte {
	if r.failed || n > len(r.b) {
		r.b, r.failed = nil, true
		return nil
	}
	field := r.b[:n:n]
	r.b = r.b[n:]
	return field
}

func (r *reader) byte() byte {
	if f := r.next(1); f != nil {
		return f[0]
	}
	return 0
}

func (r *reader) uint16() uint16 {
	if f := r.next(2); f != nil {
		return binary.BigEndian.Uint16(f)
	}
	return 0
}

func (r *reader) uint32() uint32 {
	if f := r.next(4); f != nil {
		return binary.BigEndian.Uint32(f)
	}
	return 0
}

// height reads a u64be below 2^63.
func (r *reader) height() int64 {
	f := r.next(8)
	if f == nil {
		return 0
	}
	h := binary.BigEndian.Uint64(f)
	if h > math.MaxInt64 {
		r.failed = true
		return 0
	}
	return int64(h)
}

func (r *reader) hash() (h [hashBytes]byte) {
	copy(h[:], r.next(hashBytes))
	return h
}

// key reads a key of at most MaxKeyBytes; nil if it is empty.
func (r *reader) key() []byte {
	n := int(r.uint16())
	if n == 0 {
		return nil
	}
	if n > MaxKeyBytes {
		r.failed = true
		return nil
	}
	return r.next(n)
}

func (r *reader) keyRange() Range { return Range{First: r.key(), After: r.key()} }

// want reads a want. Whether its parts are consistent is the caller's to check.
func (r *reader) want() Want {
	flags := r.byte()
	if flags&^wantFlags != 0 {
		r.failed = true
	}
	w := Want{Key: r.key(), Range: flags&wantRange != 0, Next: flags&wantNext != 0, Deleted: flags&wantDeleted != 0}
	if w.Range {
		w.After = r.key()
	}
	return w
}

// count reads the number of elements that follow, each of at least bytesEach bytes. It fails if
// there are more than most, or more than there are bytes for.
func (r *reader) count(most, bytesEach int) int {
	n := r.uint32()
	if uint64(n) > uint64(most) || uint64(n) > uint64(len(r.b)/bytesEach) {
		r.failed = true
		return 0
	}
	return int(n)
}

// end returns an error if a field was missing or wrong, or if bytes are left.
func (r *reader) end() error {
	if r.failed {
		return fmt.Errorf("it ends too early, or a field is out of its limits: %w", ErrMessage)
	}
	if len(r.b) > 0 {
		return fmt.Errorf("%d bytes are left over: %w", len(r.b), ErrMessage)
	}
	return nil
}
