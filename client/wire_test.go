package client

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
)

func decodeRangeRequest(t *testing.T, b []byte) (start, end []byte, limit int) {
	var r app.RangeRequest
	require.NoError(t, r.Unmarshal(b))
	return r.Start, r.End, int(r.Limit)
}

func encodeRangeResponse(entries []avlstar.KV, next []byte) []byte {
	r := app.RangeResponse{Next: next}
	for _, e := range entries {
		r.Entries = append(r.Entries, app.Entry{Key: e.Key, Value: e.Value})
	}
	b, err := r.Marshal()
	if err != nil {
		panic(err)
	}
	return b
}

func nonceBytes(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

func TestRangeMessagesAreTheApplications(t *testing.T) {
	start, end, limit := decodeRangeRequest(t, encodeRangeRequest([]byte("a"), []byte("b"), 300))
	require.Equal(t, []any{"a", "b", 300}, []any{string(start), string(end), limit})
	require.Empty(t, encodeRangeRequest(nil, nil, 0))

	want := []avlstar.KV{{Key: []byte("a"), Value: []byte("1")}, {Key: []byte("b"), Value: make([]byte, 1000)}}
	encoded := encodeRangeResponse(want, []byte("c"))
	entries, next, err := decodeRangeResponse(encoded, 2)
	require.NoError(t, err)
	require.Equal(t, want, entries)
	require.Equal(t, "c", string(next))
	_, _, err = decodeRangeResponse(encoded, 1)
	require.ErrorContains(t, err, "more than 1 entries")
	for i := range encoded {
		_, _, _ = decodeRangeResponse(encoded[:i], 2) // no panic
	}
	_, _, err = decodeRangeResponse(protowire.AppendTag(nil, 1, protowire.VarintType), 2)
	require.Error(t, err)
}

func FuzzRangeResponse(f *testing.F) {
	f.Add(encodeRangeResponse([]avlstar.KV{{Key: []byte("a"), Value: []byte("1")}}, []byte("c")))
	f.Fuzz(func(t *testing.T, b []byte) {
		entries, _, err := decodeRangeResponse(b, 3)
		if err == nil {
			require.LessOrEqual(t, len(entries), 3)
		}
	})
}
