package node

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"

	"github.com/cometbft/cometbft/libs/log"
	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/storage"
)

// ErrNoBlocks: there is a state that blocks led to, but the blocks are gone.
var ErrNoBlocks = errors.New("the blocks are missing")

// ApplicationOptions say how to make an application.
type ApplicationOptions struct {
	Dir     string // of the state zone
	Config  AppConfig
	Logger  log.Logger
	Genesis *cmttypes.GenesisDoc // nil: parameters come with InitChain, or with the state
	Metrics prometheus.Registerer
	Failed  func(error) // told of a commit that did not become durable, after which the node must stop
	// NoBlocks: CometBFT has nothing that a state could go on from.
	NoBlocks bool
}

// Application is the ABCI application with its storage and state sync, for a node and for `starlingd abci`.
type Application struct {
	*app.App
	snapshots *statesync.Manager
	state     *storage.State
	joined    *atomic.Int64 // height of the state that was restored; 0: none
}

// NewApplication opens the state zone, rebuilds the tree and wires the parts together. Close releases them.
func NewApplication(o ApplicationOptions) (*Application, error) {
	state, err := storage.Open(o.Dir, storage.Options{Logger: o.Logger.With("module", "storage")})
	if err != nil {
		return nil, err
	}
	a, err := wire(o, state)
	if err != nil {
		return nil, errors.Join(err, state.Close())
	}
	return a, nil
}

func wire(o ApplicationOptions, state *storage.State) (*Application, error) {
	if meta, ok := state.Meta(); ok && o.NoBlocks {
		if !meta.Restored {
			return nil, fmt.Errorf("%w: the state is at height %d, but CometBFT's databases beside it (blockstore.db, state.db) are empty: put them back, or start over with `starlingd unsafe-reset-all`", ErrNoBlocks, meta.Height)
		}
		// Left by a join that ended after the state was there and before CometBFT knew: no block leads on from it.
		o.Logger.Info("Removing a state that no block belongs to: a join was interrupted", "height", meta.Height)
		if err := state.Reset(); err != nil {
			return nil, err
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
	application, err := app.New(app.Options{
		Logger: o.Logger.With("module", "app"), Store: zone, ChainID: zone.chainID,
		KeepRecent: o.Config.State.KeepRecent, RetainBlocks: o.Config.State.RetainBlocks,
		Version: BuildVersions().Starling, Metrics: appMetrics,
	})
	if err != nil {
		return nil, err
	}
	joined := new(atomic.Int64)
	target := &restoring{zone: zone, app: application, done: joined.Store}
	manager := statesync.NewManager(statesync.Options{
		Logger: o.Logger.With("module", "snapshots"), Target: target,
		Interval: interval, Keep: o.Config.Snapshots.Keep, Metrics: syncMetrics,
	})
	target.known = func(p app.Params) { manager.SetInterval(p.SnapshotInterval) }
	application.SetSnapshots(&snapshots{Manager: manager, known: interval > 0})
	return &Application{App: application, snapshots: manager, state: state, joined: joined}, nil
}

// StateDir is where the state zone of a home folder lies, given CometBFT's data folder.
func StateDir(dataDir string) string { return filepath.Join(dataDir, "state") }

// StopJoining ends a restore that is under way, so that no snapshot call waits any longer. No snapshot is served afterwards.
func (a *Application) StopJoining() error { return a.snapshots.Close() }

// Close releases the state zone. No call may be under way.
func (a *Application) Close() error { return errors.Join(a.snapshots.Close(), a.state.Close()) }

// snapshots is the Manager, which learns the snapshot interval from the first state it sees where no genesis file told it.
type snapshots struct {
	*statesync.Manager
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
}
