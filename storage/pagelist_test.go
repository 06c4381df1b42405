package storage

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// listOwner is the owner of a block with records of the page list, given as keys and records in
// turn.
type listOwner []string

func (o listOwner) Take(_ func(key []byte, height uint8), page func(key, record []byte)) {
	for i := 0; i < len(o); i += 2 {
		page([]byte(o[i]), []byte(o[i+1]))
	}
}
func (listOwner) PinData() []byte { return nil }
func (listOwner) Done(bool)       {}

// TestPageList: records of the page list become durable with their block. The last record of a key
// counts, an empty one removes it, and Block.NewPageList removes all older ones.
func TestPageList(t *testing.T) {
	fs := vfs.NewMem()
	s := openZone(t, fs)
	height := int64(0)
	write := func(whole bool, records ...string) {
		height++
		b := blockOf(height, "k", "v")
		b.Pin, b.NewPageList, b.Owner = height == 1, whole, listOwner(records)
		require.NoError(t, s.Write(b))
	}
	requireList := func(want ...string) {
		t.Helper()
		require.NoError(t, s.Flush())
		for range 2 {
			var got []string
			for l, err := range s.PageList() {
				require.NoError(t, err)
				got = append(got, string(l.Key), string(l.Value))
			}
			require.Equal(t, want, got)
			require.NoError(t, s.Close())
			s = openZone(t, fs)
		}
	}
	requireList()
	write(true, "", "0", "a", "1", "c", "3")
	requireList("", "0", "a", "1", "c", "3")
	write(false, "b", "2", "c", "")
	write(false, "c", "4", "d", "5")
	write(false, "d", "")
	requireList("", "0", "a", "1", "b", "2", "c", "4")
	write(false)
	write(false, "e", "6")
	write(true, "f", "7", "a", "8")
	write(false, "g", "9", "h", "")
	requireList("a", "8", "f", "7", "g", "9")

	var large []string // several parts
	for i := range 3 * partBytes / 100_000 {
		large = append(large, fmt.Sprintf("%03d", i), strings.Repeat(fmt.Sprint(i%10), 100_000))
	}
	write(true, large...)
	write(false, "001", "")
	requireList(slices.Concat(large[:2], large[4:])...) // the writer still reads large
	write(true, "a", "8")
	requireList("a", "8")

	for l, err := range s.PageList() { // it may be stopped
		require.NoError(t, err)
		require.Equal(t, "a", string(l.Key))
		break
	}
	require.NoError(t, s.Close())
	require.NoError(t, RollbackToPin("zone", 1, Options{FS: fs}))
	s = openZone(t, fs)
	requireList() // a state that was copied has none
	height = 1
	write(false, "x", "1")
	requireList("x", "1")
	require.NoError(t, s.Reset())
	requireList()
	require.NoError(t, s.Close())
	for _, err := range s.PageList() {
		require.ErrorIs(t, err, ErrClosed)
	}
}

// TestPageListInParts: a list that is read in several parts has each record once, in key order, and
// its reader may stop anywhere.
func TestPageListInParts(t *testing.T) {
	rnd := seeds.Rand(t)
	s := openZone(t, vfs.NewMem())
	want := map[string]string{}
	for height := range int64(1 + rnd.IntN(3)) {
		var records listOwner
		for range 6000 + rnd.IntN(6000) {
			key := fmt.Sprint(rnd.IntN(20_000))
			value := make([]byte, 0, 1024) // incompressible
			for len(value) < cap(value) {
				value = binary.LittleEndian.AppendUint64(value, rnd.Uint64())
			}
			if rnd.IntN(10) == 0 {
				value = nil
			}
			records = append(records, key, string(value))
			if want[key] = string(value); value == nil {
				delete(want, key)
			}
		}
		b := blockOf(height+1, "k", "v")
		b.NewPageList, b.Owner = height == 0, records
		require.NoError(t, s.Write(b))
		require.NoError(t, s.Flush())
	}
	cuts, err := s.cuts(kindPageList, listSegmentBytes)
	require.NoError(t, err)
	require.NotEmpty(t, cuts)
	keys := slices.Sorted(maps.Keys(want))
	for _, stop := range []int{len(keys), 1, rnd.IntN(len(keys)) + 1} {
		n := 0
		for l, err := range s.PageList() {
			require.NoError(t, err)
			require.Equal(t, keys[n], string(l.Key))
			require.Equal(t, want[keys[n]], string(l.Value))
			if n++; n == stop {
				break
			}
		}
		require.Equal(t, stop, n)
	}
	n := 0
	var failed error
	for _, err := range s.PageList() { // emptied meanwhile: whole, or it ends with an error
		if failed = err; err == nil {
			n++
		}
		if n == 1 {
			require.NoError(t, s.Reset())
		}
	}
	if failed == nil {
		require.Equal(t, len(keys), n, "all parts were already open")
	} else {
		require.ErrorIs(t, failed, errEmptied)
	}
	require.NoError(t, s.Close())
}

// TestPageListEmptied: a part of the list that is opened after the zone was emptied is an error.
func TestPageListEmptied(t *testing.T) {
	s := openZone(t, vfs.NewMem())
	b := blockOf(1, "k", "v")
	b.NewPageList, b.Owner = true, listOwner{"a", "1"}
	require.NoError(t, s.Write(b))
	require.NoError(t, s.Flush())
	g := s.generations.newest()
	require.NoError(t, s.Reset())
	err := g.pageListPart(nil, nil)(func([]byte, []byte, uint8) bool { return true })
	require.ErrorIs(t, err, errEmptied)
	require.NoError(t, g.release())
	require.NoError(t, s.Close())
}
