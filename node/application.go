package node

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cometbft/cometbft/libs/log"
	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/app/evm"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/node/buildinfo"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/disk"
	"github.com/starling-kv/starling/node/join"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/restore"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/events"
	"github.com/starling-kv/starling/storage/sgc"
	"github.com/starling-kv/starling/storage/treestore"
)

// ErrNoBlocks: there is a state that was computed from blocks, but the blocks are gone.
var ErrNoBlocks = errors.New("the blocks are missing")

// ApplicationOptions configures an application.
type ApplicationOptions struct {
	DataDir string // contains state zone and snapshots
	Config  config.App
	Logger  log.Logger
	Genesis *cmttypes.GenesisDoc // nil: parameters come with InitChain or with the state
	Metrics prometheus.Registerer
	// Failed is called with the error if a state cannot become durable. The node must then stop.
	Failed func(error)
	Cache  *sgc.Cache // shared with the block zone; nil: a separate one
	// NoBlocks: CometBFT has neither blocks nor a state to continue from. Hint is added to the
	// error about that.
	NoBlocks bool
	Hint     string
	// BlocksFrom is the first block that CometBFT has; 0: unknown.
	BlocksFrom int64
	// KeepRestored: keep a restored state that CometBFT has no block for, so that the next join
	// resumes with it.
	KeepRestored bool

	// Sharded is used if Config says that storage nodes keep the state.
	Sharded *ShardedOptions

	// ProposeTimeout is the time for which other validators wait for a proposal; 0: CometBFT's
	// default.
	ProposeTimeout time.Duration

	// SerialQueries: CometBFT sends one query at a time, so no query may wait.
	SerialQueries bool
	// SyncBlocks makes CometBFT's results of all executed blocks durable. It is called before the
	// state after a block becomes durable. nil: CometBFT is another process, which syncs them.
	SyncBlocks func() error

	fs vfs.FS // file system of the state zone; nil: the operating system's
}

// Application is the ABCI application with its storage and state sync, for a node and for
// `starlingd abci`. Its fields do not change.
type Application struct {
	*app.App
	snapshots *statesync.Manager // nil if the state is sharded: then no snapshots are taken
	backing   backing
	cache     *sgc.Cache
	joined    *atomic.Int64 // height of the restored state; 0: none
	interval  int64         // snapshot interval of the genesis file; 0: unknown
	metrics   *statesync.Metrics
	events    *events.Log // nil: no events are kept

	local *local // the backing if the state is in this home; nil otherwise
}

// NewApplication opens the state zone and rebuilds the tree, or, for a sharded state, connects to
// the storage nodes and fetches the upper tree from them. Call Close to release the resources.
func NewApplication(o ApplicationOptions) (*Application, error) {
	if o.Cache == nil {
		o.Cache = sgc.New(o.Config.Disk.SharedCache())
	}
	if o.Config.State.Sharded() {
		return newSharded(o)
	}
	if err := config.CheckMode(o.DataDir, config.ModeLocal); err != nil {
		return nil, err
	}
	log, err := openEvents(o)
	if err != nil {
		return nil, err
	}
	state, err := openState(o, log)
	if err != nil {
		return nil, errors.Join(err, closeEvents(log))
	}
	a, err := wire(o, state, log)
	if err != nil {
		return nil, errors.Join(err, state.Close(), closeEvents(log))
	}
	a.scrub(o.Config.Disk.ScrubRate)
	return a, nil
}

// scrub verifies the pages on disk in the background until Close.
func (a *Application) scrub(bytesPerSecond int64) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	a.local.stopScrub = func() {
		cancel()
		<-ended
	}
	latest := func() *avlstar.Version {
		_, v := a.Latest()
		return v
	}
	go func() {
		defer close(ended)
		a.local.store.Scrub(ctx, latest, bytesPerSecond)
	}()
}

func openState(o ApplicationOptions, log *events.Log) (*storage.Zone, error) {
	c := o.Config.Disk
	before := func(height int64) error {
		var err error
		if log != nil {
			err = log.Sync(height)
		}
		if err == nil && o.SyncBlocks != nil {
			err = o.SyncBlocks()
		}
		return err
	}
	return storage.Open(config.StateDir(o.DataDir), storage.Options{
		FS: o.fs, Logger: o.Logger.With("module", "storage"), Failed: o.Failed, Fatal: disk.EndProcess, Before: before,
		CacheBytes: c.DatabaseCache(), PinDir: config.SnapshotsDir(o.DataDir),
		FlushBlocks: c.FlushBlocks, FlushBytes: c.FlushBytes, FlushInterval: c.FlushInterval,
		MaxLagBlocks: c.MaxBacklogBlocks, MaxLagBytes: c.MaxBacklogBytes, Generations: true,
	})
}

