package serve_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	dbm "github.com/cosmos/cosmos-db"
	"github.com/cosmos/cosmos-sdk/baseapp"
	"github.com/cosmos/cosmos-sdk/client"
	"github.com/cosmos/cosmos-sdk/server/api"
	"github.com/cosmos/cosmos-sdk/server/config"
	servertypes "github.com/cosmos/cosmos-sdk/server/types"
	sdk "github.com/cosmos/cosmos-sdk/types"
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

const (
	chainID  = "demo-1"
	interval = 5
)

// application is a chain whose blocks write data derived from their height.
type application struct{ *baseapp.BaseApp }

func (application) RegisterAPIRoutes(*api.Server, config.APIConfig)   {}
func (application) RegisterTxService(client.Context)                  {}
func (application) RegisterTendermintService(client.Context)          {}
func (application) RegisterNodeService(client.Context, config.Config) {}

func newApp(logger generation.Logger, db dbm.DB, _ servertypes.AppOptions) servertypes.Application {
	return loaded(newBase(logger, db))
}

// newBase returns the application before it is loaded. The stores in more get a leaf at height 1.
// The inter-block cache is enabled, as by default in app.toml.
func newBase(logger generation.Logger, db dbm.DB, more ...string) *baseapp.BaseApp {
	app := baseapp.NewBaseApp("demo", logger, db, nil, baseapp.SetChainID(chainID), baseapp.SetInterBlockCache(generation.NewCommitKVStoreCacheManager()))
	keys := map[string]*generation.KVStoreKey{}
	for _, name := range append([]string{"bank", "gov", "still"}, more...) {
		keys[name] = generation.NewKVStoreKey(name)
		app.MountStore(keys[name], generation.StoreTypeIAVL)
	}
	app.SetInitChainer(func(sdk.Context, *abci.RequestInitChain) (*abci.ResponseInitChain, error) {
		return &abci.ResponseInitChain{}, nil
	})
	app.SetBeginBlocker(func(ctx sdk.Context) (sdk.BeginBlock, error) {
		h := uint64(ctx.BlockHeight())
		rnd := rand.New(rand.NewPCG(h, 1))
		bank, gov := ctx.KVStore(keys["bank"]), ctx.KVStore(keys["gov"])
		for range 400 {
			key := binary.BigEndian.AppendUint64(nil, rnd.Uint64N(4000))
			if rnd.IntN(5) == 0 {
				bank.Delete(key)
			} else {
				bank.Set(key, fmt.Appendf(nil, "%d/%d", h, rnd.Uint64()))
			}
		}
		if h%3 == 0 {
			gov.Set([]byte{byte(h)}, []byte("proposal"))
		}
		if h == 1 {
			for _, name := range append(more, "still") {
				ctx.KVStore(keys[name]).Set([]byte("k"), []byte("v"))
			}
		}
		return sdk.BeginBlock{}, nil
	})
	return app
}

func loaded(app *baseapp.BaseApp) servertypes.Application {
	if err := app.LoadLatestVersion(); err != nil {
		panic(err)
	}
	return application{app}
}

// wrapped creates an application with f and wraps it.
func wrapped(f generation.NewApp, logger generation.Logger, db dbm.DB, o servertypes.AppOptions) servertypes.Application {
	return generation.Create(serve.Creator(generation.Creator(f)), logger, db, o)
}

type options map[string]any

func (o options) Get(name string) any { return o[name] }

func serving() options {
	return options{"state-sync.snapshot-interval": interval, "starling.laddr": "127.0.0.1:0", "chain-id": chainID}
}

func open(t *testing.T, engine dbm.BackendType, dir string) dbm.DB {
	t.Helper()
	db, err := dbm.NewDB("application", engine, dir)
	require.NoError(t, err)
	return db
}

func begin(t *testing.T, app servertypes.Application) {
	t.Helper()
	_, err := app.InitChain(&abci.RequestInitChain{ChainId: chainID, InitialHeight: 1, Time: time.Unix(1, 0)})
	require.NoError(t, err)
}

