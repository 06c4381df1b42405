package app

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/cometbft/cometbft/libs/log"

	"github.com/starling-kv/starling/avlstar"
)

// Store keeps the state durably. The application calls it from one goroutine at a time.
type Store interface {
	// Load returns the state that was committed last: height 0 and nil where there is none.
	Load() (height int64, v *avlstar.Version, err error)

	// Commit makes v the state at height. When it returns nil, all of it is durable, after an error nothing or all of it. base is
	// the version before and changes what differs from it, in ascending key order; base is nil at the first commit, which carries
	// every key. After an error the application goes on no further: the node must stop.
	Commit(height int64, v, base *avlstar.Version, changes []avlstar.Change) error
}

// Snapshots offers and receives snapshots (package statesync). The last four are those of abci.Application. All methods may be
// called at any time, concurrently, and without a lock of the application being held.
type Snapshots interface {
	// Committed tells of every committed version, in ascending order of height. It must not block.
	Committed(height int64, v *avlstar.Version)
	// OldestServed returns the lowest height of a snapshot that is offered, whose blocks must be kept; 0: none.
	OldestServed() int64
	// Offered describes the snapshots that are offered, newest first. Unlike ListSnapshots it is no joiner's question.
	Offered() []SnapshotInfo

	ListSnapshots(context.Context, *abci.RequestListSnapshots) (*abci.ResponseListSnapshots, error)
	OfferSnapshot(context.Context, *abci.RequestOfferSnapshot) (*abci.ResponseOfferSnapshot, error)
	LoadSnapshotChunk(context.Context, *abci.RequestLoadSnapshotChunk) (*abci.ResponseLoadSnapshotChunk, error)
	ApplySnapshotChunk(context.Context, *abci.RequestApplySnapshotChunk) (*abci.ResponseApplySnapshotChunk, error)
}

// Options configure an App.
type Options struct {
	Logger       log.Logger // default: none
	Store        Store      // required
	ChainID      string     // refuse the state of another chain; empty: not known
	KeepRecent   int        // how many committed versions answer queries; 1 at least
	RetainBlocks int64      // how many blocks CometBFT keeps; 0: all
	Version      string     // of the program, for Info
	Metrics      *Metrics   // default: none
}

// App is the application. Its methods may be called concurrently; none that reads waits for a block in the making.
type App struct {
	abci.BaseApplication // what Starling does not use: vote extensions, the application's own mempool

	options   Options
	logger    log.Logger
	decoder   decoder
	snapshots atomic.Pointer[Snapshots]
	published atomic.Pointer[published]
	check     checker

	// block is the state machine, which goes from block to block.
	block struct {
		sync.Mutex
		height   int64            // committed; 0: none yet
		initial  int64            // height of the first block, known from InitChain
		version  *avlstar.Version // after block height, or of genesis; nil before InitChain
		params   *Params          // of version
		pending  *pending         // a finalized block that is not committed yet
		failures error            // a failed commit: nothing goes on after it
	}
}

var _ abci.Application = (*App)(nil)

// published is what queries see. It is never changed, only replaced.
type published struct {
	height  int64
	version *avlstar.Version // nil: no block is committed
	recent  []committed      // ascending, the last is (height, version)
}

type committed struct {
	height  int64
	version *avlstar.Version
}

// ErrOtherChain says that the stored state belongs to another chain than the one that is asked for.
var ErrOtherChain = errors.New("the state belongs to another chain")

// New makes an application that goes on from what the store holds.
func New(options Options) (*App, error) {
	if options.Store == nil {
		return nil, errors.New("app: no store")
	}
	options.KeepRecent = max(options.KeepRecent, 1)
	if options.Logger == nil {
		options.Logger = log.NewNopLogger()
	}
	if options.Metrics == nil {
		options.Metrics = NopMetrics()
	}
	a := &App{options: options, logger: options.Logger}
	a.published.Store(&published{})
	height, v, err := options.Store.Load()
	if err != nil {
		return nil, fmt.Errorf("load the state: %w", err)
	}
	if height == 0 {
		return a, nil
	}
	if err := a.adopt(height, v); err != nil {
		return nil, err
	}
	a.logger.Info("loaded the state", "height", height, "app_hash", v.AppHash(), "keys", v.Len(), "chunks", v.NumChunks())
	return a, nil
}

// adopt makes a durable state the one to go on from.
func (a *App) adopt(height int64, v *avlstar.Version) error {
	if height < 1 || v == nil {
		return fmt.Errorf("a state at height %d cannot be gone on from", height)
	}
	params, err := ReadParams(v)
	if err != nil {
		return err
	}
	if want := a.options.ChainID; want != "" && params.ChainId != want {
		return fmt.Errorf("%w: it is of %q, genesis says %q: use another home folder or the genesis file that belongs to it",
			ErrOtherChain, params.ChainId, want)
	}
	a.block.Lock()
	defer a.block.Unlock()
	if a.block.height > 0 {
		return fmt.Errorf("there is a state already, at height %d", a.block.height)
	}
	a.block.height, a.block.version, a.block.params, a.block.pending = height, v, &params, nil
	a.publish(nil, false)
	return nil
}

// publish shows the committed state to queries and CheckTx. block is locked. The arguments are those of checker.reset.
func (a *App) publish(rewritten map[[32]byte]struct{}, sameRights bool) {
	height, v := a.block.height, a.block.version
	old := a.published.Load()
	keep := old.recent[max(0, len(old.recent)-a.options.KeepRecent+1):]
	recent := append(make([]committed, 0, len(keep)+1), keep...)
	recent = append(recent, committed{height, v})
	a.published.Store(&published{height: height, version: v, recent: recent})
	a.check.reset(v, a.block.params, rewritten, sameRights)
	a.options.Metrics.committed(height, v)
}

// SetSnapshots connects the snapshots, once, before the first block. They are told of the state that is there.
func (a *App) SetSnapshots(s Snapshots) {
	a.snapshots.Store(&s)
	if p := a.published.Load(); p.version != nil {
		s.Committed(p.height, p.version)
	}
}

// Restored makes a complete, verified and durable state that came as a snapshot the one to go on from. It is for an application
// that has none. Snapshots.Committed is not called for it.
func (a *App) Restored(height int64, v *avlstar.Version) error {
	if err := a.adopt(height, v); err != nil {
		return fmt.Errorf("restored state: %w", err)
	}
	a.logger.Info("restored the state", "height", height, "app_hash", v.AppHash(), "keys", v.Len(), "chunks", v.NumChunks())
	return nil
}

// Forget drops a restored state that no block was executed on, so that another one can be restored: the join was interrupted
// before CometBFT knew of it. The caller removes it from the store.
func (a *App) Forget() {
	a.block.Lock()
	defer a.block.Unlock()
	a.block.height, a.block.version, a.block.params, a.block.pending = 0, nil, nil, nil
	a.published.Store(&published{})
	a.check.reset(nil, nil, nil, false)
}

// Latest returns the state that was committed last: height 0 and nil where there is none.
func (a *App) Latest() (height int64, v *avlstar.Version) {
	p := a.published.Load()
	return p.height, p.version
}

// Info tells CometBFT from where to replay blocks. It is answered from what is durable.
func (a *App) Info(context.Context, *abci.RequestInfo) (*abci.ResponseInfo, error) {
	info := &abci.ResponseInfo{Data: "starling", Version: a.options.Version, AppVersion: AppVersion}
	if height, v := a.Latest(); v != nil {
		hash := v.AppHash()
		info.LastBlockHeight, info.LastBlockAppHash = height, hash[:]
	}
	return info, nil
}
