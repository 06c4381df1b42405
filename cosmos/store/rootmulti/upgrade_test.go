package rootmulti

import (
	"fmt"
	"io"
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

// home is the home of a node on which different binaries run one after another.
type home struct {
	t    *testing.T
	db   *dbm.MemDB
	fs   *vfs.MemFS
	ms   *Store
	keys map[string]types.StoreKey
}

func newHome(t *testing.T) *home {
	t.Helper()
	return &home{t: t, db: dbm.NewMemDB(), fs: vfs.NewMem()}
}

// start runs a binary that mounts an IAVL store "iavl" and these Starling stores.
func (h *home) start(upgrades *types.StoreUpgrades, names ...string) error {
	h.t.Helper()
	h.stop()
	h.ms = NewStore(h.db, log.NewNopLogger(), Options{Dir: "starling", FS: h.fs, PinEvery: 7, flushBlocks: 3})
	h.ms.SetPruning(pruningtypes.NewPruningOptions(pruningtypes.PruningNothing))
	h.keys = map[string]types.StoreKey{"iavl": types.NewKVStoreKey("iavl")}
	h.ms.MountStoreWithDB(h.keys["iavl"], types.StoreTypeIAVL, nil)
	for _, name := range names {
		h.keys[name] = types.NewKVStoreKey(name)
		h.ms.MountStoreWithDB(h.keys[name], store.Type, nil)
	}
	return h.ms.LoadLatestVersionAndUpgrade(upgrades)
}

func (h *home) stop() {
	h.t.Helper()
	if h.ms != nil {
		require.NoError(h.t, h.ms.Close())
		h.ms = nil
	}
}

// blocks commits n blocks, each of which changes all stores.
func (h *home) blocks(n int, mark string) {
	for range n {
		for _, key := range h.keys {
			for i := range 9 {
				h.ms.GetKVStore(key).Set(fmt.Appendf(nil, "%s%d", mark, (i*i+int(h.ms.LatestVersion()))%14), fmt.Append(nil, h.ms.LatestVersion()))
			}
			h.ms.GetKVStore(key).Set([]byte("same"), []byte(mark))
		}
		h.ms.Commit()
	}
}

// prune prunes and commits a block, so that two pins remain and no records lead to the first pin.
func (h *home) prune(names ...string) {
	h.t.Helper()
	require.NoError(h.t, h.start(nil, names...)) // the restart creates the pins
	require.NoError(h.t, h.ms.PruneStores(h.ms.LatestVersion()-2))
	h.blocks(1, "p")
}

func (h *home) contents(name string) map[string]string {
	all := map[string]string{}
	it := h.ms.GetKVStore(h.keys[name]).Iterator(nil, nil)
	for ; it.Valid(); it.Next() {
		all[string(it.Key())] = string(it.Value())
	}
	require.NoError(h.t, it.Close())
	return all
}

// TestComeBack checks that a store that was removed and later added again starts empty, and that
// this also holds after restarts.
func TestComeBack(t *testing.T) {
	for _, others := range [][]string{nil, {"other"}} {
		for _, between := range []int{0, 1, 5} {
			for _, after := range []int{1, 2, 9} {
				t.Run(fmt.Sprintf("%d others, %d and %d blocks", len(others), between, after), func(t *testing.T) {
					h := newHome(t)
					both := append([]string{"comes"}, others...)
					require.NoError(t, h.start(nil, both...))
					h.blocks(5, "a")
					old, was := h.ms.LastCommitID(), h.contents("comes")
					require.NoError(t, h.start(nil, others...))
					h.blocks(1+between, "b")
					require.NoError(t, h.start(&types.StoreUpgrades{Added: []string{"comes"}}, both...))
					require.Empty(t, h.contents("comes"))
					h.blocks(after, "c")
					want, id := h.contents("comes"), h.ms.LastCommitID()
					require.Equal(t, "c", want["same"])
					require.NotContains(t, want, "a0")
					for range 2 {
						require.NoError(t, h.start(nil, both...))
						require.Equal(t, id, h.ms.LastCommitID())
						require.Equal(t, want, h.contents("comes"))
						for v := range id.Version - int64(after) { // from before the removal
							require.False(t, h.ms.GetKVStore(h.keys["comes"]).(*store.Store).VersionExists(v+1))
						}
					}
					h.blocks(9, "d")
					require.NoError(t, h.ms.RollbackToVersion(id.Version))
					require.Equal(t, want, h.contents("comes"))
					h.blocks(2, "e")
					require.NoError(t, h.start(nil, both...))

					// Roll back to a version before the removal, with the first binary.
					require.Error(t, h.ms.RollbackToVersion(id.Version-int64(after)))
					require.NoError(t, h.start(&types.StoreUpgrades{Added: []string{"comes"}}, both...))
					h.blocks(1, "f")
					id = h.ms.LastCommitID()
					require.NoError(t, h.start(nil, both...))
					require.Equal(t, id, h.ms.LastCommitID())
					require.NoError(t, h.ms.RollbackToVersion(old.Version))
					require.Equal(t, old, h.ms.LastCommitID())
					require.Equal(t, was, h.contents("comes"))
					h.stop()
				})
			}
		}
	}
}

// TestComeBackAfterLoss is TestComeBack without the records and pins that lead to the content of
// the removed store.
func TestComeBackAfterLoss(t *testing.T) {
	h := newHome(t)
	require.NoError(t, h.start(nil, "comes"))
	h.blocks(16, "a")
	h.prune("comes")
	require.NoError(t, h.start(nil))
	h.blocks(4, "b")
	added := &types.StoreUpgrades{Added: []string{"comes"}}
	require.NoError(t, h.start(added, "comes"))
	h.blocks(1, "c")
	require.Error(t, h.ms.RollbackToVersion(21), "version 21 cannot be loaded any more")
	require.NoError(t, h.start(added, "comes"))
	h.blocks(2, "d")
	id, want := h.ms.LastCommitID(), h.contents("comes")
	h.blocks(4, "e")
	require.NoError(t, h.ms.RollbackToVersion(id.Version))
	require.Equal(t, id, h.ms.LastCommitID())
	require.Equal(t, want, h.contents("comes"))
	require.NoError(t, h.start(nil, "comes"))
	h.stop()
}

// TestRollBackOverRename checks that a binary with a store's new name rolls back to a version with
// the old name, and that the older binary continues from there.
func TestRollBackOverRename(t *testing.T) {
	h := newHome(t)
	require.NoError(t, h.start(nil, "old"))
	h.blocks(16, "a")
	h.prune("old")
	want, id := h.contents("old"), h.ms.LastCommitID()
	require.NoError(t, h.start(&types.StoreUpgrades{Renamed: []types.StoreRename{{OldKey: "old", NewKey: "new"}}}, "new"))
	h.keys = map[string]types.StoreKey{"new": h.keys["new"]}
	h.blocks(9, "b")
	require.Error(t, h.ms.RollbackToVersion(id.Version), "the new name is not in that version")
	require.NoError(t, h.start(nil, "old"))
	require.Equal(t, id, h.ms.LastCommitID())
	require.Equal(t, want, h.contents("old"))
	h.stop()
}

// TestCommitAgain checks that after LoadVersion, the versions up to the last one can only be
// committed with the same content.
func TestCommitAgain(t *testing.T) {
	h := newHome(t)
	require.NoError(t, h.start(nil, "s"))
	commit := func(value string) {
		h.ms.GetKVStore(h.keys["s"]).Set([]byte("k"), []byte(value))
		h.ms.Commit()
	}
	for v := range 5 {
		commit(fmt.Sprint(v))
	}
	require.NoError(t, h.ms.LoadVersion(1))
	commit("1")
	require.Panics(t, func() { commit("another") })
	require.NoError(t, h.ms.LoadVersion(1))
	for v := range 6 {
		if v > 0 {
			commit(fmt.Sprint(v))
		}
	}
	require.EqualValues(t, 6, h.ms.LatestVersion())
	h.stop()
}

// TestRollBackAfterRestore checks that a restored node can roll back to the restored version.
func TestRollBackAfterRestore(t *testing.T) {
	from, to := newHome(t), newHome(t)
	require.NoError(t, from.start(nil, "s"))
	from.blocks(4, "a")
	require.NoError(t, to.start(nil, "s"))
	chunks := make(chan io.ReadCloser, 100)
	failed := make(chan error, 1)
	go func() {
		w := snapshots.NewStreamWriter(chunks)
		err := from.ms.Snapshot(4, w)
		w.Close()
		failed <- err
	}()
	r, err := snapshots.NewStreamReader(chunks)
	require.NoError(t, err)
	_, err = to.ms.Restore(4, snapshottypes.CurrentFormat, r)
	require.NoError(t, <-failed)
	require.NoError(t, err)
	to.blocks(1, "b")
	id, want := to.ms.LastCommitID(), to.contents("s")
	to.blocks(20, "c")
	for range 2 {
		require.NoError(t, to.ms.RollbackToVersion(5))
		require.Equal(t, id, to.ms.LastCommitID())
		require.Equal(t, want, to.contents("s"))
		require.NoError(t, to.start(nil, "s"))
	}
	from.stop()
	to.stop()
}
