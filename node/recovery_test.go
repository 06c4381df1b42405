package node

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	abci "github.com/cometbft/cometbft/abci/types"
	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"
	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/viper"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app/event"
	"github.com/starling-kv/starling/node/comet"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/disk"
	"github.com/starling-kv/starling/node/home"
	"github.com/starling-kv/starling/node/internal/nodetest"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/blocks"
	"github.com/starling-kv/starling/storage/sgc"
)

// replica is an application on a disk that crashes, with the chain's records: the blocks, their app
// hashes, and the offered snapshots.
type replica struct {
	t       *testing.T
	rng     *rand.Rand
	genesis *cmttypes.GenesisDoc
	config  config.App
	disk    *vfs.MemFS
	links   sync.Mutex // see lockedLinks
	app     *Application
	blocks  [][][]byte
	hashes  [][]byte
	safe    int64 // was durable at some time
	// Number of keys and length of values; 0: 300 and up to 60. cache, if not 0, limits the cache.
	keys, longest int
	cache         int64
	mixed         *mixed // nil: text only
	answers       []*abci.ResponseFinalizeBlock
	// All events read so far, and the ones that watchAll has not read again yet.
	events  map[event.Token]event.Event
	unheard map[event.Token]bool
	heard   int64 // height up to which all events were read
}

func (r *replica) open() {
	var (
		err   error
		cache *sgc.Cache
	)
	if r.cache > 0 {
		cache = sgc.New(r.cache)
	}
	r.app, err = NewApplication(ApplicationOptions{
		Cache:   cache,
		DataDir: "data", Config: r.config, Logger: log.NewNopLogger(), Genesis: r.genesis, fs: lockedLinks{r.disk, &r.links},
		Failed: func(err error) { r.t.Error(err) },
	})
	require.NoError(r.t, err)
}

// lockedLinks prevents a Link during a CrashClone: MemFS.Link takes a read lock twice, and
// deadlocks if CrashClone requests the lock in between (pebble v2.1.7).
type lockedLinks struct {
	*vfs.MemFS
	mu *sync.Mutex // held during CrashClone
}

func (l lockedLinks) Link(from, to string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.MemFS.Link(from, to)
}

// crash keeps synced data on disk, and some of the rest.
func (r *replica) crash() {
	r.safe = max(r.safe, r.app.local.state.Safe())
	r.links.Lock()
	left := r.disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: r.rng.IntN(101), RNG: r.rng})
	r.links.Unlock()
	// ends its goroutines; its further writes are discarded
	require.NoError(r.t, r.app.Close())
	r.disk = left
	r.open()
}

func (r *replica) initChain() {
	params := r.genesis.ConsensusParams.ToProto()
	_, err := r.app.InitChain(context.Background(), &abci.RequestInitChain{
		ChainId: r.genesis.ChainID, AppStateBytes: r.genesis.AppState, InitialHeight: 1, ConsensusParams: &params,
		Validators: []abci.ValidatorUpdate{abci.Ed25519ValidatorUpdate(r.genesis.Validators[0].PubKey.Bytes(), 10)},
	})
	require.NoError(r.t, err)
}

func (r *replica) block() {
	t, ctx := r.t, context.Background()
	height := r.app.Height() + 1
	if height == 1 {
		r.initChain()
	}
	known := int(height) <= len(r.blocks)
	if !known {
		var txs [][]byte
		keys, longest := max(r.keys, 300), max(r.longest, 60)
		for range r.rng.IntN(keys / 15) {
			txs = append(txs, fmt.Appendf(nil, "key-%03d=%0*d", r.rng.IntN(keys), 1+r.rng.IntN(longest), height))
		}
		if r.mixed != nil {
			txs = append(txs, r.mixed.block(r, height)...)
		}
		r.blocks = append(r.blocks, txs)
	}
	res, err := r.app.FinalizeBlock(ctx, &abci.RequestFinalizeBlock{Height: height, Txs: r.blocks[height-1]})
	require.NoError(t, err)
	if known {
		require.Equal(t, r.hashes[height-1], res.AppHash, "block %d, executed again", height)
		require.Equal(t, r.answers[height-1], res, "block %d, executed again", height)
	} else {
		r.hashes, r.answers = append(r.hashes, res.AppHash), append(r.answers, res)
		if r.mixed != nil {
			r.mixed.count(r.blocks[height-1], r.genesis.ChainID, res.TxResults)
		}
	}
	commit, err := r.app.Commit(ctx, &abci.RequestCommit{})
	require.NoError(t, err)
	require.LessOrEqual(t, commit.RetainHeight, r.app.local.state.Safe(), "a restart needs the blocks since")
	r.watch(height)
}

