package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cometbft/cometbft/libs/log"
	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/fastsync"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/sgc"
)

// ErrNoBlocks: there is a state that blocks led to, but the blocks are gone.
var ErrNoBlocks = errors.New("the blocks are missing")

// ApplicationOptions say how to make an application.
type ApplicationOptions struct {
	DataDir string // where state zone and snapshots lie
	Config  AppConfig
	Logger  log.Logger
	Genesis *cmttypes.GenesisDoc // nil: parameters come with InitChain, or with the state
	Metrics prometheus.Registerer
	Failed  func(error) // told of a state that does not become durable, after which the node must stop
	Cache   *sgc.Cache  // shared with the block zone; nil: one of its own
	// NoBlocks: CometBFT has nothing that a state could go on from. Hint says why that may be.
	NoBlocks bool
	Hint     string
	// BlocksFrom is the first block that CometBFT has; 0: not known.
	BlocksFrom int64
	// KeepRestored: a restored state that no block belongs to is not removed, but gone on from by the next join.
	KeepRestored bool

	fs vfs.FS // of the state zone, nil: the operating system's
}

// Application is the ABCI application with its storage and state sync, for a node and for `starlingd abci`.
type Application struct {
	*app.App
	snapshots *statesync.Manager
	state     *storage.State
	cache     *sgc.Cache
	joined    *atomic.Int64 // height of the state that was restored; 0: none
	restoring *restoring
	// target is restoring, as package statesync sees it.
	target   fastsync.Target
	interval int64 // of snapshots, as the genesis file says; 0: not known
	metrics  *statesync.Metrics
}

// NewApplication opens the state zone, rebuilds the tree and wires the parts together. Close releases them.
func NewApplication(o ApplicationOptions) (*Application, error) {
	if o.Cache == nil {
		o.Cache = o.Config.Storage.newCache()
	}
	state, err := openState(o)
	if err != nil {
		return nil, err
	}
	a, err := wire(o, state)
	if err != nil {
		return nil, errors.Join(err, state.Close())
	}
	return a, nil
}

func openState(o ApplicationOptions) (*storage.State, error) {
	c := o.Config.Storage
	return storage.Open(StateDir(o.DataDir), storage.Options{
		FS: o.fs, Logger: o.Logger.With("module", "storage"), Failed: o.Failed, Fatal: endProcess,
		CacheBytes: c.databaseCache(), PinDir: SnapshotsDir(o.DataDir),
		FlushBlocks: c.FlushBlocks, FlushBytes: c.FlushBytes, FlushInterval: c.FlushInterval,
		MaxLagBlocks: c.MaxLagBlocks, MaxLagBytes: c.MaxLagBytes, Generations: !c.StateInMemory,
	})
}

// endProcess is for a database that can neither go on nor close: its log or its list of files could not be written. It has said so in
// the log. What was durable is there after a restart, and the blocks bring back the rest.
func endProcess(err error) {
	if IsDiskFull(err) {
		os.Exit(exitDiskFull)
	}
	os.Exit(1)
}

// exitDiskFull is starlingd's exit status for a full disk.
const exitDiskFull = 5

func wire(o ApplicationOptions, state *storage.State) (*Application, error) {
	if err := checkInterrupted(state); err != nil {
		return nil, err
	}
	if meta, ok := state.Meta(); ok && o.NoBlocks {
		if !meta.Restored {
			return nil, fmt.Errorf("%w: the state is at height %d, but CometBFT's databases beside it in %s are empty%s: put them back, or start over with `starlingd unsafe-reset-all`",
				ErrNoBlocks, meta.Height, o.DataDir, o.Hint)
		}
		// Left by a join that ended after the state was there and before CometBFT knew: no block leads on from it.
		if !o.KeepRestored {
			o.Logger.Info("Removing a state that no block belongs to: a join was interrupted", "height", meta.Height)
			if err := state.Reset(); err != nil {
				return nil, err
			}
		}
	}
	var (
		zone         = &stateZone{state: state, log: o.Logger.With("module", "storage"), failed: o.Failed}
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
		zone.chainID, interval = o.Genesis.ChainID, genesisState.SnapshotInterval
	}
	if o.Metrics != nil {
		appMetrics, syncMetrics = app.NewMetrics(o.Metrics), statesync.NewMetrics("starling", o.Metrics)
	}
	if !o.Config.Storage.StateInMemory {
		zone.pages = &pages{zone: state, cache: o.Cache, failed: o.Failed, log: zone.log}
	}
	newest, err := newestAppVersion()
	if err != nil {
		return nil, err
	}
	application, err := app.New(app.Options{
		Logger: o.Logger.With("module", "app"), Store: zone, ChainID: zone.chainID,
		KeepRecent: o.Config.State.KeepRecent, RetainBlocks: o.Config.State.RetainBlocks,
		Version: BuildVersions().Starling, NewestVersion: newest, Metrics: appMetrics,
	})
	if err != nil {
		return nil, err
	}
	joined := new(atomic.Int64)
	target := &restoring{zone: zone, app: application, done: joined.Store}
	var into fastsync.Target = target
	if zone.pages != nil {
		into = pagedRestoring{target}
	}
	manager := statesync.NewManager(statesync.Options{
		Logger: o.Logger.With("module", "snapshots"), Target: into,
		Interval: interval, Keep: o.Config.Snapshots.Keep, Metrics: syncMetrics,
		OpenPin: zone.openPin, BlocksFrom: o.BlocksFrom,
	})
	target.known = func(p app.Params) { manager.SetInterval(p.SnapshotInterval) }
	zone.snapshots = manager
	for _, pin := range state.Pins() {
		manager.AddStored(pin.Height, pin.Data)
	}
	application.SetSnapshots(&snapshots{Manager: manager, app: application, state: state, known: interval > 0})
	return &Application{
		App: application, snapshots: manager, state: state, cache: o.Cache, joined: joined,
		restoring: target, target: into, interval: interval, metrics: syncMetrics,
	}, nil
}

// Target is where a join puts the state of an application that has none, and where it resumes.
func (a *Application) Target() fastsync.Target { return a.target }

// Snapshots serves the states that are pinned.
func (a *Application) Snapshots() *statesync.Manager { return a.snapshots }

// paged says that not all of the state is in memory.
func (a *Application) paged() bool { return a.restoring.zone.pages != nil }

// StateDir is where the state zone of a home folder lies, given CometBFT's data folder.
func StateDir(dataDir string) string { return filepath.Join(dataDir, "state") }

// SnapshotsDir is where the snapshots of a home folder lie that survive a restart.
func SnapshotsDir(dataDir string) string { return filepath.Join(dataDir, "snapshots") }

// StopJoining ends a restore that is under way, so that no snapshot call waits any longer. No snapshot is served afterwards.
func (a *Application) StopJoining() error { return a.snapshots.Close() }

// Close makes durable what waits and releases the state zone. No call may be under way.
func (a *Application) Close() error { return errors.Join(a.snapshots.Close(), a.state.Close()) }

// snapshots is the Manager, which learns the snapshot interval from the first state it sees where no genesis file told it, and says
// what the state zone need not keep any more.
type snapshots struct {
	*statesync.Manager
	app   *app.App
	state *storage.State
	known bool // touched by Committed only, which comes in order
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
