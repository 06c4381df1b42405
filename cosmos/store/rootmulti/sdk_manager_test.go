// Copied from cosmossdk.io/store v1.1.2, snapshots/manager_test.go and snapshots/helpers_test.go
// (Apache License 2.0, the Cosmos SDK's authors), and changed: see doc.go.

package rootmulti

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"testing"

	dbm "github.com/cosmos/cosmos-db"
	protoio "github.com/cosmos/gogoproto/io"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"cosmossdk.io/log"
	"cosmossdk.io/store/snapshots"
	snapshottypes "cosmossdk.io/store/snapshots/types"
	"cosmossdk.io/store/types"
)

var opts = snapshottypes.NewSnapshotOptions(1500, 2)

// managed is a multi-store, in place of the original's mockSnapshotter. It notes what the tests ask
// that one about.
type managed struct {
	*Store
	prunedHeights    map[int64]struct{}
	snapshotInterval uint64
}

func (m *managed) PruneSnapshotHeight(height int64) {
	m.prunedHeights[height] = struct{}{}
	m.Store.PruneSnapshotHeight(height)
}

func (m *managed) GetSnapshotInterval() uint64 { return m.snapshotInterval }

func (m *managed) SetSnapshotInterval(interval uint64) {
	m.snapshotInterval = interval
	m.Store.SetSnapshotInterval(interval)
}

var itemsKey = types.NewKVStoreKey("items")

// newManaged returns a multi-store at a version that has these items in its one store, each under
// its first byte.
func newManaged(t *testing.T, version int, items ...[]byte) *managed {
	t.Helper()
	s := newStore(dbm.NewMemDB())
	s.MountStoreWithDB(itemsKey, testType, nil)
	require.NoError(t, s.LoadLatestVersion())
	for _, item := range items {
		s.GetCommitKVStore(itemsKey).Set(item[:1], item)
	}
	for range version {
		s.Commit()
	}
	return &managed{Store: s, prunedHeights: map[int64]struct{}{}}
}

func (m *managed) items(t *testing.T) (items [][]byte) {
	t.Helper()
	it := m.GetCommitKVStore(itemsKey).Iterator(nil, nil)
	for ; it.Valid(); it.Next() {
		items = append(items, it.Value())
	}
	require.NoError(t, errors.Join(it.Error(), it.Close()))
	return items
}

// hungSnapshotter can be used to test operations in progress. Call Close to end the snapshot.
type hungSnapshotter struct {
	*managed
	begun, ch chan struct{}
}

func (m *hungSnapshotter) Close() { close(m.ch) }

func (m *hungSnapshotter) Snapshot(height uint64, protoWriter protoio.Writer) error {
	close(m.begun)
	<-m.ch
	return m.managed.Snapshot(height, protoWriter)
}

// setupBusyManager creates a manager with an empty store that is busy creating a snapshot at height
// 1. The snapshot completes at the end of the test.
func setupBusyManager(t *testing.T) *snapshots.Manager {
	t.Helper()
	store, err := snapshots.NewStore(dbm.NewMemDB(), t.TempDir())
	require.NoError(t, err)
	hung := &hungSnapshotter{newManaged(t, 1, []byte{1}), make(chan struct{}), make(chan struct{})}
	hung.SetSnapshotInterval(opts.Interval)
	mgr := snapshots.NewManager(store, opts, hung, nil, log.NewNopLogger())
	require.Equal(t, opts.Interval, hung.snapshotInterval)

	// Channel to ensure the test doesn't finish until the goroutine is done.
	// Without this, there are intermittent test failures about
	// the t.TempDir() cleanup failing due to the directory not being empty.
	done := make(chan struct{})

	go func() {
		defer close(done)
		_, err := mgr.Create(1)
		assert.NoError(t, err)
		_, didPruneHeight := hung.prunedHeights[1]
		assert.True(t, didPruneHeight)
	}()
	<-hung.begun

	t.Cleanup(func() {
		<-done
	})

	t.Cleanup(hung.Close)

	return mgr
}

