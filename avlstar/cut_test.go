package avlstar

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// cutTree returns a tree of random keys, with values of up to maxValue bytes.
func cutTree(t *testing.T, r *rand.Rand, chunkBytes uint64, n, maxValue int) *Version {
	t.Helper()
	v, err := Empty(chunkBytes)
	require.NoError(t, err)
	var changes []Change
	for i := range n {
		changes = append(changes, Change{Key: fmt.Appendf(nil, "%08x-%d", r.Uint32(), i), Value: make([]byte, 1+r.IntN(maxValue))})
	}
	return mustApply(t, v, changes...)
}

// joined puts the pieces of a cut together again.
func joined(t *testing.T, c *Cut) []byte {
	t.Helper()
	var b []byte
	for k := range c.Manifest().Entries {
		piece, err := c.Piece(uint32(k))
		require.NoError(t, err)
		require.Zero(t, piece[0])
		_, err = c.Manifest().VerifyChunk(uint32(k), piece)
		require.NoError(t, err)
		at := len(b)
		b = append(b, piece...)
		b[at] = c.Manifest().Entries[k].BoundaryHeight
		found, ok := c.Find(c.Manifest().Entries[k].Root)
		require.True(t, ok)
		require.Equal(t, uint32(k), found)
	}
	return b
}

func TestCut(t *testing.T) {
	r := seeds.Rand(t)
	v := cutTree(t, r, 64<<10, 8000, 200)
	whole, err := v.Cut(MinCutBytes)
	require.NoError(t, err)
	c, err := whole.Manifest().Commitment()
	require.NoError(t, err)
	require.Equal(t, v.Root(), c.Root)
	require.Greater(t, len(whole.Manifest().Entries), 8*len(v.Manifest().Entries))
	joined(t, whole)

	for k, data := range encodeChunks(t, v) {
		cut, err := v.CutChunk(uint32(k), MinCutBytes)
		require.NoError(t, err)
		require.Equal(t, data, joined(t, cut))
		chunk, err := v.Manifest().VerifyChunk(uint32(k), data)
		require.NoError(t, err)
		same, err := chunk.Cut(MinCutBytes)
		require.NoError(t, err)
		require.Equal(t, cut.Manifest(), same.Manifest())
		require.Equal(t, data, joined(t, same))

		encoded := cut.Manifest().Encode()
		sub, err := VerifySubManifest(encoded, v.Manifest().Entries[k].Root, MinCutBytes)
		require.NoError(t, err)
		require.Equal(t, cut.Manifest(), sub)
	}
}

// If a few leaves change, most pieces of the chunks that changed are found in the previous version.
func TestCutFindsWhatIsTheSame(t *testing.T) {
	r := seeds.Rand(t)
	v := cutTree(t, r, 64<<10, 8000, 200)
	var changes []Change
	i, which := 0, r.IntN(1000)
	for key, value := range mustAscend(t, v, nil, nil) {
		if i++; i%1000 == which {
			changes = append(changes, Change{Key: key, Value: append(value[:len(value):len(value)], 1)})
		}
	}
	next := mustApply(t, v, changes...)
	before, err := v.Cut(MinCutBytes)
	require.NoError(t, err)
	after, err := next.Cut(MinCutBytes)
	require.NoError(t, err)
	same := 0
	for k, e := range after.Manifest().Entries {
		if found, ok := before.Find(e.Root); ok {
			same++
			want, err := after.Piece(uint32(k))
			require.NoError(t, err)
			got, err := before.Piece(found)
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
	}
	require.GreaterOrEqual(t, same, len(after.Manifest().Entries)-3*len(changes))
	require.Less(t, same, len(after.Manifest().Entries))
}

func TestSubManifestIsProved(t *testing.T) {
	r := seeds.Rand(t)
	v := cutTree(t, r, 64<<10, 3000, 100)
	cut, err := v.CutChunk(1, MinCutBytes)
	require.NoError(t, err)
	root, encoded := v.Manifest().Entries[1].Root, cut.Manifest().Encode()
	for i := range encoded {
		damaged := append([]byte(nil), encoded...)
		damaged[i] ^= 1 << r.IntN(8)
		_, err := VerifySubManifest(damaged, root, MinCutBytes)
		require.ErrorIs(t, err, ErrInvalidManifest)
	}
	_, err = VerifySubManifest(encoded, root, MinCutBytes+1)
	require.ErrorContains(t, err, "pieces of at most")
	_, err = VerifySubManifest(encoded, v.Manifest().Entries[0].Root, MinCutBytes)
	require.ErrorContains(t, err, "leads to the root")
	_, err = VerifySubManifest(make([]byte, root.Bytes), root, MinCutBytes)
	require.ErrorContains(t, err, "as long as the chunk")

	for _, limit := range []uint64{0, MinCutBytes - 1, MaxChunkBytes + 1} {
		_, err := v.Cut(limit)
		require.ErrorContains(t, err, "pieces of")
		_, err = v.CutChunk(0, limit)
		require.ErrorContains(t, err, "pieces of")
	}
	_, err = v.CutChunk(v.NumChunks(), MinCutBytes)
	require.ErrorContains(t, err, "no chunk")
	_, err = cut.Piece(uint32(len(cut.Manifest().Entries)))
	require.ErrorContains(t, err, "no piece")
}

func FuzzVerifySubManifest(f *testing.F) {
	v, err := Empty(64 << 10)
	require.NoError(f, err)
	var changes []Change
	for i := range 2000 {
		changes = append(changes, Change{Key: fmt.Appendf(nil, "%05d", i), Value: make([]byte, 100)})
	}
	v = mustApply(f, v, changes...)
	cut, err := v.CutChunk(0, MinCutBytes)
	require.NoError(f, err)
	root := v.Manifest().Entries[0].Root
	f.Add(cut.Manifest().Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := VerifySubManifest(b, root, MinCutBytes)
		if err == nil {
			require.Equal(t, cut.Manifest(), m)
		}
	})
}
