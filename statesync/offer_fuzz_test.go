package statesync

import (
	"bytes"
	"strconv"
	"testing"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
)

// FuzzOffer offers arbitrary snapshots: an accepted one is the chain's own, with the fields as an
// honest node fills them.
func FuzzOffer(f *testing.F) {
	v, err := avlstar.Empty(64)
	require.NoError(f, err)
	v, err = v.Apply([]avlstar.Change{
		{Key: []byte("a"), Value: bytes.Repeat([]byte("x"), 200)}, {Key: []byte("b"), Value: []byte("y")}, {Key: []byte("c"), Value: []byte("z")},
	})
	require.NoError(f, err)
	appHash, manifest := v.AppHash(), v.Manifest().Encode()
	f.Add(uint64(interval), uint32(Format), v.NumChunks(), appHash[:], manifest)
	f.Add(uint64(interval), uint32(Format), v.NumChunks(), append(appHash[:], manifest[0]), manifest[1:])
	f.Add(uint64(interval), uint32(Format), uint32(0), append([]byte(strconv.Itoa(int(v.NumChunks()))), appHash[:]...), manifest)
	f.Add(uint64(1), uint32(Format+1), uint32(1<<31), []byte{}, []byte("metadata"))
	f.Fuzz(func(t *testing.T, height uint64, format, chunks uint32, hash, metadata []byte) {
		s := &abci.Snapshot{Height: height, Format: format, Chunks: chunks, Hash: hash, Metadata: metadata}
		result, m, err := judge(s, appHash[:], interval)
		if result != offerAccept {
			require.Error(t, err)
			require.NotEqual(t, offerAbort, result, "a peer must not end the sync")
			return
		}
		require.NoError(t, err)
		require.EqualValues(t, v.NumChunks(), chunks)
		require.Equal(t, append(bytes.Clone(appHash[:]), manifest...), append(bytes.Clone(hash), metadata...))
		require.Equal(t, manifest, m.Encode())
	})
}
