package seglog

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// record encodes one record for a location.
func record(key, value string, segment uint32, offset uint64) []byte {
	var g Group
	g.Add([]byte(key), []byte(value))
	g.place(0, place{nil, segment, offset})
	return g.records[0]
}

// TestRecordBytes checks the format byte by byte, with independently computed checksums.
func TestRecordBytes(t *testing.T) {
	got := record("key", "value", 7, 513)
	require.Equal(t, "53"+"0003"+"00000005", hexOf(got[:7]))
	require.Equal(t, hexOf(sum([]byte("value"))), hexOf(got[7:11]))
	at := []byte{0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 2, 1}
	require.Equal(t, hexOf(sum(got[:11], []byte("key"), at)), hexOf(got[11:15]))
	require.Equal(t, "keyvalue", string(got[15:]))
}

// sum is CRC-32C (RFC 3720, appendix B.4), computed bit by bit.
func sum(parts ...[]byte) []byte {
	crc := ^uint32(0)
	for _, b := range bytes.Join(parts, nil) {
		crc ^= uint32(b)
		for range 8 {
			if crc&1 == 1 {
				crc = crc>>1 ^ 0x82f63b78
			} else {
				crc >>= 1
			}
		}
	}
	crc = ^crc
	return []byte{byte(crc >> 24), byte(crc >> 16), byte(crc >> 8), byte(crc)}
}

func hexOf(b []byte) string {
	const digits = "0123456789abcdef"
	var text strings.Builder
	for _, c := range b {
		text.WriteByte(digits[c>>4])
		text.WriteByte(digits[c&15])
	}
	return text.String()
}

func TestSum(t *testing.T) {
	require.Equal(t, "e3069283", hexOf(sum([]byte("123456789"))), "the check value of CRC-32C")
	require.Equal(t, "8a9136aa", hexOf(sum(make([]byte, 32))), "RFC 3720, appendix B.4: 32 zeros, as a number")
}

// TestDamagedRecord: a record with any bit changed, truncated anywhere, or at another location, is
// not accepted.
func TestDamagedRecord(t *testing.T) {
	good := record("a key", "some value", 3, 100)
	h, key, value, err := decode(append(bytes.Clone(good), "more"...), place{nil, 3, 100})
	require.NoError(t, err)
	require.Equal(t, "a key", string(key))
	require.Equal(t, "some value", string(value))
	require.EqualValues(t, len(good), h.length())
	require.Equal(t, len(value), cap(value))
	for i := range 8 * len(good) {
		bad := bytes.Clone(good)
		bad[i/8] ^= 1 << (i % 8)
		_, _, _, err := decode(bad, place{nil, 3, 100})
		require.ErrorIs(t, err, ErrDamaged, "bit %d", i)
	}
	for n := range good {
		_, _, _, err := decode(good[:n], place{nil, 3, 100})
		require.ErrorIs(t, err, ErrDamaged, "%d bytes", n)
	}
	for _, other := range []place{{nil, 4, 100}, {nil, 3, 101}, {}, {[]byte{0}, 3, 100}} {
		_, _, _, err := decode(good, other)
		require.ErrorIs(t, err, ErrDamaged)
	}
	_, _, _, err = decode(make([]byte, 1000), place{})
	require.ErrorIs(t, err, ErrDamaged)
}

func TestRef(t *testing.T) {
	r := Ref{1<<31 + 5, 1<<63 + 6, 1<<30 + 7, 1<<29 + 8}
	b := r.AppendTo([]byte("before"))
	require.Len(t, b, 6+RefBytes)
	require.Equal(t, r, DecodeRef(b[6:]))
}

func TestGroup(t *testing.T) {
	var g Group
	require.Zero(t, g.Len())
	for i, size := range []int{0, 1, 70_000, 10, 0} {
		g.Add([]byte{byte(i)}, bytes.Repeat([]byte{byte(i)}, size))
	}
	require.Equal(t, 5, g.Len())
	for i, size := range []int{0, 1, 70_000, 10, 0} {
		require.Equal(t, []byte{byte(i)}, g.Key(i))
		require.True(t, bytes.Equal(bytes.Repeat([]byte{byte(i)}, size), g.Value(i)))
	}
	require.Panics(t, func() { g.Add(nil, []byte("x")) })
	require.Panics(t, func() { g.Add(make([]byte, MaxKey+1), nil) })
}

// FuzzDecode: every record accepted by decode is the encoding of Add for the same pair at that
// location; everything else is ErrDamaged.
func FuzzDecode(f *testing.F) {
	f.Add(record("k", "", 1, 0), uint32(1), uint64(0))
	f.Add(record("key", "value", 2, 1<<26), uint32(2), uint64(1<<26))
	f.Add(record(strings.Repeat("key", 100), strings.Repeat("value", 1000), 3, 1<<40), uint32(3), uint64(1<<40))
	f.Add(record("key", "value", 2, 5)[:17], uint32(2), uint64(5))
	f.Add(append(record("key", "value", 2, 5), "and more"...), uint32(2), uint64(5))
	f.Add([]byte{mark, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0}, uint32(1), uint64(0))
	f.Add(make([]byte, 64), uint32(0), uint64(0))
	f.Fuzz(func(t *testing.T, b []byte, segment uint32, offset uint64) {
		h, key, value, err := decode(b, place{nil, segment, offset})
		if err != nil {
			require.ErrorIs(t, err, ErrDamaged)
			return
		}
		require.Equal(t, record(string(key), string(value), segment, offset), b[:h.length()])
	})
}
