package fastsync

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/transporttest"
)

func TestMessagesRoundTrip(t *testing.T) {
	for _, s := range []Status{{}, {Base: 3, Height: 99, Snapshots: []int64{10, 20}}, {Base: 1, Height: 1<<63 - 1, Snapshots: []int64{1<<63 - 1}}} {
		got, err := decodeStatus(s.encode())
		require.NoError(t, err)
		require.Equal(t, s, got)
	}
	many := Status{Base: 1, Height: 1000}
	for h := range int64(300) {
		many.Snapshots = append(many.Snapshots, h+1)
	}
	got, err := decodeStatus(many.encode())
	require.NoError(t, err)
	require.Equal(t, many.Snapshots[300-maxStatusHeights:], got.Snapshots, "the newest")
	require.LessOrEqual(t, len(many.encode()), maxStatusBytes)

	c := chunkRequest{height: 7, k: 1<<32 - 1, offset: 5, length: 6}
	back, err := decodeChunkRequest(c.encode())
	require.NoError(t, err)
	require.Equal(t, c, back)
	m := manifestRequest{height: 7, offset: 1 << 40, length: 1 << 20}
	gotManifest, err := decodeManifestRequest(m.encode())
	require.NoError(t, err)
	require.Equal(t, m, gotManifest)
	gotManifest, err = decodeManifestRequest(heightBody(7))
	require.NoError(t, err)
	require.Equal(t, manifestRequest{height: 7, length: 1<<32 - 1}, gotManifest, "all of it")
	sub := subManifestRequest{height: 7, k: 9, limit: 16384}
	gotSub, err := decodeSubManifestRequest(sub.encode())
	require.NoError(t, err)
	require.Equal(t, sub, gotSub)

	var list []transport.Address
	for i := range 100 {
		list = append(list, transport.Address{ID: transporttest.ID(i), HostPort: "host:1"})
	}
	peers, err := decodePeers(encodePeers(list))
	require.NoError(t, err)
	require.Equal(t, list[:MaxPeers], peers)
	require.LessOrEqual(t, len(encodePeers(list)), maxPeersBytes)
	peers, err = decodePeers(encodePeers([]transport.Address{{HostPort: "nobody:1"}}))
	require.NoError(t, err)
	require.Empty(t, peers, "an address without an id proves nothing")
}