// watch reads the events from a height on, and compares them with those read before.
func (r *replica) watch(from int64) {
	if r.config.State.KeepEvents == 0 {
		return
	}
	if r.events == nil {
		r.events = map[event.Token]event.Event{}
	}
	request := event.Request{From: event.Token{Height: from}, Previous: true}
	for request.From.Height <= r.app.Height() {
		res, err := r.app.Query(context.Background(), &abci.RequestQuery{Path: event.Path, Data: request.Encode()})
		require.NoError(r.t, err)
		require.Zero(r.t, res.Code, res.Log)
		answer, err := event.DecodeAnswer(res.Value, &request)
		require.NoError(r.t, err)
		require.False(r.t, answer.Compacted(request.From), "height %d, there are those from %d on", request.From.Height, answer.Least)
		for _, e := range answer.Events {
			at := event.Token{Height: e.Height, Index: e.Index}
			if e.Height <= r.heard {
				require.Equal(r.t, r.events[at], e)
			}
			r.events[at] = e
			delete(r.unheard, at)
		}
		request.From = answer.Next
	}
	r.heard = max(r.heard, r.app.Height())
}

// watchAll compares all events with those read before: none is lost, none is new.
func (r *replica) watchAll() {
	r.unheard = map[event.Token]bool{}
	for at := range r.events {
		if at.Height <= r.app.Height() {
			r.unheard[at] = true
		}
	}
	r.watch(1)
	require.Empty(r.t, r.unheard, "lost events")
}

// served reads every offered snapshot completely.
func (r *replica) served() map[uint64][][]byte {
	t, all := r.t, map[uint64][][]byte{}
	list, err := r.app.ListSnapshots(context.Background(), &abci.RequestListSnapshots{})
	require.NoError(t, err)
	for _, s := range list.Snapshots {
		require.Equal(t, r.hashes[s.Height-1], s.Hash)
		all[s.Height] = append(all[s.Height], s.Metadata)
		for k := range s.Chunks {
			res, err := r.app.LoadSnapshotChunk(context.Background(), &abci.RequestLoadSnapshotChunk{Height: s.Height, Format: s.Format, Chunk: k})
			require.NoError(t, err)
			require.NotNil(t, res.Chunk)
			all[s.Height] = append(all[s.Height], res.Chunk)
		}
	}
	return all
}

// Crashes at random instants: durable data are complete, the later blocks lead to the same hashes,
// and the snapshots still offered are unchanged byte by byte.
func TestCrashesOfTheStateZone(t *testing.T) {
	home, _ := nodetest.Home(t, func(o *home.InitOptions) { o.App.ChunkBytes, o.App.SnapshotInterval = 600, 7 })
	genesis, err := config.LoadGenesis(filepath.Join(home, "config", "genesis.json"))
	require.NoError(t, err)
	for seed := range uint64(6) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			r := &replica{t: t, rng: rand.New(rand.NewPCG(seed, 0)), genesis: genesis, config: config.DefaultApp(), disk: vfs.NewCrashableMem()}
			r.config.State.RetainBlocks = 1
			r.open()
			snapshots := map[uint64][][]byte{}
			survived := 0
			for range 12 {
				r.config.Disk.FlushBlocks = 1 + r.rng.IntN(20)
				for range r.rng.IntN(60) {
					r.block()
				}
				if r.rng.IntN(2) == 0 {
					require.NoError(t, r.app.local.state.Flush())
				}
				for height, s := range r.served() {
					if known := snapshots[height]; known != nil {
						require.Equal(t, known, s)
					}
					snapshots[height] = s
				}
				r.crash()
				height := r.app.Height()
				require.GreaterOrEqual(t, height, r.safe)
				r.watchAll()
				for at, s := range r.served() {
					require.LessOrEqual(t, int64(at), height)
					if known := snapshots[at]; known != nil {
						require.Equal(t, known, s, "the snapshot of height %d after a restart at %d", at, height)
						survived++
					}
				}
			}
			require.Positive(t, survived)
			for int(r.app.Height()) < len(r.blocks) {
				r.block()
			}
			r.watchAll()
			require.NotEmpty(t, r.events)
			require.NoError(t, r.app.Close())
		})
	}
}

