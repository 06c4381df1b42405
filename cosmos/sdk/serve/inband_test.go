package serve_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	abci "github.com/cometbft/cometbft/abci/types"
	dbm "github.com/cosmos/cosmos-db"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/cosmos/sdk/internal/generation"
	"github.com/starling-kv/starling/cosmos/sdk/serve"
)

// watched is a database that counts iterations over all records of its store, and calls scan before
// each scan of the fast index.
type watched struct {
	nodedb.DB
	passes int
	scan   func()
}

func (w *watched) Iterator(start, end []byte) (nodedb.Iterator, error) {
	switch {
	case string(start) == "s/k:bank/s": // a full iteration looks for the oldest version here
		w.passes++
	case strings.HasPrefix(string(start), "s/k:bank/f") && w.scan != nil:
		w.scan()
	}
	return w.DB.Iterator(start, end)
}

// bank returns a database of one store with the given number of leaves, at height 1.
func bank(t *testing.T, leaves, valueBytes int) *watched {
	t.Helper()
	db := dbm.NewMemDB()
	state := generation.NewMultiStore(db)
	key := generation.NewKVStoreKey("bank")
	state.MountStoreWithDB(key, generation.StoreTypeIAVL, nil)
	require.NoError(t, state.LoadLatestVersion())
	for k := range leaves {
		state.GetKVStore(key).Set(fmt.Appendf(nil, "%08d", k), bytes.Repeat([]byte{byte(k)}, valueBytes))
	}
	require.EqualValues(t, 1, state.Commit().Version)
	return &watched{DB: nodedb.Of(db)}
}

func emptyApp() *serve.App {
	db := dbm.NewMemDB()
	return serve.New(newApp(generation.NewNopLogger(), db, nil), generation.NewNopLogger(), db, options{})
}

// loadAll loads all chunks of a manifest at height 1, verifies them, and returns their lengths. The
// length of a chunk that is not served is 0.
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

// TestChainWaitsForNoPass checks that CometBFT's request for a chunk, which delays blocks, reads
// only that chunk. A response to a joiner over the transport may read all records first.
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
	require.Zero(t, db.passes, "the shape of the tree is cached")

	db = bank(t, 6000, 10)
	s, err = app.ServeUnread(db, 1)
	require.NoError(t, err)
	_, err = s.Answer(&iavlsync.Request{Height: 1, Store: "bank", Leaves: 6000})
	require.NoError(t, err)
	require.Equal(t, 1, db.passes)
	require.NoError(t, app.Close())
}

// TestOrderOfCuts checks that the coarsest format whose chunks all fit is offered, after all its
// chunks were read. Finer formats are served too, and so are the chunks of coarser formats that
// fit.
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
	require.Greater(t, scans, 1, "one scan for the chunk that is too long, and those of the next format")
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