func setupStore(t *testing.T) *snapshots.Store {
	t.Helper()
	store, err := snapshots.NewStore(dbm.NewMemDB(), t.TempDir())
	require.NoError(t, err)

	_, err = store.Save(1, 1, makeChunks([][]byte{
		{1, 1, 0}, {1, 1, 1},
	}))
	require.NoError(t, err)
	_, err = store.Save(2, 1, makeChunks([][]byte{
		{2, 1, 0}, {2, 1, 1},
	}))
	require.NoError(t, err)
	_, err = store.Save(2, 2, makeChunks([][]byte{
		{2, 2, 0}, {2, 2, 1}, {2, 2, 2},
	}))
	require.NoError(t, err)
	_, err = store.Save(3, 2, makeChunks([][]byte{
		{3, 2, 0}, {3, 2, 1}, {3, 2, 2},
	}))
	require.NoError(t, err)

	return store
}

func checksums(slice [][]byte) [][]byte {
	hasher := sha256.New()
	checksums := make([][]byte, len(slice))
	for i, chunk := range slice {
		hasher.Write(chunk)
		checksums[i] = hasher.Sum(nil)
		hasher.Reset()
	}
	return checksums
}

func makeChunks(chunks [][]byte) <-chan io.ReadCloser {
	ch := make(chan io.ReadCloser, len(chunks))
	for _, chunk := range chunks {
		ch <- io.NopCloser(bytes.NewReader(chunk))
	}
	close(ch)
	return ch
}

func readChunks(chunks <-chan io.ReadCloser) [][]byte {
	bodies := [][]byte{}
	for chunk := range chunks {
		body, err := io.ReadAll(chunk)
		if err != nil {
			panic(err)
		}
		bodies = append(bodies, body)
	}
	return bodies
}

// snapshotItems serializes a multi-store and an extension, and returns the chunks.
func snapshotItems(source *managed, height uint64, ext snapshottypes.ExtensionSnapshotter) [][]byte {
	// copy the same parameters from the code
	snapshotChunkSize := uint64(10e6)
	snapshotBufferSize := int(snapshotChunkSize)

	ch := make(chan io.ReadCloser)
	go func() {
		chunkWriter := snapshots.NewChunkWriter(ch, snapshotChunkSize)
		bufWriter := bufio.NewWriterSize(chunkWriter, snapshotBufferSize)
		zWriter, _ := zlib.NewWriterLevel(bufWriter, 7)
		protoWriter := protoio.NewDelimitedWriter(zWriter)
		_ = source.Snapshot(height, protoWriter)
		// write extension metadata
		_ = protoWriter.WriteMsg(&snapshottypes.SnapshotItem{
			Item: &snapshottypes.SnapshotItem_Extension{
				Extension: &snapshottypes.SnapshotExtensionMeta{
					Name:   ext.SnapshotName(),
					Format: ext.SnapshotFormat(),
				},
			},
		})
		_ = ext.SnapshotExtension(0, func(payload []byte) error {
			return snapshottypes.WriteExtensionPayload(protoWriter, payload)
		})
		_ = protoWriter.Close()
		_ = bufWriter.Flush()
		_ = chunkWriter.Close()
	}()
	return readChunks(ch)
}

type extSnapshotter struct {
	state []uint64
}

func newExtSnapshotter(count int) *extSnapshotter {
	state := make([]uint64, 0, count)
	for i := 0; i < count; i++ {
		state = append(state, uint64(i))
	}
	return &extSnapshotter{
		state,
	}
}

func (s *extSnapshotter) SnapshotName() string { return "mock" }

func (s *extSnapshotter) SnapshotFormat() uint32 { return 1 }

func (s *extSnapshotter) SupportedFormats() []uint32 { return []uint32{1} }

func (s *extSnapshotter) SnapshotExtension(_ uint64, payloadWriter snapshottypes.ExtensionPayloadWriter) error {
	for _, i := range s.state {
		if err := payloadWriter(types.Uint64ToBigEndian(i)); err != nil {
			return err
		}
	}
	return nil
}

func (s *extSnapshotter) RestoreExtension(_ uint64, _ uint32, payloadReader snapshottypes.ExtensionPayloadReader) error {
	for {
		payload, err := payloadReader()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		s.state = append(s.state, types.BigEndianToUint64(payload))
	}
	// finalize restoration
	return nil
}

