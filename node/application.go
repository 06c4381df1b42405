package node

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cometbft/cometbft/libs/log"
	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/node/buildinfo"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/disk"
	"github.com/starling-kv/starling/node/join"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/fastsync"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/events"
	"github.com/starling-kv/starling/storage/sgc"
	"github.com/starling-kv/starling/storage/undo"
	"github.com/starling-kv/starling/treestore"
)

// ErrNoBlocks: there is a state that was computed from blocks, but the blocks are gone.
var ErrNoBlocks = errors.New("the blocks are missing")

// ApplicationOptions say how to make an application.
type ApplicationOptions struct {
	DataDir string // contains state zone and snapshots
	Config  config.App
	Logger  log.Logger
	Genesis *cmttypes.GenesisDoc // nil: parameters come with InitChain, or with the state
	Metrics prometheus.Registerer
	// Failed is called with the error of a state that cannot become durable. The node must then
	// stop.
	Failed func(error)
	Cache  *sgc.Cache // shared with the block zone; nil: one of its own
	// NoBlocks: CometBFT has nothing that a state could continue from. Hint is added to the error
	// about it.
	NoBlocks bool
	Hint     string
	// BlocksFrom is the first block that CometBFT has; 0: not known.
	BlocksFrom int64
	// KeepRestored: a restored state that no block belongs to is kept, for the next join to resume.
	KeepRestored bool

	// Undo: records are kept by which RebuildHeights goes back after the next start.
	Undo bool

	// Sharded is used where Config says that storage nodes keep the state.
	Sharded *ShardedOptions

	// SerialQueries: CometBFT asks one query after another, so that none may wait.
	SerialQueries bool

	// Converting is storage.Options.Converting.
	Converting func(done, total uint64) error

	fs vfs.FS // of the state zone; nil: the operating system's
}

// Application is the ABCI application with its storage and state sync, for a node and for
// `starlingd abci`. Its fields do not change.
type Application struct {
	*app.App
	snapshots *statesync.Manager // of a sharded state it has none, and takes none
	sharded   *sharded           // nil: the state is in this home
	cache     *sgc.Cache
	joined    *atomic.Int64 // height of the state that was restored; 0: none
	interval  int64         // of snapshots, as the genesis file says; 0: not known
	metrics   *statesync.Metrics
	events    *events.Log // nil: it keeps none
	heights   *heights    // nil: none are made again

	// Of a state in this home.
	state     *storage.Zone
	store     *treestore.Store
	target    treestore.Target
	stopScrub func() // waits until nothing verifies the pages on disk
}

// NewApplication opens the state zone, rebuilds the tree and connects the parts; or it connects to
// the storage nodes that keep the state, and takes its upper tree up from them. Close releases the
// parts.
func NewApplication(o ApplicationOptions) (*Application, error) {
	if o.Cache == nil {
		o.Cache = sgc.New(o.Config.Storage.CacheBytes())
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
	records := openUndo(o)
	state, err := openState(o, log, records)
	if err != nil {
		return nil, errors.Join(err, closeUndo(records), closeEvents(log))
	}
	removeUndo(o)
	a, err := wire(o, state, log, records)
	if err != nil {
		return nil, errors.Join(err, state.Close(), closeUndo(records), closeEvents(log))
	}
	a.scrub(o.Config.Storage.ScrubRate)
	return a, nil
}

// scrub verifies the pages on disk in the background until Close.
func (a *Application) scrub(bytesPerSecond int64) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	a.stopScrub = func() {
		cancel()
		<-ended
	}
	latest := func() *avlstar.Version {
		_, v := a.Latest()
		return v
	}
	go func() {
		defer close(ended)
		a.store.Scrub(ctx, latest, bytesPerSecond)
	}()
}

func openState(o ApplicationOptions, log *events.Log, records *undo.Log) (*storage.Zone, error) {
	c := o.Config.Storage
	before := func(height int64) error {
		if records != nil {
			records.Sync()
		}
		if log != nil {
			return log.Sync(height)
		}
		return nil
	}
	return storage.Open(config.StateDir(o.DataDir), storage.Options{
		FS: o.fs, Logger: o.Logger.With("module", "storage"), Failed: o.Failed, Fatal: disk.EndProcess, Converting: o.Converting, Before: before,
		CacheBytes: c.DatabaseCache(), PinDir: config.SnapshotsDir(o.DataDir),
		FlushBlocks: c.FlushBlocks, FlushBytes: c.FlushBytes, FlushInterval: c.FlushInterval,
		MaxLagBlocks: c.MaxLagBlocks, MaxLagBytes: c.MaxLagBytes, Generations: !c.StateInMemory,
	})
}

