package client

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
)

func decodeRangeRequest(t *testing.T, b []byte) app.RangeRequest {
	var r app.RangeRequest
	require.NoError(t, r.Unmarshal(b))
	return r
}

func encodeRangeResponse(entries []avlstar.KV, next []byte) []byte {
	return encodeRange(app.RangeRequest{}, entries, next)
}

// encodeRange encodes the answer to a request; entries must be in key order.
func encodeRange(request app.RangeRequest, entries []avlstar.KV, next []byte) []byte {
	r := app.RangeResponse{Next: next}
	for _, e := range entries {
		entry := app.Entry{Key: e.Key, Value: e.Value}
		if request.KeysOnly {
			hash := sha256.Sum256(e.Value)
			entry = app.Entry{Key: e.Key, ValueHash: hash[:], ValueBytes: uint32(len(e.Value))}
		}
		r.Entries = append(r.Entries, entry)
	}
	if request.Reverse {
		slices.Reverse(r.Entries)
	}
	b, err := r.Marshal()
	if err != nil {
		panic(err)
	}
	return b
}

func nonceBytes(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

func TestRangeMessagesAreTheApplications(t *testing.T) {
	for _, o := range []readOptions{{limit: 300}, {limit: 1 << 40, keysOnly: true}, {limit: 1, reverse: true}} {
		r := decodeRangeRequest(t, encodeRangeRequest([]byte("a"), []byte("b"), o))
		require.Equal(t, app.RangeRequest{Start: []byte("a"), End: []byte("b"), Limit: uint32(min(o.limit, 1<<32-1)), KeysOnly: o.keysOnly, Reverse: o.reverse}, r)
	}
	require.Empty(t, encodeRangeRequest(nil, nil, readOptions{}))

	want := []avlstar.KV{{Key: []byte("a"), Value: []byte("1")}, {Key: []byte("b"), Value: make([]byte, 1000)}}
	encoded := encodeRangeResponse(want, []byte("c"))
	entries, _, next, err := decodeRangeResponse(encoded, readOptions{limit: 2})
	require.NoError(t, err)
	require.Equal(t, want, entries)
	require.Equal(t, "c", string(next))
	_, _, _, err = decodeRangeResponse(encoded, readOptions{limit: 1})
	require.ErrorContains(t, err, "more than 1 entries")
	for i := range encoded {
		_, _, _, _ = decodeRangeResponse(encoded[:i], readOptions{limit: 2}) // no panic
	}
	_, _, _, err = decodeRangeResponse(protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 0), readOptions{limit: 2})
	require.Error(t, err)

	// An old node ignores unknown options: its answers are refused.
	for _, o := range []readOptions{{limit: 2, keysOnly: true}, {limit: 2, reverse: true}} {
		_, _, _, err = decodeRangeResponse(encoded, o)
		require.ErrorContains(t, err, "too old")
	}
	keysOnly := encodeRange(app.RangeRequest{KeysOnly: true, Reverse: true}, want, nil)
	entries, keys, _, err := decodeRangeResponse(keysOnly, readOptions{limit: 2, keysOnly: true, reverse: true})
	require.NoError(t, err)
	require.Equal(t, []avlstar.KV{{Key: []byte("b")}, {Key: []byte("a")}}, entries)
	require.Equal(t, []avlstar.KeyEntry{avlstar.KeyEntryOf([]byte("b"), want[1].Value), avlstar.KeyEntryOf([]byte("a"), want[0].Value)}, keys)
}

func FuzzRangeResponse(f *testing.F) {
	f.Add(encodeRangeResponse([]avlstar.KV{{Key: []byte("a"), Value: []byte("1")}}, []byte("c")))
	f.Add(encodeRange(app.RangeRequest{KeysOnly: true, Reverse: true}, []avlstar.KV{{Key: []byte("a"), Value: []byte("1")}, {Key: []byte("b"), Value: []byte("2")}}, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, o := range []readOptions{{limit: 3, keysOnly: true}, {limit: 3, reverse: true}} {
			_, keys, _, err := decodeRangeResponse(b, o)
			require.True(t, err != nil || len(keys) <= 3)
		}
		entries, _, _, err := decodeRangeResponse(b, readOptions{limit: 3})
		if err == nil {
			require.LessOrEqual(t, len(entries), 3)
		}
	})
}
