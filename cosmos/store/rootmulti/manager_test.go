package rootmulti

import (
	"crypto/sha256"
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	dbm "github.com/cosmos/cosmos-db"
	"github.com/stretchr/testify/require"

	"cosmossdk.io/log/v2"
	pruningtypes "github.com/cosmos/cosmos-sdk/store/v2/pruning/types"
	"github.com/cosmos/cosmos-sdk/store/v2/snapshots"
	snapshottypes "github.com/cosmos/cosmos-sdk/store/v2/snapshots/types"
	"github.com/cosmos/cosmos-sdk/store/v2/types"

	"github.com/starling-kv/starling/cosmos/store"
)

// managed is a multi-store with one store of each kind, with the SDK's snapshot manager.
type managed struct {
	*Store
	keys    []types.StoreKey
	manager *snapshots.Manager
}

func newManaged(t *testing.T, extension string) *managed {
	t.Helper()
	m := &managed{keys: []types.StoreKey{types.NewKVStoreKey("iavl"), types.NewKVStoreKey("starling")}}
	m.Store = NewStore(dbm.NewMemDB(), log.NewNopLogger(), Options{Dir: "starling", FS: vfs.NewMem()})
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	m.SetPruning(pruningtypes.NewCustomPruningOptions(2, 1))
	m.SetSnapshotInterval(3)
	m.MountStoreWithDB(m.keys[0], types.StoreTypeIAVL, nil)
	m.MountStoreWithDB(m.keys[1], store.Type, nil)
	require.NoError(t, m.LoadLatestVersion())
	kept, err := snapshots.NewStore(dbm.NewMemDB(), t.TempDir())
	require.NoError(t, err)
	m.manager = snapshots.NewManager(kept, snapshottypes.NewSnapshotOptions(3, 2), m.Store, nil, log.NewNopLogger())
	require.NoError(t, m.manager.RegisterExtensions(note(extension)))
	return m
}

func (m *managed) commit(value string) {
	for _, key := range m.keys {
		m.GetKVStore(key).Set([]byte("key"), []byte(value))
	}
	m.Commit()
}

// note is a snapshot extension with one payload, its name.
type note string

func (n note) SnapshotName() string     { return string(n) }
func (note) SnapshotFormat() uint32     { return 1 }
func (note) SupportedFormats() []uint32 { return []uint32{1} }
func (n note) SnapshotExtension(_ uint64, write snapshottypes.ExtensionPayloadWriter) error {
	return write([]byte(n))
}

func (n note) RestoreExtension(_ uint64, _ uint32, read snapshottypes.ExtensionPayloadReader) error {
	payload, err := read()
	if err == nil && string(payload) != string(n) {
		return errors.New("another payload")
	}
	return err
}

// restore restores a snapshot of one chunk.
func (m *managed) restore(height uint64, chunk []byte) error {
	hash := sha256.Sum256(chunk)
	s := snapshottypes.Snapshot{Height: height, Format: snapshottypes.CurrentFormat, Chunks: 1}
	s.Metadata.ChunkHashes = [][]byte{hash[:]}
	if err := m.manager.Restore(s); err != nil {
		return err
	}
	_, err := m.manager.RestoreChunk(chunk)
	return err
}

// TestManager checks that the SDK's snapshot manager takes a snapshot of a height, that the height
// is not pruned before, and that the manager restores the snapshot with its extension. A truncated
// chunk restores nothing.
func TestManager(t *testing.T) {
	snapshot := func(extension string) (want types.CommitID, chunk []byte) {
		from := newManaged(t, extension)
		for range 3 {
			from.commit("value")
		}
		want = from.LastCommitID()
		for range 4 {
			from.commit("later")
		}
		_, err := from.CacheMultiStoreWithVersion(3)
		require.NoError(t, err, "pruned before its snapshot was taken")
		s, err := from.manager.Create(3)
		require.NoError(t, err)
		require.EqualValues(t, 1, s.Chunks)
		chunk, err = from.manager.LoadChunk(3, s.Format, 0)
		require.NoError(t, err)
		from.commit("later")
		_, err = from.CacheMultiStoreWithVersion(3)
		require.Error(t, err, "pruned") // that of either store: IAVL prunes in the background
		return want, chunk
	}
	want, good := snapshot("note")
	_, unknown := snapshot("other")

	to := newManaged(t, "note")
	require.ErrorContains(t, to.restore(3, good[:len(good)/2]), "unexpected EOF")
	require.ErrorContains(t, to.restore(3, []byte("not a stream")), "zlib: invalid header")
	require.Zero(t, to.LatestVersion())
	require.NoError(t, to.restore(3, good))
	require.Equal(t, want, to.LastCommitID())
	for _, key := range to.keys {
		require.Equal(t, "value", string(to.GetKVStore(key).Get([]byte("key"))))
	}
	require.Error(t, to.restore(3, good), "the multi-store is no longer empty")
	require.Equal(t, want, to.LastCommitID())

	to = newManaged(t, "note")
	require.ErrorContains(t, to.restore(3, unknown), "unknown extension snapshotter")
	require.Equal(t, want, to.LastCommitID(), "the extension comes after the stores")
}

// TestPrunesAfterRestore checks that a restored multi-store prunes once it has taken a snapshot.
func TestPrunesAfterRestore(t *testing.T) {
	const interval, joined, last = 3, 6, 12
	from, to := newManaged(t, "note"), newManaged(t, "note")
	for range joined {
		from.commit("value")
	}
	_, err := from.manager.Create(joined)
	require.NoError(t, err)
	chunk, err := from.manager.LoadChunk(joined, snapshottypes.CurrentFormat, 0)
	require.NoError(t, err)
	require.NoError(t, to.restore(joined, chunk))
	for h := joined + 1; h <= last; h++ {
		to.commit("later")
		if h%interval == 0 {
			_, err := to.manager.Create(uint64(h))
			require.NoError(t, err)
		}
	}
	_, err = to.CacheMultiStoreWithVersion(joined + 1)
	require.Error(t, err, "pruned")
}
