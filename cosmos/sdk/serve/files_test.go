package serve

import (
	"bytes"
	"io"
	"testing"

	"cosmossdk.io/store/snapshots"
	"cosmossdk.io/store/snapshots/types"
	"github.com/stretchr/testify/require"
)

// stream returns the chunks of items, as the SDK's snapshots have them.
func stream(t *testing.T, items ...types.SnapshotItem) (files [][]byte) {
	t.Helper()
	chunks := make(chan io.ReadCloser)
	go func() {
		w := snapshots.NewStreamWriter(chunks)
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

// What follows a state is bound by no hash of the chain: an item of a store there would be written
// over what was proved.
func TestOnlyExtensions(t *testing.T) {
	extension := types.SnapshotItem{Item: &types.SnapshotItem_Extension{Extension: &types.SnapshotExtensionMeta{Name: "wasm", Format: 1}}}
	payload := types.SnapshotItem{Item: &types.SnapshotItem_ExtensionPayload{ExtensionPayload: &types.SnapshotExtensionPayload{Payload: []byte("code")}}}
	honest := stream(t, extension, payload)
	require.NoError(t, onlyExtensions(honest))

	for name, item := range map[string]types.SnapshotItem{
		"a store": {Item: &types.SnapshotItem_Store{Store: &types.SnapshotStoreItem{Name: "bank"}}},
		"a leaf":  {Item: &types.SnapshotItem_IAVL{IAVL: &types.SnapshotIAVLItem{Key: []byte("k"), Value: []byte("v"), Version: 1}}},
		"nothing": {},
	} {
		require.ErrorIs(t, onlyExtensions(stream(t, extension, payload, item)), errNotExtensions, name)
		require.ErrorIs(t, onlyExtensions(stream(t, item, extension, payload)), errNotExtensions, name)
	}
	joined := bytes.Join(honest, nil)
	require.Error(t, onlyExtensions([][]byte{joined[:len(joined)/2]}), "cut off")
	require.Error(t, onlyExtensions([][]byte{[]byte("no stream")}))
}