// block executes a block on all applications, and returns the app hash on which they agree.
func block(t *testing.T, height int64, apps ...servertypes.Application) (hash []byte) {
	t.Helper()
	for i, app := range apps {
		r, err := app.FinalizeBlock(&abci.RequestFinalizeBlock{Height: height, Time: time.Unix(height, 0)})
		require.NoError(t, err)
		_, err = app.Commit()
		require.NoError(t, err)
		if i > 0 {
			require.Equal(t, hash, r.AppHash, "application %d at height %d", i, height)
		}
		hash = r.AppHash
	}
	return hash
}

type headers map[int64][]byte

func (h headers) AppHash(_ context.Context, height int64) ([]byte, error) {
	if h[height] == nil {
		return nil, fmt.Errorf("no header of height %d", height)
	}
	return h[height], nil
}

func forEngines(t *testing.T, test func(t *testing.T, engine dbm.BackendType)) {
	for _, engine := range []dbm.BackendType{dbm.GoLevelDBBackend, dbm.PebbleDBBackend} {
		t.Run(string(engine), func(t *testing.T) { test(t, engine) })
	}
}

// TestServe checks that a running application serves its states of snapshot heights while it
// executes and prunes later blocks, and that its app hashes equal those of an application that
// serves nothing. Applications that joined over the transport or in-band execute the same blocks
// with the same app hashes.
func TestServe(t *testing.T) {
	forEngines(t, func(t *testing.T, engine dbm.BackendType) {
		app := wrapped(newApp, generation.NewNopLogger(), open(t, engine, t.TempDir()), serving())
		plain := newApp(generation.NewNopLogger(), open(t, engine, t.TempDir()), nil)
		begin(t, app)
		begin(t, plain)
		hashes := headers{}
		height := int64(0)
		next := func(apps ...servertypes.Application) {
			height++
			hashes[height] = block(t, height, append(apps, plain, app)...)
			if height%interval == 0 { // a state that is not listed before the next one is given up
				require.Eventually(t, func() bool {
					l := list(t, app)
					return len(l) > 0 && l[len(l)-1].Height == uint64(height)
				}, 2*time.Minute, time.Millisecond)
			}
		}
		for range 14 {
			next()
		}
		address := app.(*serve.App).Address
		require.Eventually(t, func() bool { return address() != "" && len(list(t, app)) == 2 }, 5*time.Minute, 10*time.Millisecond)

		// Join over the transport, from the running application.
		home := t.TempDir()
		r, err := join.Join(context.Background(), join.Options{
			Target: join.InFolder(filepath.Join(home, "chunks"), 0, func() (nodedb.Tables, error) {
				if engine == dbm.PebbleDBBackend {
					return tables.NewPebble(filepath.Join(home, "application.db"))
				}
				return tables.NewGoLevelDB(filepath.Join(home, "application.db"))
			}, nil),
			Headers: hashes, Addresses: []transport.Address{{HostPort: address()}},
			Dialer: tcp.NewDialer(tcp.Options{Key: transporttest.Key(1), ChainID: chainID}),
		})
		require.NoError(t, err)
		require.EqualValues(t, 2*interval, r.Height)
		joined := newApp(generation.NewNopLogger(), open(t, engine, home), nil)
		require.Equal(t, hashes[r.Height], joined.CommitMultiStore().LastCommitID().Hash)

		// Join in-band, into a running application.
		banded := wrapped(newApp, generation.NewNopLogger(), open(t, engine, t.TempDir()), options{})
		inBand(t, app, banded, hashes)

		for h := r.Height + 1; h <= height; h++ {
			require.Equal(t, hashes[h], block(t, h, joined, banded), "height %d", h)
		}
		for range 20 {
			next(joined, banded)
		}
		require.Eventually(t, func() bool {
			l := list(t, app)
			return len(l) == 2 && l[1].Height == 30
		}, 5*time.Minute, 10*time.Millisecond, "older states are no longer served")
		for _, a := range []servertypes.Application{app, plain, joined, banded} {
			require.NoError(t, a.Close())
		}
	})
}

