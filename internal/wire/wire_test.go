package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// message returns a message with one field of each kind.
func message() []byte {
	b := []byte{7}
	b = binary.BigEndian.AppendUint16(b, 300)
	b = binary.BigEndian.AppendUint32(b, 70_000)
	b = binary.BigEndian.AppendUint64(b, math.MaxUint64)
	b = binary.BigEndian.AppendUint64(b, math.MaxInt64)
	b = binary.AppendUvarint(b, 1<<40)
	b = append(b, make([]byte, 32)...)
	b = append(b, 0, 3, 'a', 'b', 'c')
	b = append(b, 0, 0, 0, 2, 'd', 'e')
	b = append(b, 1, 'f')
	b = append(b, 0, 2, 'g', 'h')
	return append(b, 0, 0, 0, 1, 'i')
}

type decoded struct {
	b        byte
	u16      uint16
	u32      uint32
	u64      uint64
	height   int64
	uvarint  uint64
	hash     [32]byte
	s16, s32 string
	s        string
	c16, c32 string
}

func decode(b []byte) (d decoded, err error) {
	r := NewReader(b)
	d.b, d.u16, d.u32, d.u64 = r.Byte("byte"), r.Uint16("u16"), r.Uint32("u32"), r.Uint64("u64")
	d.height, d.uvarint, d.hash = r.Height("height"), r.Uvarint("uvarint", 1<<40), r.Hash("hash")
	d.s16, d.s32, d.s = string(r.Bytes16("s16", 3)), string(r.Bytes32("s32", 2)), string(r.Bytes("s", 1))
	d.c16 = string(r.Take("c16", r.Count16("c16", 2, 1)))
	d.c32 = string(r.Take("c32", r.Count32("c32", 1, 1)))
	return d, r.End()
}

func TestFields(t *testing.T) {
	d, err := decode(message())
	require.NoError(t, err)
	require.Equal(t, decoded{7, 300, 70_000, math.MaxUint64, math.MaxInt64, 1 << 40, [32]byte{}, "abc", "de", "f", "gh", "i"}, d)
}

// Truncated messages and messages with extra bytes are refused.
func TestLength(t *testing.T) {
	whole := message()
	for n := range whole {
		_, err := decode(whole[:n:n])
		require.ErrorIs(t, err, ErrMalformed, n)
	}
	_, err := decode(append(whole, 0))
	require.EqualError(t, err, fmt.Sprintf("malformed message: end at offset %d: 1 more bytes follow", len(whole)))
}