func FuzzMessages(f *testing.F) {
	f.Add(Status{Base: 1, Height: 5, Snapshots: []int64{2, 4}}.encode())
	f.Add(chunkRequest{1, 2, 3, 4}.encode())
	f.Add(subManifestRequest{1, 2, 3}.encode())
	f.Add(encodePeers([]transport.Address{{ID: transporttest.ID(1), HostPort: "a:1"}}))
	f.Add(encodeParts([]statesync.Part{{Height: 7, Chunks: 9, Spans: []statesync.Span{{From: 0, To: 2}, {From: 4, To: 9}}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := decodeStatus(b); err == nil {
			require.Equal(t, b, s.encode())
		}
		if r, err := decodeManifestRequest(b); err == nil && len(b) > 8 {
			require.Equal(t, b, r.encode())
		}
		if r, err := decodeChunkRequest(b); err == nil {
			require.Equal(t, b, r.encode())
		}
		if r, err := decodeSubManifestRequest(b); err == nil {
			require.Equal(t, b, r.encode())
		}
		if list, err := decodePeers(b); err == nil {
			require.Equal(t, b, encodePeers(list))
		}
		if list, err := decodeParts(b); err == nil {
			require.Equal(t, b, encodeParts(list))
			for _, p := range list {
				require.NoError(t, p.Check())
			}
		}
	})
}

// What a joiner may not ask for is refused, what is not there is gone, and nothing of it panics.
func TestServerRefuses(t *testing.T) {
	m := statesync.NewManager(statesync.Options{Interval: 10, Keep: 1})
	defer m.Close()
	v := stateOf(t, seeds.Rand(t), 2000, 100_000)
	m.Committed(10, v)
	mux := new(transport.Mux)
	NewServer(ServerOptions{Snapshots: m}).Register(mux)
	ask := func(method transport.Method, body []byte) ([]byte, error) {
		return mux.Serve(t.Context(), transport.Request{Method: method, Body: body})
	}
	bytes := uint32(v.Manifest().Entries[0].Root.Bytes)
	for _, c := range []struct {
		method transport.Method
		body   []byte
		want   error
	}{
		{MethodCommitment, nil, transport.ErrRefused},
		{MethodCommitment, heightBody(11), transport.ErrGone},
		{MethodManifest, heightBody(0), transport.ErrGone},
		{MethodManifest, heightBody(-1), transport.ErrRefused},
		{MethodManifest, append(heightBody(10), 0), transport.ErrRefused},
		{MethodManifest, manifestRequest{11, 0, 1}.encode(), transport.ErrGone},
		{MethodChunk, chunkRequest{20, 0, 0, 1}.encode(), transport.ErrGone},
		{MethodChunk, chunkRequest{10, v.NumChunks(), 0, 1}.encode(), transport.ErrRefused},
		{MethodChunk, chunkRequest{10, 0, 0, 0}.encode(), transport.ErrRefused},
		{MethodChunk, chunkRequest{10, 0, 1, bytes}.encode(), transport.ErrRefused},
		{MethodChunk, chunkRequest{10, 0, 1<<32 - 1, 1<<32 - 1}.encode(), transport.ErrRefused},
		{MethodSubManifest, subManifestRequest{10, 0, avlstar.MinCutBytes - 1}.encode(), transport.ErrRefused},
		{MethodSubManifest, subManifestRequest{10, 0, 100_000}.encode(), transport.ErrRefused},
		{MethodSubManifest, subManifestRequest{10, v.NumChunks(), 8192}.encode(), transport.ErrRefused},
		{MethodSubManifest, subManifestRequest{30, 0, 8192}.encode(), transport.ErrGone},
		{MethodGenesis, nil, transport.ErrGone},
		{MethodParts, nil, transport.ErrRefused},
		{8, nil, transport.ErrRefused}, // another server's,
	} {
		_, err := ask(c.method, c.body)
		require.ErrorIs(t, err, c.want, "method %d, body %x", c.method, c.body)
	}
	whole, err := ask(MethodChunk, chunkRequest{10, 0, 0, bytes}.encode())
	require.NoError(t, err)
	part, err := ask(MethodChunk, chunkRequest{10, 0, 7, 9}.encode())
	require.NoError(t, err)
	require.Equal(t, whole[7:16], part)
	whole, err = ask(MethodManifest, heightBody(10))
	require.NoError(t, err)
	require.Equal(t, v.Manifest().Encode(), whole)
	for _, r := range []manifestRequest{{10, 0, 1 << 20}, {10, 3, 5}, {10, 3, 1 << 31}, {10, uint64(len(whole)), 1}, {10, 1<<64 - 1, 1<<32 - 1}} {
		from := min(r.offset, uint64(len(whole)))
		to := min(from+uint64(r.length), uint64(len(whole)))
		part, err = ask(MethodManifest, r.encode())
		require.NoError(t, err)
		require.Equal(t, whole[from:to], part, "%+v", r)
	}
	list, err := ask(MethodPeers, nil)
	require.NoError(t, err)
	require.Equal(t, []byte{0, 0}, list)
}

// A byte of a chunk costs a byte, not the chunk, and the answer does not keep the chunk in memory.
func TestServerMakesOnlyTheRange(t *testing.T) {
	m := statesync.NewManager(statesync.Options{Interval: 10, Keep: 1})
	defer m.Close()
	v := stateOf(t, seeds.Rand(t), 20_000, 1<<20)
	m.Committed(10, v)
	mux := new(transport.Mux)
	NewServer(ServerOptions{Snapshots: m}).Register(mux)
	length := uint32(v.Manifest().Entries[0].Root.Bytes)
	require.Greater(t, length, uint32(256<<10))
	weigh := func(r chunkRequest) int64 {
		return mux.Weigh(transport.Request{Method: MethodChunk, Body: r.encode()})
	}
	require.EqualValues(t, 7, weigh(chunkRequest{10, 0, 5, 7}))
	require.EqualValues(t, length, weigh(chunkRequest{10, 0, 0, length}))
	for _, refused := range []chunkRequest{{11, 0, 0, 1}, {10, 1 << 20, 0, 1}, {10, 0, 1, length}, {10, 0, 1<<32 - 1, 1<<32 - 1}} {
		require.Zero(t, weigh(refused))
	}
	require.Zero(t, mux.Weigh(transport.Request{Method: MethodChunk, Body: []byte("?")}))
	const requests = 100
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range uint32(requests) {
		answer, err := mux.Serve(t.Context(), transport.Request{Method: MethodChunk, Body: chunkRequest{10, 0, i * (length / requests), 1}.encode()})
		require.NoError(t, err)
		require.Len(t, answer, 1)
		require.LessOrEqual(t, cap(answer), 64)
	}
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(length), "a hundred ranges together take less than the chunk")
}