// hooked calls call before FinalizeBlock and Commit.
type hooked struct {
	servertypes.Application
	call func()
}

func (w hooked) FinalizeBlock(r *abci.RequestFinalizeBlock) (*abci.ResponseFinalizeBlock, error) {
	w.call()
	return w.Application.FinalizeBlock(r)
}

func (w hooked) Commit() (*abci.ResponseCommit, error) {
	w.call()
	return w.Application.Commit()
}

// TestBlocksComeFirst checks that reads of served states yield during FinalizeBlock and Commit
// only.
func TestBlocksComeFirst(t *testing.T) {
	var app *serve.App
	var making []bool
	create := func(logger generation.Logger, db dbm.DB, o servertypes.AppOptions) servertypes.Application {
		return hooked{newApp(logger, db, o), func() { making = append(making, serve.Making(app)) }}
	}
	app = wrapped(create, generation.NewNopLogger(), dbm.NewMemDB(), options{}).(*serve.App)
	begin(t, app)
	require.False(t, serve.Making(app))
	block(t, 1, app)
	require.Equal(t, []bool{true, true}, making)
	require.False(t, serve.Making(app))
	require.NoError(t, app.Close())
}

// list returns the snapshots that an application offers, all of which must be ours.
func list(t *testing.T, app servertypes.Application) []*abci.Snapshot {
	t.Helper()
	r, err := app.ListSnapshots(&abci.RequestListSnapshots{})
	require.NoError(t, err)
	for _, s := range r.Snapshots {
		require.Equal(t, uint32(iavlsync.Format8192), s.Format)
	}
	return r.Snapshots
}

// inBand joins over ABCI in all formats, with invalid offers and chunks in between.
func inBand(t *testing.T, from, to servertypes.Application, hashes headers) {
	t.Helper()
	s := list(t, from)[1]
	offer := func(change func(s *abci.Snapshot)) abci.ResponseOfferSnapshot_Result {
		changed := *s
		change(&changed)
		r, err := to.OfferSnapshot(&abci.RequestOfferSnapshot{Snapshot: &changed, AppHash: hashes[int64(s.Height)]})
		require.NoError(t, err)
		return r.Result
	}
	require.Equal(t, abci.ResponseOfferSnapshot_REJECT_SENDER, offer(func(s *abci.Snapshot) { s.Metadata = append(bytes.Clone(s.Metadata), 0) }))
	require.Equal(t, abci.ResponseOfferSnapshot_REJECT_SENDER, offer(func(s *abci.Snapshot) { s.Height++ }))
	require.Equal(t, abci.ResponseOfferSnapshot_REJECT, offer(func(s *abci.Snapshot) { s.Chunks++ }))
	require.Equal(t, abci.ResponseOfferSnapshot_ACCEPT, offer(func(s *abci.Snapshot) {
		s.Metadata = append(bytes.Clone(s.Hash[31:]), s.Metadata...)
		s.Hash = s.Hash[:31]
	}))
	load := func(format iavlsync.Format, k uint32) []byte {
		r, err := from.LoadSnapshotChunk(&abci.RequestLoadSnapshotChunk{Height: s.Height, Format: uint32(format), Chunk: k})
		require.NoError(t, err)
		return r.Chunk
	}
	require.Eventually(t, func() bool { return len(load(iavlsync.Format32, 0)) > 0 }, 5*time.Minute, 10*time.Millisecond,
		"formats that are not offered are served too")
	require.Empty(t, load(iavlsync.Format8192, s.Chunks))
	order := slices.Collect(func(yield func(uint32) bool) {
		for k := range s.Chunks {
			if !yield(s.Chunks - 1 - k) {
				return
			}
		}
	})
	for _, k := range order {
		chunk := load(iavlsync.Format8192, k)
		bad := bytes.Clone(chunk)
		bad[len(bad)/2] ^= 1
		for _, lie := range [][]byte{bad, nil, chunk[1:]} {
			r, err := to.ApplySnapshotChunk(&abci.RequestApplySnapshotChunk{Index: k, Chunk: lie, Sender: "liar"})
			require.NoError(t, err)
			require.Equal(t, abci.ResponseApplySnapshotChunk_RETRY, r.Result)
			require.Equal(t, []uint32{k}, r.RefetchChunks)
			require.Equal(t, []string{"liar"}, r.RejectSenders)
		}
		r, err := to.ApplySnapshotChunk(&abci.RequestApplySnapshotChunk{Index: k, Chunk: chunk, Sender: "honest"})
		require.NoError(t, err)
		require.Equal(t, abci.ResponseApplySnapshotChunk_ACCEPT, r.Result)
	}
	info, err := to.Info(&abci.RequestInfo{})
	require.NoError(t, err)
	require.EqualValues(t, s.Height, info.LastBlockHeight)
	require.Equal(t, hashes[int64(s.Height)], info.LastBlockAppHash)
}