func TestErrors(t *testing.T) {
	for name, test := range map[string]struct {
		b    []byte
		read func(*Reader)
		want string
	}{
		"short":              {[]byte{1, 2}, func(r *Reader) { r.Byte("a"); r.Uint16("b") }, "b at offset 1: the message ends before the end of this field"},
		"height":             {[]byte{0x80, 0, 0, 0, 0, 0, 0, 0}, func(r *Reader) { r.Height("h") }, "h at offset 0: 9223372036854775808 is more than 9223372036854775807"},
		"uvarint, above":     {[]byte{9, 6}, func(r *Reader) { r.Byte("a"); r.Uvarint("n", 5) }, "n at offset 1: 6 is more than 5"},
		"uvarint, cut off":   {[]byte{0x80}, func(r *Reader) { r.Uvarint("n", 5) }, "n at offset 0: the message ends"},
		"uvarint, empty":     {nil, func(r *Reader) { r.Uvarint("n", 5) }, "n at offset 0: the message ends"},
		"uvarint, two zeros": {[]byte{0x80, 0}, func(r *Reader) { r.Uvarint("n", 5) }, "n at offset 0: the uvarint is not minimal"},
		"uvarint, 65 bits":   {[]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2}, func(r *Reader) { r.Uvarint("n", math.MaxUint64) }, "has more than 64 bits"},
		"string, limit":      {[]byte{0, 3, 1, 2, 3}, func(r *Reader) { r.Bytes16("s", 2) }, "s at offset 0: 3 is more than 2"},
		"string, cut off":    {[]byte{0, 0, 0, 3, 1, 2}, func(r *Reader) { r.Bytes32("s", 9) }, "s at offset 4: the message ends"},
		"count, limit":       {[]byte{0, 3, 1, 2, 3}, func(r *Reader) { r.Count16("c", 2, 1) }, "c at offset 0: 3 is more than 2"},
		"count, no bytes":    {[]byte{0, 0, 0, 3, 1, 2, 3, 4, 5}, func(r *Reader) { r.Count32("c", 100, 2) }, "c at offset 0: 3 elements in 5 bytes"},
		"first error stays":  {[]byte{1}, func(r *Reader) { r.Uint32("a"); r.Byte("b"); r.Check("c", errors.New("wrong")) }, "a at offset 0"},
		"check":              {[]byte{1, 2}, func(r *Reader) { r.Byte("a"); r.Check("a", errors.New("wrong")) }, "a at offset 1: wrong"},
	} {
		t.Run(name, func(t *testing.T) {
			r := NewReader(test.b)
			test.read(&r)
			var e *Error
			require.ErrorAs(t, r.Err(), &e)
			require.ErrorIs(t, r.Err(), ErrMalformed)
			require.ErrorContains(t, r.Err(), test.want)
			require.Zero(t, r.Len())
			require.Zero(t, r.Byte("after an error"))
			require.Nil(t, r.Rest())
			require.Equal(t, r.Err(), r.End())
		})
	}
}

// Results refer to the message, and appending to them does not change it.
func TestRefers(t *testing.T) {
	b := []byte{0, 1, 'a', 'b', 'c'}
	r := NewReader(b)
	s := r.Bytes16("s", 9)
	require.Same(t, &b[2], &s[0])
	require.Equal(t, 1, cap(s))
	require.Equal(t, "bc", string(r.Rest()))
	require.NoError(t, r.End())
}

func TestAllocatesNothing(t *testing.T) {
	b := message()
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() {
		r := NewReader(b)
		r.Byte("a")
		r.Uint16("b")
		r.Uint32("c")
		r.Uint64("d")
		r.Height("e")
		r.Uvarint("f", 1<<40)
		r.Hash("g")
		r.Bytes16("h", 3)
		if r.Err() != nil {
			panic(r.Err())
		}
	}), 0.0)
}

// FuzzReader reads fields in an order that the input determines: results are parts of the message,
// and a uvarint has one encoding.
func FuzzReader(f *testing.F) {
	f.Add([]byte("\x00\x01\x02\x03\x04\x05\x06\x07\x08"), message())
	f.Add([]byte{8}, []byte{0x80, 0})
	f.Add([]byte{5, 6}, []byte{0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, kinds, b []byte) {
		r := NewReader(b)
		for _, kind := range kinds {
			at, ok := r.Offset(), r.Err() == nil
			switch kind % 9 {
			case 0:
				r.Byte("")
			case 1:
				r.Uint16("")
			case 2:
				r.Uint32("")
			case 3:
				require.GreaterOrEqual(t, r.Height(""), int64(0))
			case 4:
				require.LessOrEqual(t, len(r.Bytes16("", 10)), 10)
			case 5:
				require.LessOrEqual(t, len(r.Bytes32("", 10)), 10)
			case 6:
				require.LessOrEqual(t, r.Count32("", 1<<30, 3)*3, r.Len())
			case 7:
				require.LessOrEqual(t, len(r.Bytes("", 10)), 10)
			case 8:
				if n := r.Uvarint("", math.MaxUint64); ok && r.Err() == nil {
					require.Equal(t, binary.AppendUvarint(nil, n), b[at:r.Offset()])
				}
			}
		}
		if err := r.End(); err != nil {
			require.ErrorIs(t, err, ErrMalformed)
		}
	})
}
