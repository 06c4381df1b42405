package serve_test

import (
	"context"
	"encoding/binary"
	"path/filepath"
	"testing"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	dbm "github.com/cosmos/cosmos-db"
	"github.com/cosmos/cosmos-sdk/baseapp"
	servertypes "github.com/cosmos/cosmos-sdk/server/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/join"
	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/cosmos/sdk/internal/generation"
	"github.com/starling-kv/starling/cosmos/sdk/serve"
	"github.com/starling-kv/starling/cosmos/tables"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
	"github.com/starling-kv/starling/transport/transporttest"
)

const pruneEvery = 10 // the SDK's minimum

// snapshotting returns a creator of applications that take snapshots, and prune.
func snapshotting(t *testing.T, every uint64) generation.NewApp {
	return func(logger generation.Logger, db dbm.DB, _ servertypes.AppOptions) servertypes.Application {
		app := newBase(logger, db)
		baseapp.SetPruning(generation.NewPruningOptions(2, pruneEvery))(app)
		baseapp.SetIAVLSyncPruning(true)(app)
		kept, err := generation.NewSnapshotStore(dbm.NewMemDB(), t.TempDir())
		require.NoError(t, err)
		app.SetSnapshot(kept, generation.NewSnapshotOptions(every, 2))
		return loaded(app)
	}
}

// snapshotted waits until the SDK has recorded the snapshot of a height.
func snapshotted(t *testing.T, height int64, dbs ...dbm.DB) {
	t.Helper()
	for i, db := range dbs {
		require.Eventually(t, func() bool {
			b, err := db.Get([]byte("s/prunesnapshotheights"))
			return err == nil && len(b) >= 8 && int64(binary.BigEndian.Uint64(b[len(b)-8:])) == height
		}, 2*time.Minute, time.Millisecond, "application %d, height %d", i, height)
	}
}

// restore restores a snapshot of a height and format over ABCI.
func restore(t *testing.T, from, to servertypes.Application, format uint32, height int64, appHash []byte) {
	t.Helper()
	var s *abci.Snapshot
	require.Eventually(t, func() bool {
		r, err := from.ListSnapshots(&abci.RequestListSnapshots{})
		if err != nil {
			return false
		}
		for _, has := range r.Snapshots {
			if has.Format == format && has.Height == uint64(height) {
				s = has
			}
		}
		return s != nil
	}, 2*time.Minute, time.Millisecond)
	offered, err := to.OfferSnapshot(&abci.RequestOfferSnapshot{Snapshot: s, AppHash: appHash})
	require.NoError(t, err)
	require.Equal(t, abci.ResponseOfferSnapshot_ACCEPT, offered.Result)
	for k := range s.Chunks {
		chunk, err := from.LoadSnapshotChunk(&abci.RequestLoadSnapshotChunk{Height: s.Height, Format: s.Format, Chunk: k})
		require.NoError(t, err)
		applied, err := to.ApplySnapshotChunk(&abci.RequestApplySnapshotChunk{Index: k, Chunk: chunk.Chunk})
		require.NoError(t, err)
		require.Equal(t, abci.ResponseApplySnapshotChunk_ACCEPT, applied.Result)
	}
	require.Equal(t, appHash, to.CommitMultiStore().LastCommitID().Hash)
}

// TestPrunesAfterJoin checks that nodes that take snapshots prune after all joins of ours, before
// and after a restart, and after the SDK's restore in an application that is wrapped. A stock
// application has the fault that docs/reference/cosmos-pruning.md describes: when the SDK has fixed
// it, the first joiner of this test prunes, and our records can be removed.
func TestPrunesAfterJoin(t *testing.T) {
	const (
		joined = 2 * interval
		every  = 4 // the joiners' interval: height 8, its last multiple, was before the join
	)
	fromDB := open(t, dbm.GoLevelDBBackend, t.TempDir())
	from := wrapped(snapshotting(t, interval), generation.NewNopLogger(), fromDB, serving())
	begin(t, from)
	hashes := headers{}
	for h := int64(1); h <= joined; h++ {
		hashes[h] = block(t, h, from)
		if h%interval == 0 {
			snapshotted(t, h, fromDB)
		}
	}

	const stock, theirs, ours, home = 0, 1, 2, 3
	names := []string{"the SDK's restore", "the SDK's restore, wrapped", "in-band", "home"}
	var dirs []string
	for range names {
		dirs = append(dirs, t.TempDir())
	}
	address := from.(*serve.App).Address
	require.Eventually(t, func() bool { return address() != "" }, 2*time.Minute, time.Millisecond)
	_, err := join.Join(context.Background(), join.Options{
		Target: join.InFolder(filepath.Join(t.TempDir(), "chunks"), every, func() (nodedb.Tables, error) {
			return tables.NewGoLevelDB(filepath.Join(dirs[home], "application.db"))
		}, nil),
		Headers: hashes, Addresses: []transport.Address{{HostPort: address()}}, Height: joined,
		Dialer: tcp.NewDialer(tcp.Options{Key: transporttest.Key(1), ChainID: chainID}),
	})
	require.NoError(t, err)

	var dbs []dbm.DB
	var apps []servertypes.Application
	start := func() {
		dbs, apps = nil, nil
		create := snapshotting(t, every)
		for i, dir := range dirs {
			db := open(t, dbm.GoLevelDBBackend, dir)
			app := create(generation.NewNopLogger(), db, nil)
			if i == theirs || i == ours {
				app = serve.New(app, generation.NewNopLogger(), db, options{"state-sync.snapshot-interval": every})
			}
			dbs, apps = append(dbs, db), append(apps, app)
		}
	}
	start()
	for i, format := range map[int]uint32{stock: generation.CurrentFormat, theirs: generation.CurrentFormat, ours: uint32(iavlsync.Format8192)} {
		restore(t, from, apps[i], format, joined, hashes[joined])
	}
	height := int64(joined)
	// prune executes blocks until each height before them may be pruned, and checks who has pruned.
	prune := func(stockToo bool) {
		t.Helper()
		old := height + 1
		for height < old-1+2*pruneEvery {
			height++
			block(t, height, apps...)
			if height%every == 0 {
				snapshotted(t, height, dbs...)
			}
		}
		for i, app := range apps {
			_, err := app.CommitMultiStore().CacheMultiStoreWithVersion(old)
			require.Equal(t, i != stock || stockToo, err != nil, "%s: height %d at %d: %v", names[i], old, height, err)
		}
	}
	prune(false)
	for _, app := range apps {
		require.NoError(t, app.Close())
	}
	start()
	prune(len(generation.BuildFlags) == 0) // v0.55
	for _, app := range append(apps, from) {
		require.NoError(t, app.Close())
	}
}