// A full disk: blocks are executed until the flusher hits it, the node is told, and after a restart
// with free space all durable data exist.
func TestFullDiskStopsTheApplication(t *testing.T) {
	home, _ := nodetest.Home(t, nil)
	genesis, err := config.LoadGenesis(filepath.Join(home, "config", "genesis.json"))
	require.NoError(t, err)
	r := &replica{t: t, rng: rand.New(rand.NewPCG(1, 1)), genesis: genesis, config: config.DefaultApp(), disk: vfs.NewMem()}
	// The event log has its own write-ahead log: a full disk ends the process, as in the block
	// zone.
	r.config.State.KeepEvents = 0
	var full atomic.Bool
	failed := make(chan error, 10)
	open := func() {
		r.app, err = NewApplication(ApplicationOptions{
			DataDir: "data", Config: r.config, Logger: log.NewNopLogger(), Genesis: genesis,
			fs: errorfs.Wrap(r.disk, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if full.Load() && (op.Kind == errorfs.OpFileWrite || op.Kind == errorfs.OpCreate) {
					return syscall.ENOSPC
				}
				return nil
			})),
			Failed: func(err error) { failed <- err },
		})
		require.NoError(t, err)
	}
	open()
	for range 10 {
		r.block()
	}
	require.NoError(t, r.app.local.state.Flush())
	full.Store(true)
	for range 3 {
		r.block()
	}
	require.ErrorIs(t, r.app.local.state.Flush(), storage.ErrDiskFull)
	err = <-failed
	require.ErrorIs(t, err, storage.ErrDiskFull)
	require.True(t, disk.IsFull(err))
	_, err = r.app.FinalizeBlock(t.Context(), &abci.RequestFinalizeBlock{Height: 14})
	require.NoError(t, err)
	_, err = r.app.Commit(t.Context(), &abci.RequestCommit{})
	require.ErrorIs(t, err, storage.ErrDiskFull)
	require.EqualValues(t, 13, r.app.Height())
	require.NoError(t, r.app.Close())
	full.Store(false)
	open()
	require.EqualValues(t, 10, r.app.Height())
	for range 5 {
		r.block()
	}
	require.NoError(t, r.app.Close())
}

// A cleanly stopped node comes back at its last block, without executing a block again, and offers
// the same snapshots.
func TestSnapshotsSurviveARestart(t *testing.T) {
	home, _ := nodetest.Home(t, func(o *home.InitOptions) { o.App.ChunkBytes, o.App.SnapshotInterval = 600, 5 })
	n := start(t, home, log.NewNopLogger())
	client := nodetest.RPC(t, home)
	for i := range 30 {
		_, err := client.BroadcastTxSync(t.Context(), fmt.Appendf(nil, "key-%02d=%064d", i, i))
		require.NoError(t, err)
	}
	nodetest.Until(t, "snapshots", func() bool { return n.Application().Height() > 12 })
	require.NoError(t, n.Stop())
	height := n.Application().Height()
	require.Equal(t, height, n.application.local.state.Safe())
	stored := n.application.local.state.Pins() // not all, if snapshots come faster than the disk
	require.NotEmpty(t, stored)

	n, err := New(t.Context(), nodetest.Load(t, home), log.NewNopLogger())
	require.NoError(t, err)
	list := n.application.snapshots.List()
	require.Len(t, list, len(stored))
	for i, s := range list {
		require.Equal(t, stored[len(stored)-1-i].Height, s.Height)
		header := n.Comet().BlockStore().LoadBlockMeta(s.Height + 1)
		if header != nil {
			require.Equal(t, s.AppHash[:], header.Header.AppHash.Bytes())
		}
		for k := range s.Chunks {
			res, err := n.application.LoadSnapshotChunk(t.Context(), &abci.RequestLoadSnapshotChunk{Height: uint64(s.Height), Format: 1, Chunk: k})
			require.NoError(t, err)
			require.NotEmpty(t, res.Chunk)
		}
	}
	require.NoError(t, n.Stop())
	require.DirExists(t, filepath.Join(config.SnapshotsDir(filepath.Join(home, "data")), fmt.Sprint(stored[0].Height)))
}

