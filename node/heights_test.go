package node

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/node/comet"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/internal/nodetest"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/blocks"
)

// chain returns what RebuildHeights asks: the app hashes of the blocks that there are now.
func (r *replica) chain() func(int64) ([]byte, error) {
	hashes := slices.Clone(r.hashes)
	return func(height int64) ([]byte, error) {
		if height < 1 || height > int64(len(hashes)) {
			return nil, nil
		}
		return hashes[height-1], nil
	}
}

// queryAll asks for some keys at each height that is kept, and verifies the answers.
func (r *replica) queryAll() {
	for height := r.app.Oldest(); height <= r.app.Height(); height++ {
		for range 4 {
			r.query(height, fmt.Sprintf("key-%03d", r.rng.IntN(max(r.keys, 300))))
		}
	}
}

// newRestarted is a replica with or without pages that keeps 20 states.
func newRestarted(t *testing.T, paged bool) *replica {
	seed := seeds.New(t)
	r := newPaged(t, seed, pagedGenesis(t, 7))
	if !paged {
		r.config.Storage.StateInMemory = true
		r.keys, r.longest, r.cache = 300, 60, 0
	}
	r.open()
	return r
}

// restart starts again, by a crash or in order, and executes the blocks that were not durable.
func (r *replica) restart() {
	if r.rng.IntN(2) == 0 {
		r.crash()
	} else {
		require.NoError(r.t, r.app.Close())
		r.open()
	}
	for int(r.app.Height()) < len(r.blocks) {
		r.block()
	}
}

// TestHeightsAreThereAfterARestart: through crashes at random instants, also while states are made
// again and blocks follow, each of the last heights answers again, proved by its app hash.
func TestHeightsAreThereAfterARestart(t *testing.T) {
	for _, paged := range []bool{false, true} {
		t.Run(fmt.Sprint("paged ", paged), func(t *testing.T) {
			r := newRestarted(t, paged)
			all := 0
			rounds := 4
			if paged {
				rounds = 2
			}
			for range rounds {
				r.config.Storage.FlushBlocks = 1 + r.rng.IntN(10)
				for range 5 + r.rng.IntN(30) {
					r.block()
				}
				r.restart()
				ctx, cancel := context.WithCancel(t.Context())
				interrupted := r.rng.IntN(3) == 0
				var wg sync.WaitGroup
				chain := r.chain()
				wg.Go(func() { r.app.RebuildHeights(ctx, chain) })
				for range r.rng.IntN(10) {
					r.block()
				}
				if interrupted {
					cancel()
				}
				wg.Wait()
				cancel()
				if !interrupted {
					require.Equal(t, max(1, r.app.Height()-int64(r.config.State.KeepRecent)+1), r.app.Oldest())
					all++
				}
				r.queryAll()
				for range r.rng.IntN(30) { // they are given up as any others
					r.block()
				}
				r.queryAll()
			}
			t.Logf("%d of %d times, all were made again", all, rounds)
			require.NoError(t, r.app.Close())
		})
	}
}

// TestHeightsStayWithinTheirBytes: states that are made again count toward keep_recent_bytes.
func TestHeightsStayWithinTheirBytes(t *testing.T) {
	r := newRestarted(t, false)
	r.config.State.KeepRecent = 1000
	for range 60 {
		r.block()
	}
	require.NoError(t, r.app.Close())
	r.config.State.KeepRecentBytes = 100 << 10
	r.open()
	r.app.RebuildHeights(t.Context(), r.chain())
	r.queryAll()
	require.Greater(t, r.app.Height()-r.app.Oldest(), int64(3))
	require.Greater(t, r.app.Oldest(), int64(10))
	require.LessOrEqual(t, r.app.heldBytes(), uint64(r.config.State.KeepRecentBytes))
	require.NoError(t, r.app.Close())
}

