package node

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/cometbft/cometbft/libs/log"
	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/node/buildinfo"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/home"
	"github.com/starling-kv/starling/node/internal/nodetest"
	"github.com/starling-kv/starling/storage/sgc"
	"github.com/starling-kv/starling/tx"
)

func pagedGenesis(t *testing.T, interval int64) *cmttypes.GenesisDoc {
	t.Helper()
	home, _ := nodetest.Home(t, func(o *home.InitOptions) {
		o.App = mixedGrants()
		o.App.ChunkBytes, o.App.SnapshotInterval = 40_000, interval
	})
	genesis, err := config.LoadGenesis(filepath.Join(home, "config", "genesis.json"))
	require.NoError(t, err)
	return genesis
}

// newPaged is a replica with a state of about a megabyte and almost no cache.
func newPaged(t *testing.T, seed uint64, genesis *cmttypes.GenesisDoc) *replica {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	})
	r := &replica{
		t: t, rng: rand.New(rand.NewPCG(seed, 0)), genesis: genesis, config: config.DefaultApp(), disk: vfs.NewCrashableMem(),
		keys: 5000, longest: 300, cache: 96 << 10,
	}
	r.config.Disk.StateInMemory, r.config.Disk.CacheBytes = false, 8<<10
	r.config.State.KeepRecent = 20
	return r
}

// query reads a key at a kept height, and verifies the response.
func (r *replica) query(height int64, key string) {
	t := r.t
	res, err := r.app.Query(context.Background(), &abci.RequestQuery{Path: "/key", Data: []byte(key), Height: height, Prove: true})
	require.NoError(t, err)
	require.Zero(t, res.Code, res.Log)
	var p avlstar.Proof
	for _, op := range res.ProofOps.Ops {
		if op.Type == avlstar.OpMap {
			p.Map = op.Data
		} else {
			p.State = op.Data
		}
	}
	require.NoError(t, avlstar.VerifyProof(avlstar.Hash(r.hashes[height-1]), []byte(key), res.Value, p))
	byKey, err := r.app.Query(context.Background(), &abci.RequestQuery{Path: "/key", Data: []byte(key), Height: height})
	require.NoError(t, err)
	require.Equal(t, res.Value, byKey.Value)
	require.Equal(t, res.Log, byKey.Log)
}

// A state that does not fit into memory gives the same hashes, responses and snapshots as one in
// memory, through crashes and at old heights: for transactions of all kinds, and through upgrades.
func TestPagedIsTheSame(t *testing.T) {
	buildinfo.RehearsedAppVersion = "1000"
	t.Cleanup(func() { buildinfo.RehearsedAppVersion = "" })
	codes, done := map[tx.Code]int{}, map[string]int{}
	genesis := pagedGenesis(t, 13)
	seeds, crashes := uint64(3), 5
	if testing.Short() {
		seeds, crashes = 1, 1 // the race detector takes a minute for each
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			r := newPaged(t, seed, genesis)
			r.mixed = &mixed{rng: rand.New(rand.NewPCG(seed, 1)), codes: codes, done: done}
			r.open()
			snapshots := map[uint64][][]byte{}
			var evicted, loaded uint64
			for range crashes {
				r.config.Disk.FlushBlocks = 1 + r.rng.IntN(10)
				for range r.rng.IntN(50) {
					r.block()
					latest, oldest := r.app.Height(), r.app.Oldest()
					for range 5 {
						r.query(oldest+r.rng.Int64N(latest-oldest+1), fmt.Sprintf("key-%03d", r.rng.IntN(5200)))
					}
				}
				for height, s := range r.served() {
					if known := snapshots[height]; known != nil {
						require.Equal(t, known, s)
					}
					snapshots[height] = s
				}
				_, v := r.app.Latest()
				evicted, loaded = evicted+v.Memory().Evicted, loaded+v.Memory().Loaded
				v.Release()
				r.crash()
			}
			require.NotZero(t, evicted)
			require.NotZero(t, loaded)
			require.NoError(t, r.app.Close())

			full := &replica{
				t: t, rng: r.rng, genesis: genesis, config: config.DefaultApp(), disk: vfs.NewCrashableMem(), blocks: r.blocks, hashes: r.hashes,
				answers: r.answers,
			}
			full.open()
			for range r.blocks {
				full.block() // the same hashes
			}
			for height, s := range full.served() {
				if known := snapshots[height]; known != nil {
					require.Equal(t, known, s)
				}
			}
			require.NoError(t, full.app.Close())
		})
	}
	t.Log("codes:", codes, "done:", done)
	if testing.Short() {
		return // too few blocks for all of them
	}
	for _, code := range []tx.Code{tx.CodeOK, tx.CodeBadNonce, tx.CodeUnauthorized, tx.CodeCompareFailed, tx.CodeQuota, tx.CodeTextClosed,
		tx.CodeNotAdmin, tx.CodeInvalidChange} {
		require.NotZero(t, codes[code], "no random block met code %d", code)
	}
	require.Len(t, done, 12, "a kind of operation never succeeded")
}

