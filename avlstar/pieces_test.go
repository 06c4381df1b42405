package avlstar

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/internal/seeds"
)

// Parts and pieces of random cuts have all leaves of the tree with their heights, and only pieces
// that the multiproof opens completely have records.
func TestPiecesOfMultiproofs(t *testing.T) {
	rng := seeds.Rand(t)
	empty, err := Empty(1000)
	require.NoError(t, err)
	defer empty.Release()
	var changes []Change
	for i := range 2000 {
		changes = append(changes, Change{Key: fmt.Appendf(nil, "key-%05d", i), Value: bytes.Repeat([]byte("v"), 1+rng.IntN(60))})
	}
	v, err := empty.Apply(changes)
	require.NoError(t, err)
	defer v.Release()
	for range 20 {
		cut, limit := uint64(500+rng.IntN(20_000)), uint64(100+rng.IntN(5000))
		p, err := v.Prune(func(s Subtree) bool { return s.Bytes <= cut && (s.Height > 0 || rng.IntN(3) > 0) })
		require.NoError(t, err)
		var got []byte
		add := func(records []byte, boundary uint8) {
			records = bytes.Clone(records)
			records[0] = boundary
			got = append(got, records...)
		}
		for s := range p.Parts(nil) {
			if s.Value != nil {
				add(record.Append(nil, record.Leaf{Key: s.Key, Value: s.Value}), s.Boundary)
				continue
			}
			b, err := v.Multiproof([]Want{{Key: s.First, Range: true, After: s.After}}, Below{Depth: 255, Held: map[Hash]Span{s.Hash: {}}})
			require.NoError(t, err)
			m, err := DecodeMultiproof(b)
			require.NoError(t, err)
			first := true
			for root, piece := range m.Pieces(limit) {
				require.Equal(t, s.Stub, root)
				require.NotNil(t, piece.Records)
				_, err := VerifyPage(piece.Root, piece.Records)
				require.NoError(t, err)
				require.True(t, piece.Root.Height == 0 || piece.Root.Bytes <= limit)
				if first {
					piece.Boundary, first = s.Boundary, false
				}
				add(piece.Records, piece.Boundary)
			}
		}
		p.Release()
		var want []byte
		for l, err := range v.Leaves() {
			require.NoError(t, err)
			want = record.Append(want, l)
		}
		want[0], got[0] = 0, 0 // there is no inner node
		require.True(t, bytes.Equal(want, got))

		// the path to one key
		path, err := v.Multiproof([]Want{{Key: changes[rng.IntN(len(changes))].Key}}, Below{})
		require.NoError(t, err)
		m, err := DecodeMultiproof(path)
		require.NoError(t, err)
		sum := uint64(0)
		for _, piece := range m.Pieces(limit) {
			sum += piece.Root.Bytes
			require.Equal(t, piece.First != nil, piece.Records != nil)
		}
		require.Equal(t, v.Root().Bytes, sum)
	}
}