func TestManager_List(t *testing.T) {
	store := setupStore(t)
	snapshotter := newManaged(t, 0)
	snapshotter.SetSnapshotInterval(opts.Interval)
	manager := snapshots.NewManager(store, opts, snapshotter, nil, log.NewNopLogger())
	require.Equal(t, opts.Interval, snapshotter.GetSnapshotInterval())

	mgrList, err := manager.List()
	require.NoError(t, err)
	storeList, err := store.List()
	require.NoError(t, err)

	require.NotEmpty(t, storeList)
	assert.Equal(t, storeList, mgrList)

	// list should not block or error on busy managers
	manager = setupBusyManager(t)
	list, err := manager.List()
	require.NoError(t, err)
	assert.Equal(t, []*snapshottypes.Snapshot{}, list)

	require.NoError(t, manager.Close())
}

func TestManager_LoadChunk(t *testing.T) {
	store := setupStore(t)
	manager := snapshots.NewManager(store, opts, newManaged(t, 0), nil, log.NewNopLogger())

	// Existing chunk should return body
	chunk, err := manager.LoadChunk(2, 1, 1)
	require.NoError(t, err)
	assert.Equal(t, []byte{2, 1, 1}, chunk)

	// Missing chunk should return nil
	chunk, err = manager.LoadChunk(2, 1, 9)
	require.NoError(t, err)
	assert.Nil(t, chunk)

	// LoadChunk should not block or error on busy managers
	manager = setupBusyManager(t)
	chunk, err = manager.LoadChunk(2, 1, 0)
	require.NoError(t, err)
	assert.Nil(t, chunk)
}

func TestManager_Take(t *testing.T) {
	store := setupStore(t)
	items := [][]byte{
		{1, 2, 3},
		{4, 5, 6},
		{7, 8, 9},
	}
	snapshotter := newManaged(t, 5, items...)
	extSnapshotter := newExtSnapshotter(10)

	expectChunks := snapshotItems(snapshotter, 5, extSnapshotter)
	manager := snapshots.NewManager(store, opts, snapshotter, nil, log.NewNopLogger())
	err := manager.RegisterExtensions(extSnapshotter)
	require.NoError(t, err)

	// nil manager should return error
	_, err = (*snapshots.Manager)(nil).Create(1)
	require.Error(t, err)

	// creating a snapshot at a lower height than the latest should error
	_, err = manager.Create(3)
	require.Error(t, err)
	_, didPruneHeight := snapshotter.prunedHeights[3]
	require.True(t, didPruneHeight)

	// creating a snapshot at a higher height should be fine, and should return it
	snapshot, err := manager.Create(5)
	require.NoError(t, err)
	_, didPruneHeight = snapshotter.prunedHeights[5]
	require.True(t, didPruneHeight)

	expectHash, err := hex.DecodeString(map[bool]string{
		true:  "564fc3d4d714368d240bda0c17dd98801116ddcf6e034c643d9f41974dfeee98",
		false: "eca04e355f031d9e695893b8d4ca5c83ad409b7a850b2c91eeff11feddd40efb",
	}[testType == types.StoreTypeIAVL])
	require.NoError(t, err)
	assert.Equal(t, &snapshottypes.Snapshot{
		Height: 5,
		Format: snapshottypes.CurrentFormat,
		Chunks: 1,
		Hash:   expectHash,
		Metadata: snapshottypes.Metadata{
			ChunkHashes: checksums(expectChunks),
		},
	}, snapshot)

	storeSnapshot, chunks, err := store.Load(snapshot.Height, snapshot.Format)
	require.NoError(t, err)
	assert.Equal(t, snapshot, storeSnapshot)
	assert.Equal(t, expectChunks, readChunks(chunks))

	// creating a snapshot while a different snapshot is being created should error
	manager = setupBusyManager(t)
	_, err = manager.Create(9)
	require.Error(t, err)
}

func TestManager_Prune(t *testing.T) {
	store := setupStore(t)
	snapshotter := newManaged(t, 0)
	snapshotter.SetSnapshotInterval(opts.Interval)
	manager := snapshots.NewManager(store, opts, snapshotter, nil, log.NewNopLogger())

	pruned, err := manager.Prune(2)
	require.NoError(t, err)
	assert.EqualValues(t, 1, pruned)

	list, err := manager.List()
	require.NoError(t, err)
	assert.Len(t, list, 3)

	// Prune should error while a snapshot is being taken
	manager = setupBusyManager(t)
	_, err = manager.Prune(2)
	require.Error(t, err)
}