// A state restored from a snapshot was never in memory as a whole, and takes further blocks, with
// calls of programs that were deployed before.
func TestPagedRestore(t *testing.T) {
	buildinfo.RehearsedAppVersion = "1000"
	t.Cleanup(func() { buildinfo.RehearsedAppVersion = "" })
	genesis := pagedGenesis(t, 10)
	r := newPaged(t, 1, genesis)
	m, blocks := &mixed{rng: rand.New(rand.NewPCG(1, 1)), codes: map[tx.Code]int{}, done: map[string]int{}}, 60
	if r.mixed = m; testing.Short() {
		r.mixed, blocks = nil, 30
	}
	r.open()
	deployed := map[int64][][]byte{} // by height
	for range blocks {
		r.block()
		deployed[r.app.Height()] = slices.Clone(m.programs)
	}
	called := len(m.called)
	list, err := r.app.ListSnapshots(context.Background(), &abci.RequestListSnapshots{})
	require.NoError(t, err)
	offered := slices.MaxFunc(list.Snapshots, func(a, b *abci.Snapshot) int { return cmp.Compare(a.Height, b.Height) })
	joined := newPaged(t, 2, genesis)
	joined.blocks, joined.hashes, joined.answers = r.blocks, r.hashes, r.answers
	joined.open()
	res, err := joined.app.OfferSnapshot(context.Background(), &abci.RequestOfferSnapshot{Snapshot: offered, AppHash: offered.Hash})
	require.NoError(t, err)
	require.Equal(t, abci.ResponseOfferSnapshot_ACCEPT, res.Result)
	for k, chunk := range r.served()[offered.Height][1:] {
		res, err := joined.app.ApplySnapshotChunk(context.Background(), &abci.RequestApplySnapshotChunk{Index: uint32(k), Chunk: chunk})
		require.NoError(t, err)
		require.Equal(t, abci.ResponseApplySnapshotChunk_ACCEPT, res.Result)
		require.Empty(t, res.RefetchChunks)
	}
	require.EqualValues(t, offered.Height, joined.app.Height())
	for range 20 {
		r.block()
		joined.blocks, joined.hashes, joined.answers = r.blocks, r.hashes, r.answers
		for joined.app.Height() < r.app.Height() {
			joined.block()
			joined.query(joined.app.Height(), fmt.Sprintf("key-%03d", r.rng.IntN(5200)))
		}
	}
	restored := func(address []byte) bool {
		return slices.ContainsFunc(deployed[int64(offered.Height)], func(a []byte) bool { return bytes.Equal(a, address) })
	}
	require.True(t, testing.Short() || slices.ContainsFunc(m.called[called:], restored), "no program of the snapshot was called")
	joined.crash()
	for joined.app.Height() < r.app.Height() {
		joined.block()
	}
	require.NoError(t, joined.app.Close())
	require.NoError(t, r.app.Close())
}

