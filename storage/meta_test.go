package storage

import (
	"bytes"
	"encoding/hex"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar/record"
)

func TestMetaEncoding(t *testing.T) {
	m := testMeta(1 << 40)
	extra := m
	extra.Extra = []byte("description")
	for _, m := range []Meta{m, extra} {
		b := m.encode()
		got, err := decodeMeta(b)
		require.NoError(t, err)
		require.Equal(t, m, got)
		for i := range b {
			for bit := range 8 {
				damaged := slices.Clone(b)
				damaged[i] ^= 1 << bit
				_, err := decodeMeta(damaged)
				require.ErrorIs(t, err, errMetaForm)
			}
			_, err := decodeMeta(b[:i])
			require.ErrorIs(t, err, errMetaForm)
		}
		for _, more := range [][]byte{{0}, {0, 0, 0, 0}, {0, 0, 0, 2, 1}} {
			_, err = decodeMeta(resum(slices.Concat(b[:len(b)-4], more, b[:4])))
			require.ErrorIs(t, err, errMetaForm, "another field follows")
		}
	}
}

// TestMetaWithoutExtra: the record of a state without Extra has the bytes that earlier versions of
// this program wrote.
func TestMetaWithoutExtra(t *testing.T) {
	m := Meta{Height: 7, AppHash: []byte{1, 2, 3}, ChunkBytes: 1000, ChainID: "chain", Restored: true}
	old, err := hex.DecodeString("01" + "01" + "0000000000000007" + "00000000000003e8" + "03" + "010203" + "05" + "636861696e")
	require.NoError(t, err)
	require.Equal(t, resum(append(old, 0, 0, 0, 0)), m.encode())
}

// TestExtraAndHeight0: a state before the first block, and the largest Extra, survive a restore, a
// restart at any time, and are replaced by the next block.
func TestExtraAndHeight0(t *testing.T) {
	for _, settled := range []bool{false, true} {
		fs := vfs.NewMem()
		s := openZone(t, fs)
		r, err := s.BeginRestore(nil)
		require.NoError(t, err)
		require.NoError(t, addLeaves(r, "run", []record.Leaf{{Key: []byte("k"), Value: []byte("v")}}))
		m := testMeta(0)
		m.Extra = bytes.Repeat([]byte("extra"), MaxExtra/5)
		require.NoError(t, r.Commit(m))
		m.Restored = true
		for range 2 {
			if settled {
				require.NoError(t, s.Settle(t.Context()))
			}
			got, ok := s.Meta()
			require.True(t, ok)
			require.Equal(t, m, got)
			require.NoError(t, s.Flush())
			require.Len(t, scanAll(t, s), 1)
			require.NoError(t, s.Close())
			s = openZone(t, fs)
		}
		b := blockOf(0, "a", "1")
		require.Error(t, s.Write(b), "the height does not increase")
		b = blockOf(1, "a", "1")
		b.Meta.Extra = make([]byte, MaxExtra+1)
		require.Error(t, s.Write(b))
		b.Meta.Extra = []byte("next")
		require.NoError(t, s.Write(b))
		require.NoError(t, s.Flush())
		require.NoError(t, s.Close())
		s = openZone(t, fs)
		got, _ := s.Meta()
		require.Equal(t, b.Meta, got)
		require.Len(t, scanAll(t, s), 2)
		require.NoError(t, s.Close())
	}
}

func FuzzDecodeMeta(f *testing.F) {
	m := testMeta(9)
	f.Add(m.encode())
	m.Extra = []byte("extra")
	f.Add(m.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := decodeMeta(b); err == nil {
			require.Equal(t, b, m.encode())
		}
	})
}