// killedHome makes the test program the process that TestKill kills: a node on that home.
const killedHome = "STARLING_TEST_KILLED_HOME"

func TestMain(m *testing.M) {
	if os.Getenv(killedHome)+os.Getenv(failingHome)+os.Getenv(joiningHome)+os.Getenv(catchingHome) != "" {
		go func() { // the node ends if the test is killed
			_, _ = io.Copy(io.Discard, os.Stdin)
			os.Exit(1)
		}()
	}
	if home := os.Getenv(killedHome); home != "" {
		fmt.Fprintln(os.Stderr, runUntilKilled(home))
		os.Exit(1)
	}
	if home := os.Getenv(joiningHome); home != "" {
		fmt.Fprintln(os.Stderr, joinUntilKilled(home, os.Getenv(joiningStep)))
		os.Exit(1)
	}
	if home := os.Getenv(catchingHome); home != "" {
		fmt.Fprintln(os.Stderr, catchUpUntilKilled(home, os.Getenv(catchingStep), os.Getenv(catchingPower)))
		os.Exit(1)
	}
	if home := os.Getenv(failingHome); home != "" {
		runOnAFailingDisk(home, os.Getenv(failingHow))
	}
	os.Exit(m.Run())
}

func runUntilKilled(home string) error {
	config, err := config.Load(home, viper.New())
	if err != nil {
		return err
	}
	n, err := New(context.Background(), config, log.NewNopLogger())
	if err != nil {
		return err
	}
	if err := n.Start(context.Background()); err != nil {
		return err
	}
	return <-n.Failed()
}

// A node is killed under load, several times, with unflushed blocks: acknowledged writes exist, and
// so does the chain.
func TestKill(t *testing.T) {
	for _, backend := range []string{config.BlockZoneBackend, "goleveldb"} {
		t.Run(backend, func(t *testing.T) {
			home, _ := nodetest.Home(t, func(o *home.InitOptions) {
				edit := o.Edit
				o.Edit = func(c *cfg.Config, a *config.App) {
					edit(c, a)
					c.DBBackend = backend
					a.State.RetainBlocks = 1
					a.Disk.FlushInterval, a.Disk.FlushBlocks = time.Hour, 9
				}
			})
			written := 0
			for round := range 3 {
				process := exec.CommandContext(t.Context(), os.Args[0])
				process.Env = append(os.Environ(), killedHome+"="+home)
				var output bytes.Buffer
				process.Stdout, process.Stderr = &output, &output
				_, err := process.StdinPipe() // open until the test ends, in any way
				require.NoError(t, err)
				require.NoError(t, process.Start())
				client := nodetest.RPC(t, home)
				nodetest.Until(t, "the node", func() bool { _, err := client.Status(t.Context()); return err == nil })
				for range 15 + round*7 {
					nodetest.Put(t, client, fmt.Sprint("key-", written), fmt.Sprint(written))
					written++
				}
				// Blocks are being made, executed and saved when the node is killed.
				for i := range 10 + round*120 {
					_, _ = client.BroadcastTxSync(t.Context(), fmt.Appendf(nil, "load-%d-%d=%0200d", round, i, i))
				}
				require.NoError(t, process.Process.Kill())
				require.Error(t, process.Wait(), output.String())
			}
			unfinished := []string{filepath.Join(home, "data", "write-file-atomic-0123"), filepath.Join(home, "config", "write-file-atomic-4567")}
			for _, path := range unfinished { // left by kills
				nodetest.WriteFile(t, path, "{")
			}
			n := start(t, home, log.NewNopLogger())
			for _, path := range unfinished {
				require.NoFileExists(t, path)
			}
			client := nodetest.RPC(t, home)
			for i := range written {
				require.Equal(t, fmt.Sprint(i), nodetest.Get(t, client, fmt.Sprint("key-", i)))
			}
			nodetest.Put(t, client, "one", "more")
			nodetest.SameHashes(t, n.Application(), n.Comet)
			require.Greater(t, n.Comet().BlockStore().Base(), int64(1), "blocks are pruned")
		})
	}
}