// If the disk becomes unreadable, no block and no query response is computed with unreadable data
// taken for absent, and the node is told.
func TestPagedUnreadable(t *testing.T) {
	r := newPaged(t, 3, pagedGenesis(t, 0))
	r.open()
	for range 40 {
		r.block()
	}
	require.NoError(t, r.app.Close())

	var broken errorfs.Toggle
	broken.Injector = errorfs.ErrInjected.If(errorfs.Reads)
	failed := make(chan error, 1)
	app, err := NewApplication(ApplicationOptions{
		DataDir: "data", Config: r.config, Logger: log.NewNopLogger(), Genesis: r.genesis, fs: errorfs.Wrap(r.disk, &broken),
		Failed: func(err error) {
			select {
			case failed <- err:
			default: // the first one counts
			}
		},
		Cache: sgc.New(r.cache),
	})
	require.NoError(t, err)
	broken.On()
	var txs [][]byte
	for i := range 1000 {
		txs = append(txs, fmt.Appendf(nil, "key-%03d=x", i))
	}
	_, err = app.FinalizeBlock(context.Background(), &abci.RequestFinalizeBlock{Height: app.Height() + 1, Txs: txs})
	var page *avlstar.PageError
	require.ErrorAs(t, err, &page)
	require.Len(t, failed, 1, "the node is not told")
	require.ErrorContains(t, <-failed, errorfs.ErrInjected.Error())
	query := func(i int) *abci.ResponseQuery {
		res, err := app.Query(context.Background(), &abci.RequestQuery{Path: "/key", Data: fmt.Appendf(nil, "key-%03d", i)})
		require.NoError(t, err)
		return res
	}
	var answers []*abci.ResponseQuery
	for i := range 1000 {
		answers = append(answers, query(i))
	}
	broken.Off()
	unreadable := 0
	for i, res := range answers { // pages in a cache can still be served
		if res.Code != 0 {
			require.Equal(t, uint32(tx.CodeUnreadable), res.Code, res.Log)
			unreadable++
			continue
		}
		require.Equal(t, query(i), res)
	}
	require.NotZero(t, unreadable)
	require.NoError(t, app.Close())
}

// A nonce that cannot be read is not reported as 0.
func TestPagedNonceUnreadable(t *testing.T) {
	r := newPaged(t, 3, pagedGenesis(t, 0))
	r.open()
	for range 40 {
		r.block()
	}
	require.NoError(t, r.app.Close())
	var broken errorfs.Toggle
	broken.Injector = errorfs.ErrInjected.If(errorfs.Reads)
	r.config.Disk.CacheBytes = 8 << 10
	app, err := NewApplication(ApplicationOptions{
		DataDir: "data", Config: r.config, Logger: log.NewNopLogger(), Genesis: r.genesis, fs: errorfs.Wrap(r.disk, &broken),
		Failed: func(error) {}, Cache: sgc.New(1),
	})
	require.NoError(t, err)
	defer app.Close()
	for i := range 5000 { // what Pebble's cache has
		_, err := app.Query(context.Background(), &abci.RequestQuery{Path: "/key", Data: []byte{'k', byte(i), byte(i >> 8)}})
		require.NoError(t, err)
	}
	broken.On()
	account := make([]byte, 32)
	account[0] = 1
	res, err := app.Query(context.Background(), &abci.RequestQuery{Path: "/nonce", Data: account})
	require.NoError(t, err)
	broken.Off()
	require.Equal(t, uint32(tx.CodeUnreadable), res.Code, "a nonce that could not be read was answered: %x", res.Value)
}

// A block accepted by a node in memory must be accepted by one that pages.
func TestPagedManyChanges(t *testing.T) {
	for _, paged := range []bool{false, true} {
		t.Run(fmt.Sprint("paged ", paged), func(t *testing.T) {
			r := newPaged(t, 3, pagedGenesis(t, 0))
			r.config.Disk.StateInMemory = !paged
			r.open()
			for range 60 {
				r.block()
			}
			require.NoError(t, r.app.Close())
			r.open()
			defer r.app.Close()
			var txs [][]byte
			size := 0
			for i := range 60_000 {
				txs = append(txs, fmt.Appendf(nil, "%06d=1", i))
				size += 10
			}
			require.Less(t, size, home.DefaultBlockBytes)
			_, err := r.app.FinalizeBlock(context.Background(), &abci.RequestFinalizeBlock{Height: r.app.Height() + 1, Txs: txs})
			require.NoError(t, err)
		})
	}
}
