package serve

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"testing"

	dbm "github.com/cosmos/cosmos-db"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/nodedb"
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
	ignored := func(string, []byte) error { return nil }
	extension := generation.SnapshotItem{Item: &generation.SnapshotItem_Extension{Extension: &generation.SnapshotExtensionMeta{Name: "wasm", Format: 1}}}
	payload := generation.SnapshotItem{Item: &generation.SnapshotItem_ExtensionPayload{ExtensionPayload: &generation.SnapshotExtensionPayload{Payload: []byte("code")}}}
	honest := stream(t, extension, payload)
	require.NoError(t, onlyExtensions(honest, ignored))

	for name, item := range map[string]generation.SnapshotItem{
		"a store": {Item: &generation.SnapshotItem_Store{Store: &generation.SnapshotStoreItem{Name: "bank"}}},
		"a leaf":  {Item: &generation.SnapshotItem_IAVL{IAVL: &generation.SnapshotIAVLItem{Key: []byte("k"), Value: []byte("v"), Version: 1}}},
		"nothing": {},
	} {
		require.ErrorIs(t, onlyExtensions(stream(t, extension, payload, item), ignored), errNotExtensions, name)
		require.ErrorIs(t, onlyExtensions(stream(t, item, extension, payload), ignored), errNotExtensions, name)
	}
	joined := bytes.Join(honest, nil)
	require.Error(t, onlyExtensions([][]byte{joined[:len(joined)/2]}, ignored), "cut off")
	require.Error(t, onlyExtensions([][]byte{[]byte("no stream")}, ignored))
}

// TestVerifyExtensions: code that the state has the hash of must be among the files, decompressed,
// in the extension of its own module.
func TestVerifyExtensions(t *testing.T) {
	one, two := []byte("\x00asm one"), []byte("\x00asm two")
	compressed := func(code []byte) []byte {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, err := z.Write(code)
		require.NoError(t, errors.Join(err, z.Close()))
		return b.Bytes()
	}
	files := func(name string, payloads ...[]byte) [][]byte {
		items := []generation.SnapshotItem{{Item: &generation.SnapshotItem_Extension{Extension: &generation.SnapshotExtensionMeta{Name: name, Format: 1}}}}
		for _, p := range payloads {
			items = append(items, generation.SnapshotItem{Item: &generation.SnapshotItem_ExtensionPayload{
				ExtensionPayload: &generation.SnapshotExtensionPayload{Payload: p}}})
		}
		return stream(t, items...)
	}
	db := dbm.NewMemDB()
	require.NoError(t, verifyExtensions(files("wasm", []byte("of an unknown form")), nodedb.Of(db)), "the state has no hashes")
	for id, code := range [][]byte{one, two} {
		hash := sha256.Sum256(code)
		value := append([]byte{1<<3 | 2, sha256.Size}, hash[:]...)
		require.NoError(t, db.Set(binary.BigEndian.AppendUint64([]byte("s/k:wasm/f\x01"), uint64(id)), nodedb.AppendFast(nil, 1, value)))
	}
	verify := func(files [][]byte) error { return verifyExtensions(files, nodedb.Of(db)) }
	require.NoError(t, verify(files("wasm", compressed(two), compressed(one))))
	require.ErrorIs(t, verify(files("wasm", compressed(one))), errOtherCode)
	require.ErrorIs(t, verify(files("wasm", compressed(one), compressed([]byte("\x00asm other")))), errOtherCode)
	require.ErrorIs(t, verify(files("08-wasm", compressed(one), compressed(two))), errOtherCode)
	require.ErrorIs(t, verify(files("wasm", compressed(one), compressed(two)[:20])), errOtherCode)
	require.ErrorIs(t, verify(files("wasm", compressed(one), compressed(two), compressed(make([]byte, iavlsync.MaxFileBytes+1)))), errOtherCode)
}