// TestOtherFormat checks that the SDK's restore does not start while a join in verified chunks is
// unfinished, since both write the same nodes.
func TestOtherFormat(t *testing.T) {
	app := wrapped(newApp, generation.NewNopLogger(), dbm.NewMemDB(), options{})
	_, err := app.OfferSnapshot(&abci.RequestOfferSnapshot{})
	require.NoError(t, err, "without a join, the SDK answers")
	require.NoError(t, app.Close())

	from := wrapped(newApp, generation.NewNopLogger(), open(t, dbm.GoLevelDBBackend, t.TempDir()), serving())
	begin(t, from)
	hashes := headers{}
	for h := int64(1); h <= interval; h++ {
		hashes[h] = block(t, h, from)
	}
	require.Eventually(t, func() bool { return len(list(t, from)) == 1 }, 5*time.Minute, 10*time.Millisecond)
	s := list(t, from)[0]
	db := open(t, dbm.GoLevelDBBackend, t.TempDir())
	to := wrapped(newApp, generation.NewNopLogger(), db, options{})
	offer := func(to servertypes.Application, s *abci.Snapshot) abci.ResponseOfferSnapshot_Result {
		r, err := to.OfferSnapshot(&abci.RequestOfferSnapshot{Snapshot: s, AppHash: hashes[interval]})
		require.NoError(t, err)
		return r.Result
	}
	require.Equal(t, abci.ResponseOfferSnapshot_ACCEPT, offer(to, s))
	theirs := &abci.Snapshot{Height: s.Height, Format: 3, Chunks: 1, Hash: s.Hash}
	require.Equal(t, abci.ResponseOfferSnapshot_REJECT_FORMAT, offer(to, theirs))
	chunk, err := from.LoadSnapshotChunk(&abci.RequestLoadSnapshotChunk{Height: s.Height, Format: s.Format})
	require.NoError(t, err)
	r, err := to.ApplySnapshotChunk(&abci.RequestApplySnapshotChunk{Chunk: chunk.Chunk})
	require.NoError(t, err)
	require.Equal(t, abci.ResponseApplySnapshotChunk_ACCEPT, r.Result)
	require.Equal(t, abci.ResponseOfferSnapshot_REJECT_FORMAT, offer(to, theirs))
	// The same after a restart: only the installed nodes are left.
	again := wrapped(newApp, generation.NewNopLogger(), db, options{})
	require.Equal(t, abci.ResponseOfferSnapshot_REJECT_FORMAT, offer(again, theirs))
	require.Equal(t, abci.ResponseOfferSnapshot_ACCEPT, offer(again, s))
	require.NoError(t, again.Close())
	require.NoError(t, from.Close())
}