func wire(o ApplicationOptions, state *storage.Zone, log *events.Log) (*Application, error) {
	if err := treestore.CheckInterrupted(state); err != nil {
		return nil, err
	}
	if meta, ok := state.Meta(); ok && o.NoBlocks {
		if !meta.Restored {
			return nil, fmt.Errorf("%w: the state is at height %d, but CometBFT's databases in %q are empty%s: put them back, or start over with `starlingd unsafe-reset-all`",
				ErrNoBlocks, meta.Height, o.DataDir, o.Hint)
		}
		// An interrupted join left this state: it was complete, but CometBFT had not recorded it,
		// so no block follows it.
		if !o.KeepRestored {
			o.Logger.Info("Removing a state that no block belongs to: a join was interrupted", "height", meta.Height)
			if err := state.Reset(); err != nil {
				return nil, err
			}
		}
	}
	var (
		store = treestore.Options{
			Zone: state, Logger: o.Logger.With("module", "storage"), Failed: o.Failed, Index: o.Config.State.Index,
			Cache: o.Cache, InMemory: o.Config.Disk.StateInMemory,
		}
		appMetrics   = app.NopMetrics()
		syncMetrics  *statesync.Metrics
		interval     int64
		genesisState app.Genesis
		err          error
	)
	if o.Genesis != nil {
		if genesisState, err = app.ParseGenesis(o.Genesis.AppState); err != nil {
			return nil, err
		}
		store.ChainID, interval = o.Genesis.ChainID, genesisState.SnapshotInterval
	}
	if o.Metrics != nil {
		appMetrics, syncMetrics = app.NewMetrics(o.Metrics), statesync.NewMetrics("starling", o.Metrics)
	}
	trees := treestore.New(store)
	options, err := o.forApp(log)
	if err != nil {
		return nil, err
	}
	options.Store, options.ChainID, options.Metrics = trees, store.ChainID, appMetrics
	application, err := app.New(options)
	if err != nil {
		return nil, err
	}
	var (
		joined  = new(atomic.Int64)
		manager *statesync.Manager
	)
	target := trees.JoinTarget(treestore.JoinOptions{
		Application: application, Known: func(p app.Params) { manager.SetInterval(p.SnapshotInterval) }, Done: joined.Store,
	})
	manager = statesync.NewManager(statesync.Options{
		Logger: o.Logger.With("module", "snapshots"), Target: target,
		Interval: interval, Keep: o.Config.Snapshots.Keep, Metrics: syncMetrics,
		OpenPin: trees.OpenPin, BlocksFrom: o.BlocksFrom, MaxBytes: o.Config.Snapshots.MaxBytes, OnDisk: state.PinUses,
	})
	trees.SetSnapshots(manager)
	for _, pin := range state.Pins() {
		manager.AddStored(pin.Height, pin.Data)
	}
	application.SetSnapshots(&snapshots{Manager: manager, app: application, state: state, known: interval > 0})
	home := &local{state: state, store: trees, target: target}
	return &Application{
		App: application, snapshots: manager, backing: home, local: home, cache: o.Cache, joined: joined,
		interval: interval, metrics: syncMetrics, events: log,
	}, nil
}

// forApp returns the options of app that do not depend on the backing.
func (o ApplicationOptions) forApp(log *events.Log) (app.Options, error) {
	newest, err := buildinfo.NewestAppVersion()
	c := o.Config.State
	options := app.Options{
		Logger:     o.Logger.With("module", "app"),
		KeepRecent: c.KeepRecent, KeepRecentBytes: uint64(c.KeepRecentBytes), RetainBlocks: c.RetainBlocks,
		Version: buildinfo.Read().Starling, NewestVersion: newest, Programs: evm.New(), SerialQueries: o.SerialQueries,
	}
	if log != nil {
		options.Events = log
	}
	if !o.SerialQueries {
		options.WatchWait = watchWait
	}
	if o.ProposeTimeout > 0 {
		options.ProposalTime = min(app.DefaultProposalTime, o.ProposeTimeout/4)
	}
	return options, err
}

// Target is where a join writes the restored state, and where it resumes.
func (a *Application) Target() restore.Target { return a.local.target }

// Snapshots returns the manager that serves the snapshots.
func (a *Application) Snapshots() *statesync.Manager { return a.snapshots }

// joinState is the application in the form that package join uses.
type joinState struct{ *Application }

var _ join.State = joinState{}

func (s joinState) Stored() (storage.Meta, bool) { return s.local.state.Meta() }
func (s joinState) Replace()                     { s.local.target.Replace() }
func (s joinState) SnapshotInterval() int64      { return s.interval }
func (s joinState) Whole(ctx context.Context, v *avlstar.Version) (*avlstar.Version, error) {
	return s.local.store.Whole(ctx, v)
}

// StopJoining ends a restore, so that no snapshot call waits any longer, and the ingest of a joined
// state, so that no Commit waits for it; for a sharded state it ends all waits for storage nodes.
// No snapshot is served afterwards.
func (a *Application) StopJoining() error {
	if a.events != nil {
		a.events.Stop()
	}
	err := a.snapshots.Close()
	a.backing.stopWaiting(a.App)
	return err
}

// Close makes waiting changes durable and closes the state zone. No call may be in progress. If a
// joined state is not fully ingested yet, the next start executes the blocks since then again, as
// after a kill.
func (a *Application) Close() error {
	return errors.Join(a.snapshots.Close(), a.backing.close(), closeEvents(a.events))
}

// snapshots is the Manager; without a genesis file it takes the snapshot interval from the first
// state. It tells the state zone which states are no longer needed.
type snapshots struct {
	*statesync.Manager
	app   *app.App
	state *storage.Zone
	known bool // used by Committed only, whose calls do not overlap
}

var _ app.Snapshots = (*snapshots)(nil)

func (s *snapshots) Offered() []app.SnapshotInfo {
	var infos []app.SnapshotInfo
	for _, o := range s.List() {
		infos = append(infos, app.SnapshotInfo{Height: uint64(o.Height), Format: statesync.Format, Chunks: o.Chunks, Hash: o.AppHash.String()})
	}
	return infos
}

func (s *snapshots) Committed(height int64, v *avlstar.Version) {
	if !s.known {
		if params, err := app.ReadParams(v); err == nil {
			s.SetInterval(params.SnapshotInterval)
			s.known = true
		}
	}
	s.Manager.Committed(height, v)
	s.state.Trim(s.app.Oldest(), s.Held())
}