// Data that a restart would need are not pruned.
func TestPruningWaitsForTheDisk(t *testing.T) {
	home, _ := nodetest.Home(t, func(o *home.InitOptions) {
		o.App.SnapshotInterval = 1000
		edit := o.Edit
		o.Edit = func(c *cfg.Config, a *config.App) {
			edit(c, a)
			a.State.RetainBlocks = 3
			a.Disk.FlushInterval, a.Disk.FlushBlocks, a.Disk.MaxBacklogBlocks = time.Hour, 1000, 1000
		}
	})
	n := start(t, home, log.NewNopLogger())
	nodetest.Put(t, nodetest.RPC(t, home), "a", "1")
	nodetest.Until(t, "twenty blocks", func() bool { return n.Application().Height() > 20 })
	require.Zero(t, n.application.local.state.Safe())
	require.EqualValues(t, 1, n.Comet().BlockStore().Base())
	require.NoError(t, n.application.local.state.Flush())
	safe := n.application.local.state.Safe()
	require.Greater(t, safe, int64(20))
	nodetest.Until(t, "pruned blocks", func() bool { return n.Comet().BlockStore().Base() > 1 })
	nodetest.Until(t, "some more blocks", func() bool { return n.Application().Height() > safe+10 })
	require.LessOrEqual(t, n.Comet().BlockStore().Base(), safe)
	require.Equal(t, safe, n.application.local.state.Safe())
	require.NoError(t, n.Stop())
}

// Databases of another db_backend are used unchanged, and are not taken for an empty home.
func TestOtherBackends(t *testing.T) {
	home, _ := nodetest.Home(t, func(o *home.InitOptions) {
		edit := o.Edit
		o.Edit = func(c *cfg.Config, a *config.App) { edit(c, a); c.DBBackend = "goleveldb" }
	})
	n := start(t, home, log.NewNopLogger())
	nodetest.Put(t, nodetest.RPC(t, home), "a", "1")
	require.Nil(t, n.databases.BlockZone())
	require.NoError(t, n.Stop())
	require.DirExists(t, filepath.Join(home, "data", "blockstore.db"))
	require.NoDirExists(t, config.BlocksDir(filepath.Join(home, "data")))

	conf := nodetest.Load(t, home)
	conf.CometBFT.DBBackend = config.BlockZoneBackend
	_, err := New(t.Context(), conf, log.NewNopLogger())
	require.ErrorIs(t, err, ErrNoBlocks)
	require.ErrorContains(t, err, "from another db_backend")

	start(t, home, log.NewNopLogger())
	client := nodetest.RPC(t, home)
	nodetest.Put(t, client, "b", "2")
	require.Equal(t, "1", nodetest.Get(t, client, "a"))
}

// Damage in either zone is reported with its file and the fix. It never produces wrong data.
func TestDamagedZones(t *testing.T) {
	for zone, wayOut := range map[string]string{"state": "join again by state sync", "blocks": "unsafe-reset-all"} {
		t.Run(zone, func(t *testing.T) {
			home, _ := nodetest.Home(t, nil)
			n := start(t, home, log.NewNopLogger())
			client := nodetest.RPC(t, home)
			for i := range 10 {
				nodetest.Put(t, client, fmt.Sprint("key-", i), strings.Repeat("x", 1000))
			}
			require.NoError(t, n.Stop())
			dir := filepath.Join(home, "data", zone)
			if zone == "blocks" { // damage in its log would be taken for the log's end
				require.NoError(t, compactBlocks(t, home))
			}
			require.Positive(t, damageTables(t, dir))
			_, err := New(t.Context(), nodetest.Load(t, home), log.NewNopLogger())
			require.ErrorIs(t, err, storage.ErrCorrupt)
			require.ErrorContains(t, err, dir)
			require.ErrorContains(t, err, wayOut)
		})
	}
}

