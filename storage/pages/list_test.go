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

// stored holds records of the page list in key order, and an error that is yielded last.
type stored struct {
	records []record.Leaf
	err     error
}

func (s stored) PageList() iter.Seq2[record.Leaf, error] {
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

// TestPageListRecords: records of the page list have the form of docs/spec/state.md.
func TestPageListRecords(t *testing.T) {
	want := []avlstar.PageStub{
		{Stub: avlstar.Stub{Stat: avlstar.Stat{Height: 4, Bytes: 3000}, Hash: avlstar.Hash{0xaa}}},
		{First: []byte("sam"), Boundary: 6, Stub: avlstar.Stub{Stat: avlstar.Stat{Height: 5, Bytes: 100}, Hash: avlstar.Hash{0xbb}}},
	}
	var s stored
	var gone []byte
	AddPageList(func(key, rec []byte) {
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

	leaves, stubs, err := ReadPageList(s, 258)
	require.NoError(t, err)
	require.EqualValues(t, 60, leaves)
	var got []avlstar.PageStub
	for p, err := range stubs {
		require.NoError(t, err)
		got = append(got, p)
	}
	require.Equal(t, want, got)

	_, _, err = ReadPageList(s, 257)
	require.ErrorIs(t, err, errNoPageList)
	require.EqualError(t, err, "no page list of height 257: the last one is of height 258")
	_, _, err = ReadPageList(stored{}, 258)
	require.ErrorIs(t, err, errNoPageList)
	failed := errors.New("the disk fails")
	_, _, err = ReadPageList(stored{err: failed}, 258)
	require.ErrorIs(t, err, failed)
	s.err = failed
	_, stubs, err = ReadPageList(s, 258)
	require.NoError(t, err)
	last := error(nil)
	for _, err := range stubs {
		last = err
	}
	require.Equal(t, failed, last)
}

// FuzzDecodePage: a page record is read or refused, and what is read has one form.
func FuzzDecodePage(f *testing.F) {
	f.Add([]byte("\x01sam"), append([]byte{6, 5, 0x64}, make([]byte, 32)...))
	f.Add([]byte("\x01"), append([]byte{0, 4, 0xb8, 0x17}, make([]byte, 32)...))
	f.Fuzz(func(t *testing.T, key, value []byte) {
		p, err := decodePage(record.Leaf{Key: key, Value: value})
		if err != nil {
			require.ErrorIs(t, err, errPageListForm)
			return
		}
		AddPageList(func(k, rec []byte) {
			if k[0] == pageRecord && len(value) == len(rec) { // otherwise the number is longer
				require.Equal(t, key, k)
				require.Equal(t, value, rec)
			}
		}, 1, 1, slices.Values([]avlstar.PageStub{p}))
	})
}

// fakeVersion is a version with a page list of as many pages as its number. refs counts references.
type fakeVersion struct {
	pages, refs int
}

func (v *fakeVersion) HasPageList() bool { return v.pages > 1 }
func (v *fakeVersion) Retain()           { v.refs++ }
func (v *fakeVersion) Release()          { v.refs-- }
func (v *fakeVersion) PageList(base *fakeVersion) iter.Seq[avlstar.PageStub] {
	from := 0
	if base != nil {
		from = base.pages
	}
	return func(yield func(avlstar.PageStub) bool) {
		for i := from; i < v.pages; i++ {
			if !yield(avlstar.PageStub{First: []byte{byte(i)}, Stub: avlstar.Stub{Stat: avlstar.Stat{Bytes: 1}}}) {
				return
			}
		}
	}
}

// TestListWriter: a block writes what changed if the list of the block before is known, and the
// whole list otherwise; none if there is no list, or it is too large.
func TestListWriter(t *testing.T) {
	w := ListWriter[*fakeVersion]{max: 1000}
	block := func(v, base *fakeVersion) (records int, whole bool) {
		p := w.Next(1, 0, v, base)
		whole = p.Whole()
		if base != nil {
			require.Equal(t, whole || !w.Known(), base.refs == 0)
		}
		p.Take(func(_, _ []byte) { records++ })
		p.Release()
		p.Release()
		if base != nil {
			require.Zero(t, base.refs)
		}
		return records, whole
	}
	for i, c := range []struct {
		pages, base, records int // base -1: none
		whole                bool
	}{
		{1, -1, 0, false}, {1, 1, 0, false}, {5, 1, 6, true}, {7, 5, 3, false}, {7, 7, 1, false}, {1, 7, 0, false}, {3, 1, 4, true},
	} {
		var base *fakeVersion
		if c.base >= 0 {
			base = &fakeVersion{pages: c.base}
		}
		records, whole := block(&fakeVersion{pages: c.pages}, base)
		require.Equal(t, c.records, records, i)
		require.Equal(t, c.whole, whole, i)
	}
	w.Begin(true)
	records, whole := block(&fakeVersion{pages: 4}, &fakeVersion{pages: 3})
	require.Equal(t, 2, records)
	require.False(t, whole)
	w.Begin(false)
	records, whole = block(&fakeVersion{pages: 100}, &fakeVersion{pages: 99})
	require.Zero(t, records, "it is too large")
	require.True(t, whole, "the older one is removed")
	records, whole = block(&fakeVersion{pages: 5}, &fakeVersion{pages: 4})
	require.Zero(t, records)
	require.False(t, whole)
}
