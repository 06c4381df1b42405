package serve_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"cosmossdk.io/log"
	"cosmossdk.io/store/metrics"
	"cosmossdk.io/store/rootmulti"
	storetypes "cosmossdk.io/store/types"
	abci "github.com/cometbft/cometbft/abci/types"
	dbm "github.com/cosmos/cosmos-db"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/cosmos/sdk/serve"
)

// watched is a database that counts passes over all records of its store, and calls scan ahead of
// each scan of the fast index.
type watched struct {
	nodedb.DB
	passes int
	scan   func()
}

func (w *watched) Iterator(start, end []byte) (nodedb.Iterator, error) {
	switch {
	case string(start) == "s/k:bank/s": // where a pass looks for the oldest version
		w.passes++
	case strings.HasPrefix(string(start), "s/k:bank/f") && w.scan != nil:
		w.scan()
	}
	return w.DB.Iterator(start, end)
}

// bank returns a database of one store with some leaves, at height 1.
func bank(t *testing.T, leaves, valueBytes int) *watched {
	t.Helper()
	db := dbm.NewMemDB()
	state := rootmulti.NewStore(db, log.NewNopLogger(), metrics.NewNoOpMetrics())
	key := storetypes.NewKVStoreKey("bank")
	state.MountStoreWithDB(key, storetypes.StoreTypeIAVL, nil)
	require.NoError(t, state.LoadLatestVersion())
	for k := range leaves {
		state.GetCommitKVStore(key).Set(fmt.Appendf(nil, "%08d", k), bytes.Repeat([]byte{byte(k)}, valueBytes))
	}
	require.EqualValues(t, 1, state.Commit().Version)
	return &watched{DB: nodedb.Of(db)}
}

func emptyApp() *serve.App {
	db := dbm.NewMemDB()
	return serve.New(newApp(log.NewNopLogger(), db, nil, nil), log.NewNopLogger(), db, options{})
}

// loadAll returns the lengths of the chunks of a format at height 1, each proved; 0: it is not
// answered.
func loadAll(t *testing.T, app *serve.App, m *iavlsync.Manifest) (lengths []int) {
	t.Helper()
	for k := range m.Chunks() {
		r, err := app.LoadSnapshotChunk(&abci.RequestLoadSnapshotChunk{Height: 1, Format: uint32(m.Format), Chunk: uint32(k)})
		require.NoError(t, err)
		if lengths = append(lengths, len(r.Chunk)); len(r.Chunk) > 0 {
			i, e := m.At(k)
			_, err := iavlsync.VerifyChunk(&m.Stores[i].Entries[e].Root, r.Chunk)
			require.NoError(t, err)
		}
	}
	return lengths
}

// TestChainWaitsForNoPass: CometBFT's call for a chunk, which blocks wait for, reads that chunk
// only, where an answer to a joiner of the fast path would read all records first.
func TestChainWaitsForNoPass(t *testing.T) {
	db := bank(t, 6000, 10)
	app := emptyApp()
	s, err := app.ServeUnread(db, 1)
	require.NoError(t, err)
	m, err := s.Manifest(iavlsync.Format8192)
	require.NoError(t, err)
	require.NotContains(t, loadAll(t, app, m), 0)
	require.Zero(t, db.passes)
	_, err = s.Answer(&iavlsync.Request{Height: 1, Store: "bank", Leaves: 6000})
	require.NoError(t, err)
	require.Zero(t, db.passes, "its shape was kept")

	db = bank(t, 6000, 10)
	s, err = app.ServeUnread(db, 1)
	require.NoError(t, err)
	_, err = s.Answer(&iavlsync.Request{Height: 1, Store: "bank", Leaves: 6000})
	require.NoError(t, err)
	require.Equal(t, 1, db.passes)
	require.NoError(t, app.Close())
}

// TestOrderOfCuts: the coarsest format whose chunks are all short enough is offered, and not before
// all of them were read; the finer ones are answered too, and so is what is short enough of the
// coarser ones.
func TestOrderOfCuts(t *testing.T) {
	const leaves, valueBytes = 3000, 4000 // 12 MB in one chunk of 8,192 leaves
	db := bank(t, leaves, valueBytes)
	app := emptyApp()
	scans := 0
	offers := func() []*abci.Snapshot { return listOurs(t, app) }
	db.scan = func() {
		scans++
		require.Empty(t, offers(), "scan %d", scans)
	}
	require.NoError(t, app.Serve(db, 1))
	db.scan = nil
	require.Greater(t, scans, 1, "one of the chunk that is too long, and those of the next format")
	require.Len(t, offers(), 1)
	require.EqualValues(t, iavlsync.Format512, offers()[0].Format)

	state, err := nodedb.Open(db, 1)
	require.NoError(t, err)
	for _, f := range []iavlsync.Format{iavlsync.Format8192, iavlsync.Format512, iavlsync.Format32} {
		m, err := state.Manifest(f)
		require.NoError(t, err)
		lengths := loadAll(t, app, m)
		if f == iavlsync.Format8192 {
			require.Equal(t, []int{0}, lengths)
			continue
		}
		require.NotContains(t, lengths, 0)
		if f == iavlsync.Format512 {
			require.EqualValues(t, len(lengths), offers()[0].Chunks)
		}
	}
	require.NoError(t, app.Close())
}
