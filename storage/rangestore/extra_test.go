package rangestore

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/storage"
)

func testExtra(t testing.TB) extra {
	v := tree(t, 100)
	r := avlstar.KeyRange{First: key(20), After: key(70)}
	boundary, err := v.Boundary(r)
	require.NoError(t, err)
	return extra{r, v.Commitment(), boundary}
}

func TestExtra(t *testing.T) {
	e := testExtra(t)
	got, err := decodeExtra(e.encode())
	require.NoError(t, err)
	require.Equal(t, e, got)
	whole := extra{commitment: e.commitment}
	got, err = decodeExtra(whole.encode())
	require.NoError(t, err)
	require.True(t, got.keys.Equal(avlstar.KeyRange{}))
	for name, bad := range map[string]extra{
		"no key between":      {avlstar.KeyRange{First: key(70), After: key(20)}, e.commitment, e.boundary},
		"a long key":          {avlstar.KeyRange{First: bytes.Repeat([]byte{1}, avlstar.MaxKeyBytes+1)}, e.commitment, e.boundary},
		"no chunk limit":      {e.keys, avlstar.Commitment{Chunks: 1, Root: e.commitment.Root}, e.boundary},
		"chunks of no leaves": {e.keys, avlstar.Commitment{ChunkBytes: 1000, Root: e.commitment.Root}, e.boundary},
	} {
		_, err := decodeExtra(bad.encode())
		require.ErrorIs(t, err, errExtra, name)
	}
	b := e.encode()
	for i := range len(b) - len(e.boundary) {
		_, err := decodeExtra(b[:i])
		require.ErrorIs(t, err, errExtra)
	}
	b[0]++
	_, err = decodeExtra(b)
	require.ErrorIs(t, err, storage.ErrNewerFormat)
}

func FuzzExtra(f *testing.F) {
	e := testExtra(f)
	f.Add(e.encode())
	f.Add(extra{commitment: e.commitment}.encode())
	f.Add([]byte{extraVersion, 0, 0, 255, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		if e, err := decodeExtra(b); err == nil {
			require.Equal(t, b, e.encode())
			_, _ = avlstar.DecodeMultiproof(e.boundary)
		}
	})
}