func compactBlocks(t *testing.T, home string) error {
	t.Helper()
	d := comet.NewDatabases(nodetest.Load(t, home).CometBFT, log.NewNopLogger(), blocks.Options{})
	_, err := d.Open()
	require.NoError(t, err)
	require.NoError(t, d.BlockZone().Compact(t.Context(), nil))
	return d.Close()
}

// damageTables flips a bit in the first block of every table.
func damageTables(t *testing.T, dir string) (damaged int) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".sst") {
			return err
		}
		raw, err := os.ReadFile(path)
		if err == nil {
			raw[20] ^= 4
			err = os.WriteFile(path, raw, 0o600)
		}
		damaged++
		return err
	}))
	return damaged
}

func TestStorageMetrics(t *testing.T) {
	home, _ := nodetest.Home(t, nil)
	n := start(t, home, log.NewNopLogger())
	nodetest.Put(t, nodetest.RPC(t, home), "a", "1")
	require.NoError(t, n.application.local.state.Flush())
	registry := prometheus.NewRegistry()
	require.NoError(t, registry.Register(newStorageMetrics(n.application.local, n.databases.BlockZone, n.cache)))
	values := map[string]float64{}
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := strings.TrimPrefix(f.GetName(), "starling_storage_")
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			values[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	for _, name := range []string{"safe_height", "flushes_total", "flush_bytes_total", "flush_seconds_total", "disk_bytes state", "disk_bytes blocks",
		"cache_target_bytes state", "cache_target_bytes blocks", "cache_hits_total blocks"} {
		require.Positive(t, values[name], name)
	}
	for _, name := range []string{"lag_blocks", "lag_bytes", "lag_seconds", "wait_seconds_total", "compaction_bytes_total", "generations", "cache_moves_total",
		"cache_moved_bytes_total", "write_amplification state", "write_amplification blocks", "cache_misses_total state", "cache_ghost_hits_total blocks",
		"cache_entries blocks", "cache_bytes blocks"} {
		require.Contains(t, values, name)
	}
	require.NoError(t, n.Stop())
	_, err = registry.Gather() // a stopped node answers as well
	require.NoError(t, err)
}

func TestResetRemovesAllData(t *testing.T) {
	for _, backend := range []string{config.BlockZoneBackend, "goleveldb"} {
		dir, _ := nodetest.Home(t, func(o *home.InitOptions) {
			o.App.SnapshotInterval = 2
			edit := o.Edit
			o.Edit = func(c *cfg.Config, a *config.App) { edit(c, a); c.DBBackend = backend }
		})
		n := start(t, dir, log.NewNopLogger())
		nodetest.Put(t, nodetest.RPC(t, dir), "a", "1")
		nodetest.Until(t, "a snapshot on disk", func() bool { return len(n.application.local.state.Pins()) > 0 })
		_, err := home.Reset(nodetest.Load(t, dir).CometBFT)
		require.ErrorContains(t, err, "nothing is removed")
		require.NoError(t, n.Stop())
		removed, err := home.Reset(nodetest.Load(t, dir).CometBFT)
		require.NoError(t, err)
		require.Contains(t, removed, config.SnapshotsDir(filepath.Join(dir, "data")))
		left, err := os.ReadDir(filepath.Join(dir, "data"))
		require.NoError(t, err)
		require.Len(t, left, 2)
		require.Equal(t, "priv_validator_state.json", left[0].Name())
		require.Equal(t, "priv_validator_state.json.slots", left[1].Name())
		n, err = New(t.Context(), nodetest.Load(t, dir), log.NewNopLogger())
		require.NoError(t, err)
		require.Zero(t, n.Application().Height())
		require.NoError(t, n.Stop())
	}
}