// TestDamagedUndoIsNotServed: a state is served only if it has the app hash of the chain.
func TestDamagedUndoIsNotServed(t *testing.T) {
	const blocks, bad = 30, 20
	for name, damage := range map[string]func(t *testing.T, r *replica){
		"flipped bit": func(t *testing.T, r *replica) {
			record, err := r.app.heights.records.Get(bad)
			require.NoError(t, err)
			require.NoError(t, r.app.Close())
			names, err := r.disk.List(config.UndoDir("data"))
			require.NoError(t, err)
			changed := 0
			for _, name := range names {
				path := filepath.Join(config.UndoDir("data"), name)
				in, err := r.disk.Open(path)
				require.NoError(t, err)
				all, err := io.ReadAll(in)
				require.NoError(t, err)
				require.NoError(t, in.Close())
				at := strings.Index(string(all), string(record))
				if at < 0 {
					continue
				}
				changed++
				all[at+r.rng.IntN(len(record))] ^= 1 << r.rng.IntN(8)
				out, err := r.disk.Create(path, vfs.WriteCategoryUnspecified)
				require.NoError(t, err)
				_, err = out.Write(all)
				require.NoError(t, err)
				require.NoError(t, out.Close())
			}
			require.Equal(t, 1, changed)
			r.open()
		},
		"of another block": func(t *testing.T, r *replica) {
			other, err := r.app.heights.records.Get(bad - 3)
			require.NoError(t, err)
			r.app.heights.records.Put(bad, other)
		},
		// It says that it leads where the chain was.
		"leads elsewhere": func(t *testing.T, r *replica) {
			good, err := r.app.heights.records.Get(bad)
			require.NoError(t, err)
			changed := slices.Clone(good)
			changed[len(changed)-1] ^= 1 // of a value
			r.app.heights.records.Put(bad, changed)
		},
		"the chain has another hash": func(_ *testing.T, r *replica) { r.hashes[bad-2] = make([]byte, 32) },
		"no header":                  func(_ *testing.T, r *replica) { r.hashes[bad-2] = nil },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRestarted(t, eitherWay(t))
			r.config.State.KeepRecent = 100
			for range blocks {
				r.block()
			}
			require.NoError(t, r.app.Close())
			r.open()
			damage(t, r)
			r.app.RebuildHeights(t.Context(), r.chain())
			require.EqualValues(t, bad, r.app.Oldest())
			r.queryAll()
			for range 5 { // nothing else is the worse for it
				r.block()
			}
			require.NoError(t, r.app.Close())
		})
	}
}

// eitherWay draws whether there are pages.
func eitherWay(t *testing.T) bool {
	return rand.New(rand.NewPCG(seeds.New(t), 1)).IntN(2) == 0 //nolint:gosec // it is to be repeatable
}

// TestNodeAnswersOldHeightsAfterARestart: with CometBFT and its headers, over RPC.
func TestNodeAnswersOldHeightsAfterARestart(t *testing.T) {
	home, _ := nodetest.Home(t, nil)
	logs := new(nodetest.LogBuffer)
	n := start(t, home, logs.Logger(t))
	client := nodetest.RPC(t, home)
	var heights []int64
	for i := range 8 {
		nodetest.Put(t, client, "key", fmt.Sprint("value-", i))
		heights = append(heights, n.Application().Height())
	}
	require.NoError(t, n.Stop())

	n = start(t, home, logs.Logger(t))
	nodetest.Until(t, "all heights are there", func() bool { return n.Application().Oldest() == 1 })
	require.True(t, logs.Has("Made older states again"))
	client = nodetest.RPC(t, home)
	for i, height := range heights {
		v, ok := n.Application().Version(height)
		require.True(t, ok)
		value, _, err := v.Get([]byte("key"))
		v.Release()
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint("value-", i), string(value))
	}
	nodetest.Put(t, client, "key", "one more")
	require.NoError(t, n.Stop())

	// a block that cannot be read ends the rebuild, and not the node
	d := comet.NewDatabases(nodetest.Load(t, home).CometBFT, log.NewNopLogger(), blocks.Options{})
	db, err := d.DB("blockstore")
	require.NoError(t, err)
	require.NoError(t, db.SetSync([]byte("H:3"), []byte("damaged")))
	require.NoError(t, d.Close())
	n = start(t, home, logs.Logger(t))
	nodetest.Until(t, "the heights from the damaged block on are there", func() bool { return logs.Has("block 3: ") })
	require.EqualValues(t, 3, n.Application().Oldest())
	nodetest.Put(t, nodetest.RPC(t, home), "key", "the last one")
}