func wire(o ApplicationOptions, state *storage.Zone, log *events.Log, records *undo.Log) (*Application, error) {
	if err := treestore.CheckInterrupted(state); err != nil {
		return nil, err
	}
	if meta, ok := state.Meta(); ok && o.NoBlocks {
		if !meta.Restored {
			return nil, fmt.Errorf("%w: the state is at height %d, but CometBFT's databases beside it in %q are empty%s: put them back, or start over with `starlingd unsafe-reset-all`",
				ErrNoBlocks, meta.Height, o.DataDir, o.Hint)
		}
		// An interrupted join has left it, after the state was complete and before CometBFT was
		// told: no block follows it.
		if !o.KeepRestored {
			o.Logger.Info("Removing a state that no block belongs to: a join was interrupted", "height", meta.Height)
			if err := state.Reset(); err != nil {
				return nil, err
			}
		}
	}
	var (
		store        = treestore.Options{Zone: state, Logger: o.Logger.With("module", "storage"), Failed: o.Failed, Index: o.Config.State.Index}
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
	if !o.Config.Storage.StateInMemory {
		store.Cache = o.Cache
	}
	if records != nil {
		store.Undo = records
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
		OpenPin: trees.OpenPin, BlocksFrom: o.BlocksFrom,
	})
	trees.SetSnapshots(manager)
	for _, pin := range state.Pins() {
		manager.AddStored(pin.Height, pin.Data)
	}
	application.SetSnapshots(&snapshots{Manager: manager, app: application, state: state, known: interval > 0})
	var older *heights
	if records != nil {
		older = &heights{app: application, records: records, log: o.Logger.With("module", "heights"), largest: maxUndoChanges}
	}
	return &Application{
		App: application, heights: older, snapshots: manager, state: state, store: trees, cache: o.Cache, joined: joined,
		target: target, interval: interval, metrics: syncMetrics, events: log,
	}, nil
}

// forApp returns what does not depend on who keeps the state.
func (o ApplicationOptions) forApp(log *events.Log) (app.Options, error) {
	newest, err := buildinfo.NewestAppVersion()
	c := o.Config.State
	options := app.Options{
		Logger:     o.Logger.With("module", "app"),
		KeepRecent: c.KeepRecent, KeepRecentBytes: uint64(c.KeepRecentBytes), RetainBlocks: c.RetainBlocks,
		Version: buildinfo.Read().Starling, NewestVersion: newest,
	}
	if log != nil {
		options.Events = log
	}
	if !o.SerialQueries {
		options.WatchWait = watchWait
	}
	return options, err
}

// Target is where a join writes the state, and where it resumes.
func (a *Application) Target() fastsync.Target { return a.target }

// Snapshots returns the manager that serves the pinned states.
func (a *Application) Snapshots() *statesync.Manager { return a.snapshots }

// joinState is the application in the form that package join uses.
type joinState struct{ *Application }

var _ join.State = joinState{}

func (s joinState) Stored() (storage.Meta, bool) { return s.state.Meta() }
func (s joinState) Paged() bool                  { return s.store.Paged() }
func (s joinState) Replace()                     { s.target.Replace() }
func (s joinState) SnapshotInterval() int64      { return s.interval }

// StopJoining ends a restore, so that no snapshot call waits any longer, and the settling of a
// state that was joined, so that no Commit waits for it; or all waiting for storage nodes. No
// snapshot is served afterwards.
func (a *Application) StopJoining() error {
	if a.events != nil {
		a.events.Stop()
	}
	err := a.snapshots.Close()
	if a.sharded != nil {
		a.App.Stop()
	} else {
		a.state.StopSettling()
	}
	return err
}

// Close makes durable what waits and closes the state zone. No call may be in progress. If a state
// that was joined is not settled yet, the blocks since then are executed again at the next start,
// as after a kill.
func (a *Application) Close() error {
	if a.sharded != nil {
		return errors.Join(a.snapshots.Close(), a.sharded.source.Close(), closeEvents(a.events))
	}
	a.stopScrub()
	errs := []error{a.snapshots.Close(), a.state.Close()}
	if a.heights != nil {
		errs = append(errs, closeUndo(a.heights.records))
	}
	return errors.Join(append(errs, closeEvents(a.events))...)
}

// snapshots is the Manager, which takes the snapshot interval from the first state if there is no
// genesis file. It tells the state zone which states need not be kept any more.
type snapshots struct {
	*statesync.Manager
	app   *app.App
	state *storage.Zone
	known bool // used by Committed only, whose calls follow one another
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
