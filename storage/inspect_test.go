package storage

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar/record"
)

func TestInspect(t *testing.T) {
	fs := vfs.NewMem()
	s, err := Open("state", Options{FS: fs})
	require.NoError(t, err)
	defer s.Close()
	keys, err := s.EstimateKeys()
	require.NoError(t, err)
	require.Zero(t, keys)

	const n = 1000
	block := Block{Meta: Meta{Height: 1, AppHash: make([]byte, 32), ChunkBytes: 4096, ChainID: "c"}, Pin: true, Owner: &owner{description: withPin("pin")}}
	for i := range n {
		block.Puts = append(block.Puts, record.Leaf{Key: fmt.Appendf(nil, "key-%04d", i), Value: []byte("value")})
	}
	ownerOf(&block).heights = func(yield func([]byte, uint8) bool) {
		for _, l := range block.Puts[1:] {
			if !yield(l.Key, 7) {
				return
			}
		}
	}
	require.NoError(t, s.Write(block))
	require.NoError(t, s.Flush())
	keys, err = s.EstimateKeys()
	require.NoError(t, err)
	require.InDelta(t, n, keys, 1)
	tables, bytes := 0, uint64(0)
	for _, l := range s.Levels() {
		tables, bytes = tables+l.Tables, bytes+l.Bytes
	}
	require.Positive(t, tables)
	require.Positive(t, bytes)

	// The pin does not change.
	require.NoError(t, s.Write(Block{
		Meta:    Meta{Height: 2, AppHash: make([]byte, 32), ChunkBytes: 4096, ChainID: "c"},
		Deletes: [][]byte{[]byte("key-0500")},
	}))
	require.NoError(t, s.Flush())
	pin, err := s.OpenPin(1)
	require.NoError(t, err)
	meta, err := pin.Meta()
	require.NoError(t, err)
	require.EqualValues(t, 1, meta.Height)
	count := 0
	for l, err := range pin.Scan() {
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("key-%04d", count), string(l.Key))
		require.Equal(t, count > 0, l.Height == 7)
		count++
	}
	require.Equal(t, n, count)
	for range pin.Scan() { // the iteration may be stopped
		break
	}
	require.NoError(t, pin.Close())
	_, err = pin.Meta()
	require.ErrorIs(t, err, ErrClosed)
	for _, err := range pin.Scan() {
		require.ErrorIs(t, err, ErrClosed)
	}
}