// TestRebuildHeightsFigures makes 100 states again, of blocks of 1,000 changed keys of 200,000, and
// says what that takes.
func TestRebuildHeightsFigures(t *testing.T) {
	if testing.Short() {
		t.Skip("it is for its figures")
	}
	home, _ := nodetest.Home(t, nil)
	genesis, err := config.LoadGenesis(filepath.Join(home, "config", "genesis.json"))
	require.NoError(t, err)
	const keys, perBlock, heights = 200_000, 1000, 100
	r := &replica{t: t, rng: rand.New(rand.NewPCG(1, 2)), genesis: genesis, config: config.DefaultApp(), disk: vfs.NewMem()} //nolint:gosec // it is to be repeatable
	r.config.State.KeepEvents = 0
	r.open()
	for from := 0; from < keys; from += 20_000 {
		var txs [][]byte
		for i := from; i < from+20_000; i++ {
			txs = append(txs, fmt.Appendf(nil, "key-%08x=%0100d", uint32(i)*0x9e3779b1, i))
		}
		r.blocks = append(r.blocks, txs)
	}
	for range heights {
		var txs [][]byte
		for _, i := range r.rng.Perm(keys)[:perBlock] {
			txs = append(txs, fmt.Appendf(nil, "key-%08x=%0100d", uint32(i)*0x9e3779b1, r.rng.Int()))
		}
		r.blocks = append(r.blocks, txs)
	}
	for i, txs := range r.blocks {
		if i == 0 {
			r.initChain()
		}
		res, err := r.app.FinalizeBlock(t.Context(), &abci.RequestFinalizeBlock{Height: int64(i + 1), Txs: txs})
		require.NoError(t, err)
		r.hashes = append(r.hashes, res.AppHash)
		_, err = r.app.Commit(t.Context(), &abci.RequestCommit{})
		require.NoError(t, err)
	}
	bytes := r.app.heights.records.Bytes()
	require.NoError(t, r.app.Close())
	r.open()
	began := time.Now()
	r.app.RebuildHeights(t.Context(), r.chain())
	took := time.Since(began)
	require.Equal(t, r.app.Height()-heights+1, r.app.Oldest())
	t.Logf("%d states in %s; %d bytes on disk and %d in memory for each", heights-1, took, bytes/int64(len(r.blocks)), r.app.heldBytes()/heights)
	require.NoError(t, r.app.Close())
}

// heldBytes is the memory of all states but the last one.
func (a *Application) heldBytes() (sum uint64) {
	var last *avlstar.Version
	for height := a.Oldest(); height <= a.Height(); height++ {
		if v, ok := a.Version(height); ok {
			if v != last {
				sum += v.HeldBytes()
			}
			last = v
			v.Release()
		}
	}
	return sum
}

// TestNoUndoIsKeptForOneState: without older states to answer from there are no records, and those
// of another setting are removed, which would have a gap later; but not those of a running node.
func TestNoUndoIsKeptForOneState(t *testing.T) {
	dir := t.TempDir()
	o := ApplicationOptions{DataDir: dir, Config: config.DefaultApp(), Logger: log.NewNopLogger(), Undo: true}
	running, err := NewApplication(o)
	require.NoError(t, err)
	running.heights.records.Put(1, []byte("record"))

	o.Config.State.KeepRecent = 1
	_, err = NewApplication(o)
	require.ErrorIs(t, err, storage.ErrLocked)
	_, err = running.heights.records.Get(1)
	require.NoError(t, err)
	require.NoError(t, running.Close())
	require.DirExists(t, config.UndoDir(dir))

	next, err := NewApplication(o)
	require.NoError(t, err)
	require.Nil(t, next.heights)
	require.NoDirExists(t, config.UndoDir(dir))
	next.RebuildHeights(t.Context(), nil) // there is nothing to do
	require.NoError(t, next.Close())
}

// TestUnusableUndoFolder: a node that cannot keep records starts.
func TestUnusableUndoFolder(t *testing.T) {
	dir, logs := t.TempDir(), new(nodetest.LogBuffer)
	nodetest.WriteFile(t, config.UndoDir(dir), "no folder")
	a, err := NewApplication(ApplicationOptions{DataDir: dir, Config: config.DefaultApp(), Logger: logs.Logger(t), Undo: true})
	require.NoError(t, err)
	require.Nil(t, a.heights)
	require.True(t, logs.Has("No undo records are kept"))
	a.RebuildHeights(t.Context(), nil)
	require.NoError(t, a.Close())
}

// TestUndoOfTooManyChanges: blocks would wait for it.
func TestUndoOfTooManyChanges(t *testing.T) {
	r := newRestarted(t, false)
	for range 10 {
		r.block()
	}
	require.NoError(t, r.app.Close())
	r.open()
	r.app.heights.largest = -1
	r.app.RebuildHeights(t.Context(), r.chain())
	require.Equal(t, r.app.Height(), r.app.Oldest())
	require.NoError(t, r.app.Close())
}
