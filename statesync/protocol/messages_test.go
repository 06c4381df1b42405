package protocol

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/scheduler"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/transporttest"
)

func TestMessagesRoundTrip(t *testing.T) {
	for _, s := range []Status{{}, {Base: 3, Height: 99, Snapshots: []int64{10, 20}}, {Base: 1, Height: 1<<63 - 1, Snapshots: []int64{1<<63 - 1}}} {
		got, err := DecodeStatus(s.Encode())
		require.NoError(t, err)
		require.Equal(t, s, got)
	}
	many := Status{Base: 1, Height: 1000}
	for h := range int64(300) {
		many.Snapshots = append(many.Snapshots, h+1)
	}
	got, err := DecodeStatus(many.Encode())
	require.NoError(t, err)
	require.Equal(t, many.Snapshots[300-maxStatusHeights:], got.Snapshots, "the newest")
	require.LessOrEqual(t, len(many.Encode()), MaxStatusBytes)

	c := ChunkRequest{Height: 7, K: 1<<32 - 1, Offset: 5, Length: 6}
	back, err := DecodeChunkRequest(c.Encode())
	require.NoError(t, err)
	require.Equal(t, c, back)
	m := ManifestRequest{Height: 7, Offset: 1 << 40, Length: 1 << 20}
	gotManifest, err := DecodeManifestRequest(m.Encode())
	require.NoError(t, err)
	require.Equal(t, m, gotManifest)
	gotManifest, err = DecodeManifestRequest(HeightBody(7))
	require.NoError(t, err)
	require.Equal(t, ManifestRequest{Height: 7, Length: 1<<32 - 1}, gotManifest, "all of it")
	sub := SubManifestRequest{Height: 7, K: 9, Limit: 16384}
	gotSub, err := DecodeSubManifestRequest(sub.Encode())
	require.NoError(t, err)
	require.Equal(t, sub, gotSub)

	var list []transport.Address
	for i := range 100 {
		list = append(list, transport.Address{ID: transporttest.ID(i), HostPort: "host:1"})
	}
	peers, err := DecodePeers(EncodePeers(list))
	require.NoError(t, err)
	require.Equal(t, list[:MaxPeers], peers)
	require.LessOrEqual(t, len(EncodePeers(list)), MaxPeersBytes)
	peers, err = DecodePeers(EncodePeers([]transport.Address{{HostPort: "nobody:1"}}))
	require.NoError(t, err)
	require.Empty(t, peers, "an address without an id proves nothing")
}

func FuzzMessages(f *testing.F) {
	f.Add(Status{Base: 1, Height: 5, Snapshots: []int64{2, 4}}.Encode())
	f.Add(ChunkRequest{1, 2, 3, 4}.Encode())
	f.Add(SubManifestRequest{1, 2, 3}.Encode())
	f.Add(EncodePeers([]transport.Address{{ID: transporttest.ID(1), HostPort: "a:1"}}))
	f.Add(EncodeParts([]statesync.Part{{Height: 7, Chunks: 9, Spans: []scheduler.Span{{From: 0, To: 2}, {From: 4, To: 9}}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := DecodeStatus(b); err == nil {
			require.Equal(t, b, s.Encode())
		}
		if r, err := DecodeManifestRequest(b); err == nil && len(b) > 8 {
			require.Equal(t, b, r.Encode())
		}
		if r, err := DecodeChunkRequest(b); err == nil {
			require.Equal(t, b, r.Encode())
		}
		if r, err := DecodeSubManifestRequest(b); err == nil {
			require.Equal(t, b, r.Encode())
		}
		if list, err := DecodePeers(b); err == nil {
			require.Equal(t, b, EncodePeers(list))
		}
		if list, err := DecodeParts(b); err == nil {
			require.Equal(t, b, EncodeParts(list))
			for _, p := range list {
				require.NoError(t, p.Check())
			}
		}
	})
}

func spans(edges ...uint32) (list []scheduler.Span) {
	for i := 0; i < len(edges); i += 2 {
		list = append(list, scheduler.Span{From: edges[i], To: edges[i+1]})
	}
	return list
}

func TestPartsRoundTrip(t *testing.T) {
	for _, parts := range [][]statesync.Part{
		nil,
		{{Height: 10, Chunks: 1, Spans: spans(0, 1)}},
		{{Height: 10, Chunks: 100, Spans: spans(0, 25, 50, 75)}, {Height: 1<<63 - 1, Chunks: 1<<32 - 1, Spans: spans(1<<32-2, 1<<32-1)}},
	} {
		got, err := DecodeParts(EncodeParts(parts))
		require.NoError(t, err)
		require.Equal(t, parts, got)
	}
	var many []statesync.Part
	for h := range int64(100) {
		p := statesync.Part{Height: h + 1, Chunks: 1000}
		for k := range uint32(300) {
			p.Spans = append(p.Spans, scheduler.Span{From: 3 * k, To: 3*k + 2})
		}
		many = append(many, p)
	}
	b := EncodeParts(many)
	require.Len(t, b, MaxPartsBytes)
	got, err := DecodeParts(b)
	require.NoError(t, err)
	require.Len(t, got, maxPartHeight)
	require.Equal(t, many[99].Spans[:maxSpans], got[maxPartHeight-1].Spans, "the newest, and of each the first spans")
}

func TestPartsRefuses(t *testing.T) {
	one := func(p statesync.Part) []byte { return EncodeParts([]statesync.Part{p}) }
	good := one(statesync.Part{Height: 10, Chunks: 9, Spans: spans(0, 2, 4, 9)})
	for name, b := range map[string][]byte{
		"nothing":                  {},
		"another version":          append([]byte{2}, good[1:]...),
		"bytes left over":          append(bytes.Clone(good), 0),
		"too short":                good[:len(good)-1],
		"too many":                 {1, 0, maxPartHeight + 1},
		"more than there are":      {1, 0, 2},
		"height 0":                 one(statesync.Part{Chunks: 9, Spans: spans(0, 2)}),
		"no chunks":                one(statesync.Part{Height: 1, Chunks: 9}),
		"an empty span":            one(statesync.Part{Height: 1, Chunks: 9, Spans: spans(3, 3)}),
		"spans that touch":         one(statesync.Part{Height: 1, Chunks: 9, Spans: spans(0, 3, 3, 5)}),
		"spans that overlap":       one(statesync.Part{Height: 1, Chunks: 9, Spans: spans(0, 3, 2, 5)}),
		"beyond the last chunk":    one(statesync.Part{Height: 1, Chunks: 9, Spans: spans(0, 10)}),
		"heights that descend":     EncodeParts([]statesync.Part{{Height: 2, Chunks: 9, Spans: spans(0, 1)}, {Height: 1, Chunks: 9, Spans: spans(0, 1)}}),
		"a height beyond the last": append([]byte{1, 0, 1, 0x80, 0, 0, 0, 0, 0, 0, 0}, good[11:]...),
	} {
		_, err := DecodeParts(b)
		require.ErrorIs(t, err, ErrMessage, name)
	}
}
