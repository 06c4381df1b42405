package iavlsync

import (
	"encoding/binary"
	"errors"
	"fmt"
)

var (
	errShort   = errors.New("it ends in the middle")
	errUvarint = errors.New("a uvarint that is longer than it needs, or of more than 64 bits")
)

// reader reads the parts of an encoding one after another. After the first error, which it keeps,
// all that it reads is zero.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(err error) {
	if r.err == nil && err != nil {
		r.err, r.b = err, nil
	}
}

// end refuses bytes after the last part, and returns the first error.
func (r *reader) end() error {
	if r.err == nil && len(r.b) > 0 {
		r.fail(fmt.Errorf("%d bytes after the end", len(r.b)))
	}
	return r.err
}

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.fail(errShort)
		return 0
	}
	c := r.b[0]
	r.b = r.b[1:]
	return c
}

// uvarint reads an unsigned LEB128 number in its shortest form.
func (r *reader) uvarint() uint64 {
	if len(r.b) > 0 && r.b[0] < 0x80 {
		v := r.b[0]
		r.b = r.b[1:]
		return uint64(v)
	}
	v, n := binary.Uvarint(r.b)
	switch {
	case n == 0:
		r.fail(errShort)
		return 0
	case n < 0 || r.b[n-1] == 0:
		r.fail(errUvarint)
		return 0
	}
	r.b = r.b[n:]
	return v
}

// int64 reads a uvarint of at most limit.
func (r *reader) int64(limit int64) int64 {
	v := r.uvarint()
	if v > uint64(limit) {
		r.fail(fmt.Errorf("number %d: it is at most %d", v, limit))
		return 0
	}
	return int64(v)
}

// take reads n bytes, which are part of what is read.
func (r *reader) take(n uint64) []byte {
	if n > uint64(len(r.b)) {
		r.fail(errShort)
		return nil
	}
	b := r.b[:n:n]
	r.b = r.b[n:]
	return b
}

// bytes reads uvarint(length) ‖ bytes, of at most limit bytes.
func (r *reader) bytes(limit int64) []byte { return r.take(uint64(r.int64(limit))) }

func (r *reader) hash() (h Hash) {
	copy(h[:], r.take(uint64(len(h))))
	return h
}
