package serve

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/statesync/statetest"
	"github.com/starling-kv/starling/transport"
)

// Invalid requests are refused, missing data is gone, and nothing panics.
func TestServerRefuses(t *testing.T) {
	m := statesync.NewManager(statesync.Options{Interval: 10, Keep: 1})
	defer m.Close()
	v := statetest.New(t, seeds.Rand(t), 2000, 100_000)
	m.Committed(10, v)
	mux := new(transport.Mux)
	New(Options{Snapshots: m}).Register(mux)
	ask := func(method transport.Method, body []byte) ([]byte, error) {
		return mux.Serve(t.Context(), transport.Request{Method: method, Body: body})
	}
	length := uint32(v.Manifest().Entries[0].Root.Bytes)
	for _, c := range []struct {
		method transport.Method
		body   []byte
		want   error
	}{
		{protocol.MethodCommitment, nil, transport.ErrRefused},
		{protocol.MethodCommitment, protocol.HeightBody(11), transport.ErrGone},
		{protocol.MethodManifest, protocol.HeightBody(0), transport.ErrGone},
		{protocol.MethodManifest, protocol.HeightBody(-1), transport.ErrRefused},
		{protocol.MethodManifest, append(protocol.HeightBody(10), 0), transport.ErrRefused},
		{protocol.MethodManifest, protocol.ManifestRequest{Height: 11, Offset: 0, Length: 1}.Encode(), transport.ErrGone},
		{protocol.MethodChunk, protocol.ChunkRequest{Height: 20, K: 0, Offset: 0, Length: 1}.Encode(), transport.ErrGone},
		{protocol.MethodChunk, protocol.ChunkRequest{Height: 10, K: v.NumChunks(), Offset: 0, Length: 1}.Encode(), transport.ErrRefused},
		{protocol.MethodChunk, protocol.ChunkRequest{Height: 10, K: 0, Offset: 0, Length: 0}.Encode(), transport.ErrRefused},
		{protocol.MethodChunk, protocol.ChunkRequest{Height: 10, K: 0, Offset: 1, Length: length}.Encode(), transport.ErrRefused},
		{protocol.MethodChunk, protocol.ChunkRequest{Height: 10, K: 0, Offset: 1<<32 - 1, Length: 1<<32 - 1}.Encode(), transport.ErrRefused},
		{protocol.MethodSubManifest, protocol.SubManifestRequest{Height: 10, K: 0, Limit: avlstar.MinCutBytes - 1}.Encode(), transport.ErrRefused},
		{protocol.MethodSubManifest, protocol.SubManifestRequest{Height: 10, K: 0, Limit: 100_000}.Encode(), transport.ErrRefused},
		{protocol.MethodSubManifest, protocol.SubManifestRequest{Height: 10, K: v.NumChunks(), Limit: 8192}.Encode(), transport.ErrRefused},
		{protocol.MethodSubManifest, protocol.SubManifestRequest{Height: 30, K: 0, Limit: 8192}.Encode(), transport.ErrGone},
		{protocol.MethodGenesis, nil, transport.ErrGone},
		{protocol.MethodParts, nil, transport.ErrRefused},
		{8, nil, transport.ErrRefused}, // another server's,
	} {
		_, err := ask(c.method, c.body)
		require.ErrorIs(t, err, c.want, "method %d, body %x", c.method, c.body)
	}
	whole, err := ask(protocol.MethodChunk, protocol.ChunkRequest{Height: 10, K: 0, Offset: 0, Length: length}.Encode())
	require.NoError(t, err)
	part, err := ask(protocol.MethodChunk, protocol.ChunkRequest{Height: 10, K: 0, Offset: 7, Length: 9}.Encode())
	require.NoError(t, err)
	require.Equal(t, whole[7:16], part)
	whole, err = ask(protocol.MethodManifest, protocol.HeightBody(10))
	require.NoError(t, err)
	require.Equal(t, v.Manifest().Encode(), whole)
	for _, r := range []protocol.ManifestRequest{
		{Height: 10, Length: 1 << 20}, {Height: 10, Offset: 3, Length: 5}, {Height: 10, Offset: 3, Length: 1 << 31},
		{Height: 10, Offset: uint64(len(whole)), Length: 1}, {Height: 10, Offset: 1<<64 - 1, Length: 1<<32 - 1},
	} {
		from := min(r.Offset, uint64(len(whole)))
		to := min(from+uint64(r.Length), uint64(len(whole)))
		part, err = ask(protocol.MethodManifest, r.Encode())
		require.NoError(t, err)
		require.Equal(t, whole[from:to], part, "%+v", r)
	}
	list, err := ask(protocol.MethodPeers, nil)
	require.NoError(t, err)
	require.Equal(t, []byte{0, 0}, list)
}

// A byte of a chunk costs one byte and not the whole chunk, and the answer does not keep the chunk
// in memory.
func TestServerMakesOnlyTheRange(t *testing.T) {
	m := statesync.NewManager(statesync.Options{Interval: 10, Keep: 1})
	defer m.Close()
	v := statetest.New(t, seeds.Rand(t), 20_000, 1<<20)
	m.Committed(10, v)
	mux := new(transport.Mux)
	New(Options{Snapshots: m}).Register(mux)
	length := uint32(v.Manifest().Entries[0].Root.Bytes)
	require.Greater(t, length, uint32(256<<10))
	weigh := func(r protocol.ChunkRequest) int64 {
		return mux.Weigh(transport.Request{Method: protocol.MethodChunk, Body: r.Encode()})
	}
	require.EqualValues(t, 7, weigh(protocol.ChunkRequest{Height: 10, K: 0, Offset: 5, Length: 7}))
	require.EqualValues(t, length, weigh(protocol.ChunkRequest{Height: 10, K: 0, Offset: 0, Length: length}))
	for _, refused := range []protocol.ChunkRequest{
		{Height: 11, Length: 1}, {Height: 10, K: 1 << 20, Length: 1}, {Height: 10, Offset: 1, Length: length},
		{Height: 10, Offset: 1<<32 - 1, Length: 1<<32 - 1},
	} {
		require.Zero(t, weigh(refused))
	}
	require.Zero(t, mux.Weigh(transport.Request{Method: protocol.MethodChunk, Body: []byte("?")}))
	const requests = 100
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range uint32(requests) {
		answer, err := mux.Serve(t.Context(), transport.Request{Method: protocol.MethodChunk, Body: protocol.ChunkRequest{Height: 10, K: 0, Offset: i * (length / requests), Length: 1}.Encode()})
		require.NoError(t, err)
		require.Len(t, answer, 1)
		require.LessOrEqual(t, cap(answer), 64)
	}
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(length), "a hundred ranges together take less than the chunk")
}
