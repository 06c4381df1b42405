package serve

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/sdk/internal/generation"
)

// stream encodes items as chunks of an SDK snapshot.
func stream(t *testing.T, items ...generation.SnapshotItem) (files [][]byte) {
	t.Helper()
	chunks := make(chan io.ReadCloser)
	go func() {
		w := generation.NewStreamWriter(chunks)
		for i := range items {
			if err := w.WriteMsg(&items[i]); err != nil {
				w.CloseWithError(err)
				return
			}
		}
		_ = w.Close()
	}()
	for chunk := range chunks {
		b, err := io.ReadAll(chunk)
		require.NoError(t, err)
		files = append(files, b)
	}
	return files
}

// The app hash does not commit to extension chunks. A store item among them would overwrite the
// verified state.
func TestOnlyExtensions(t *testing.T) {
	extension := generation.SnapshotItem{Item: &generation.SnapshotItem_Extension{Extension: &generation.SnapshotExtensionMeta{Name: "wasm", Format: 1}}}
	payload := generation.SnapshotItem{Item: &generation.SnapshotItem_ExtensionPayload{ExtensionPayload: &generation.SnapshotExtensionPayload{Payload: []byte("code")}}}
	honest := stream(t, extension, payload)
	require.NoError(t, onlyExtensions(honest))

	for name, item := range map[string]generation.SnapshotItem{
		"a store": {Item: &generation.SnapshotItem_Store{Store: &generation.SnapshotStoreItem{Name: "bank"}}},
		"a leaf":  {Item: &generation.SnapshotItem_IAVL{IAVL: &generation.SnapshotIAVLItem{Key: []byte("k"), Value: []byte("v"), Version: 1}}},
		"nothing": {},
	} {
		require.ErrorIs(t, onlyExtensions(stream(t, extension, payload, item)), errNotExtensions, name)
		require.ErrorIs(t, onlyExtensions(stream(t, item, extension, payload)), errNotExtensions, name)
	}
	joined := bytes.Join(honest, nil)
	require.Error(t, onlyExtensions([][]byte{joined[:len(joined)/2]}), "cut off")
	require.Error(t, onlyExtensions([][]byte{[]byte("no stream")}))
}