func TestManager_Restore(t *testing.T) {
	store := setupStore(t)
	target := newManaged(t, 0)
	extSnapshotter := newExtSnapshotter(0)
	manager := snapshots.NewManager(store, opts, target, nil, log.NewNopLogger())
	err := manager.RegisterExtensions(extSnapshotter)
	require.NoError(t, err)

	expectItems := [][]byte{
		{1, 2, 3},
		{4, 5, 6},
		{7, 8, 9},
	}

	source := newManaged(t, 3, expectItems...)
	chunks := snapshotItems(source, 3, newExtSnapshotter(10))

	// Restore errors on invalid format
	err = manager.Restore(snapshottypes.Snapshot{
		Height:   3,
		Format:   0,
		Hash:     []byte{1, 2, 3},
		Chunks:   uint32(len(chunks)),
		Metadata: snapshottypes.Metadata{ChunkHashes: checksums(chunks)},
	})
	require.Error(t, err)
	require.ErrorIs(t, err, snapshottypes.ErrUnknownFormat)

	// Restore errors on no chunks
	err = manager.Restore(snapshottypes.Snapshot{Height: 3, Format: snapshottypes.CurrentFormat, Hash: []byte{1, 2, 3}})
	require.Error(t, err)

	// Restore errors on chunk and chunkhashes mismatch
	err = manager.Restore(snapshottypes.Snapshot{
		Height:   3,
		Format:   snapshottypes.CurrentFormat,
		Hash:     []byte{1, 2, 3},
		Chunks:   4,
		Metadata: snapshottypes.Metadata{ChunkHashes: checksums(chunks)},
	})
	require.Error(t, err)

	// Starting a restore works
	err = manager.Restore(snapshottypes.Snapshot{
		Height:   3,
		Format:   snapshottypes.CurrentFormat,
		Hash:     []byte{1, 2, 3},
		Chunks:   1,
		Metadata: snapshottypes.Metadata{ChunkHashes: checksums(chunks)},
	})
	require.NoError(t, err)

	// While the restore is in progress, any other operations fail
	_, err = manager.Create(4)
	require.Error(t, err)
	_, didPruneHeight := target.prunedHeights[4]
	require.True(t, didPruneHeight)

	_, err = manager.Prune(1)
	require.Error(t, err)

	// Feeding an invalid chunk should error due to invalid checksum, but not abort restoration.
	_, err = manager.RestoreChunk([]byte{9, 9, 9})
	require.Error(t, err)
	require.True(t, errors.Is(err, snapshottypes.ErrChunkHashMismatch))

	// Feeding the chunks should work
	for i, chunk := range chunks {
		done, err := manager.RestoreChunk(chunk)
		require.NoError(t, err)
		if i == len(chunks)-1 {
			assert.True(t, done)
		} else {
			assert.False(t, done)
		}
	}

	assert.Equal(t, expectItems, target.items(t))
	assert.Equal(t, source.LastCommitID(), target.LastCommitID())
	assert.Equal(t, 10, len(extSnapshotter.state))

	// The snapshot is saved in local snapshot store
	snapshots, err := store.List()
	require.NoError(t, err)
	snapshot := snapshots[0]
	require.Equal(t, uint64(3), snapshot.Height)
	require.Equal(t, snapshottypes.CurrentFormat, snapshot.Format)

	// A new restore should fail now, because the target already has contents.
	again := snapshottypes.Snapshot{
		Height:   3,
		Format:   snapshottypes.CurrentFormat,
		Hash:     []byte{1, 2, 3},
		Chunks:   1,
		Metadata: snapshottypes.Metadata{ChunkHashes: checksums(chunks)},
	}
	require.NoError(t, manager.Restore(again))
	_, err = manager.RestoreChunk(chunks[0])
	require.ErrorContains(t, err, "multistore restore")
	assert.Equal(t, expectItems, target.items(t))

	// But if we clear out the target we should be able to restore again.
	target.Store = newManaged(t, 0).Store
	require.NoError(t, manager.Restore(again))
	done, err := manager.RestoreChunk(chunks[0])
	require.NoError(t, err)
	require.True(t, done)
	assert.Equal(t, expectItems, target.items(t))
}

func TestManager_TakeError(t *testing.T) {
	snapshotter := newManaged(t, 0) // has no height to take
	store, err := snapshots.NewStore(dbm.NewMemDB(), t.TempDir())
	require.NoError(t, err)
	manager := snapshots.NewManager(store, opts, snapshotter, nil, log.NewNopLogger())

	_, err = manager.Create(1)
	require.Error(t, err)
}
