package pages

import (
	"encoding/hex"
	"errors"
	"iter"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/avlstar/record"
)

// stored holds outline records in key order, and an error that is yielded last.
type stored struct {
	records []record.Leaf
	err     error
}

func (s stored) Outline() iter.Seq2[record.Leaf, error] {
	return func(yield func(record.Leaf, error) bool) {
		for _, l := range s.records {
			if !yield(l, nil) {
				return
			}
		}
		if s.err != nil {
			yield(record.Leaf{}, s.err)
		}
	}
}

// TestOutlineRecords: outline records are those of docs/spec/state.md, and are read back.
func TestOutlineRecords(t *testing.T) {
	want := []avlstar.PageStub{
		{Stub: avlstar.Stub{Stat: avlstar.Stat{Height: 4, Bytes: 3000}, Hash: avlstar.Hash{0xaa}}},
		{First: []byte("sam"), Boundary: 6, Stub: avlstar.Stub{Stat: avlstar.Stat{Height: 5, Bytes: 100}, Hash: avlstar.Hash{0xbb}}},
	}
	var s stored
	var gone []byte
	AddOutline(func(key, rec []byte) {
		if len(rec) == 0 {
			gone = slices.Clone(key)
			return
		}
		s.records = append(s.records, record.Leaf{Key: slices.Clone(key), Value: slices.Clone(rec)})
	}, 258, 60, slices.Values(append(slices.Clone(want), avlstar.PageStub{First: []byte("tom")})))
	require.Equal(t, "\x01tom", string(gone))
	zeros := strings.Repeat("00", 31)
	for i, bytes := range []string{"00 01 0000000000000102 000000000000003c", "01 00 04 b817 aa" + zeros, "0173616d 06 05 64 bb" + zeros} {
		require.Equal(t, strings.ReplaceAll(bytes, " ", ""), hex.EncodeToString(append(s.records[i].Key, s.records[i].Value...)))
	}

	leaves, stubs, ok := ReadOutline(s, 258)
	require.True(t, ok)
	require.EqualValues(t, 60, leaves)
	var got []avlstar.PageStub
	for p, err := range stubs {
		require.NoError(t, err)
		got = append(got, p)
	}
	require.Equal(t, want, got)

	_, _, ok = ReadOutline(s, 257)
	require.False(t, ok, "another height")
	_, _, ok = ReadOutline(stored{}, 258)
	require.False(t, ok, "no records")
	_, _, ok = ReadOutline(stored{err: errors.New("the disk fails")}, 258)
	require.False(t, ok)
	s.err = errors.New("the disk fails")
	_, stubs, ok = ReadOutline(s, 258)
	require.True(t, ok)
	last := error(nil)
	for _, err := range stubs {
		last = err
	}
	require.Equal(t, s.err, last)
}

// FuzzDecodePage: a page record is read or refused, and what is read has one form.
func FuzzDecodePage(f *testing.F) {
	f.Add([]byte("\x01sam"), append([]byte{6, 5, 0x64}, make([]byte, 32)...))
	f.Add([]byte("\x01"), append([]byte{0, 4, 0xb8, 0x17}, make([]byte, 32)...))
	f.Fuzz(func(t *testing.T, key, value []byte) {
		p, err := decodePage(record.Leaf{Key: key, Value: value})
		if err != nil {
			require.ErrorIs(t, err, errOutlineForm)
			return
		}
		AddOutline(func(k, rec []byte) {
			if k[0] == pageRecord && len(value) == len(rec) { // a longer form of the same number is harmless
				require.Equal(t, key, k)
				require.Equal(t, value, rec)
			}
		}, 1, 1, slices.Values([]avlstar.PageStub{p}))
	})
}
