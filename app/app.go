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
	"github.com/starling-kv/starling/tx"
)

// Store keeps the state. The application calls Load and Commit from one goroutine at a time, Durable at any time.
//
// Versions are counted references (avlstar.Version), and one rule says whose they are, here and everywhere in this program: a version
// that is passed as an argument is valid during the call, and who keeps it longer retains it; one that is returned comes with a
// reference, which the caller releases.
type Store interface {
	// Load returns the state that is durable, which the caller releases: height 0 and nil where there is none.
	Load() (height int64, v *avlstar.Version, err error)

	// Commit hands over the block that made v the state at height. What it writes becomes durable later, block after block in order, each
	// whole or not at all: see Durable. It may wait where too much is waiting already. base is the version before and changes
	// what differs from it, in ascending key order; base is nil at the first commit, which carries every key. The store retains v
	// and base as long as it needs them, and may keep changes: nobody changes their keys and values, which are valid as long as v is
	// retained. After an error, also one of an earlier block, the application goes on no further: the node must stop.
	Commit(height int64, v, base *avlstar.Version, changes []avlstar.Change) error

	// Durable returns the height of the state that a restart comes back to, 0 where there is none. It never falls. The blocks since
	// are the only witness of what came after it: CometBFT executes them again.
	Durable() int64
}

// Snapshots offers and receives snapshots (package statesync). The last four are those of abci.Application. All methods may be
// called at any time, concurrently, and without a lock of the application being held.
type Snapshots interface {
	// Committed tells of every committed version, in ascending order of height. It retains v where it keeps it. It must not block.
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
	// NewestVersion is the newest app version whose blocks are executed, 0: NewestVersion(). A version that no rules exist for has those of
	// the newest: so an upgrade can be rehearsed before there is one.
	NewestVersion uint64
	Metrics       *Metrics // default: none
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
		version  *avlstar.Version // after block height, or of genesis; nil before InitChain; holds a reference (see replace)
		params   *Params          // of version
		pending  *pending         // a finalized block that is not committed yet (see giveUp)
		failures error            // a failed commit: nothing goes on after it
	}
}

var _ abci.Application = (*App)(nil)

// published is what queries see. It is never changed, only replaced; then what the new one has not is released. So who found a
// version here may be too late for it: acquire.
type published struct {
	height int64       // 0: no block is committed
	recent []committed // ascending, the last is of height; each holds a reference, which goes from one published to the next
}

// committed is a version after a block. Where it is a result, its reference belongs to the caller.
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
	defer v.Release()
	if err := a.adopt(height, v); err != nil {
		return nil, err
	}
	a.logger.Info("loaded the state", "height", height, "app_hash", v.AppHash(), "keys", v.Len(), "chunks", v.NumChunks())
	return a, nil
}

// adopt makes a state of the store the one to go on from, and retains it.
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
	if err := a.mayExecute(v, &params); err != nil {
		return err
	}
	a.block.Lock()
	defer a.block.Unlock()
	if a.block.height > 0 {
		return fmt.Errorf("there is a state already, at height %d", a.block.height)
	}
	v.Retain()
	a.replace(height, v, &params)
	a.publish(nil, false)
	return nil
}

// replace makes v the state to go on from and takes over a reference to it. The state before is released, and a block that waits for
// its commit is given up. block is locked.
func (a *App) replace(height int64, v *avlstar.Version, params *Params) {
	a.giveUp()
	if a.block.version != nil {
		a.block.version.Release()
	}
	a.block.height, a.block.version, a.block.params = height, v, params
}

// publish shows the committed state to queries and CheckTx. block is locked. The arguments are those of checker.reset.
func (a *App) publish(rewritten map[[32]byte]struct{}, sameRights bool) {
	height, v := a.block.height, a.block.version
	v.Retain()
	old := a.published.Load().recent
	drop := max(0, len(old)-a.options.KeepRecent+1)
	recent := append(make([]committed, 0, len(old)-drop+1), old[drop:]...)
	a.published.Store(&published{height: height, recent: append(recent, committed{height, v})})
	for _, c := range old[:drop] { // not before they are out of published: see acquire
		c.version.Release()
	}
	a.check.reset(v, a.block.params, rewritten, sameRights)
	a.options.Metrics.committed(height, v)
}

// acquire finds the version after block height (0: the last one) among those kept. The caller releases it.
func (a *App) acquire(height int64) (committed, *tx.Error) {
	for {
		c, refused := a.published.Load().at(height)
		if refused != nil || c.version.TryRetain() {
			return c, refused
		}
		// It was released since it was found, so published is another one by now.
	}
}

// SetSnapshots connects the snapshots, once, before the first block. They are told of the state that is there.
func (a *App) SetSnapshots(s Snapshots) {
	a.snapshots.Store(&s)
	if height, v := a.Latest(); v != nil {
		defer v.Release()
		s.Committed(height, v)
	}
}

// Restored makes a complete, verified and durable state that came as a snapshot the one to go on from. It is for an application
// that has none. The application retains v, and applies the next block to it: nobody else may. Snapshots.Committed is not called.
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
	a.replace(0, nil, nil)
	for _, c := range a.published.Swap(&published{}).recent {
		c.version.Release()
	}
	a.check.reset(nil, nil, nil, false)
}

// Latest returns the state that was committed last, which the caller releases: height 0 and nil where there is none.
func (a *App) Latest() (height int64, v *avlstar.Version) {
	c, refused := a.acquire(0)
	if refused != nil {
		return 0, nil
	}
	return c.height, c.version
}

// Height returns the height of the block that was committed last, 0 where there is none.
func (a *App) Height() int64 { return a.published.Load().height }

// Oldest returns the height of the oldest state that queries are answered from, 0 where there is none.
func (a *App) Oldest() int64 {
	if recent := a.published.Load().recent; len(recent) > 0 {
		return recent[0].height
	}
	return 0
}

// Info tells CometBFT from where to replay blocks: after the state in memory, which after a start is the one that was durable.
func (a *App) Info(context.Context, *abci.RequestInfo) (*abci.ResponseInfo, error) {
	info := &abci.ResponseInfo{Data: "starling", Version: a.options.Version, AppVersion: GenesisVersion}
	if height, v := a.Latest(); v != nil {
		defer v.Release()
		params, err := ReadParams(v)
		if err != nil {
			return nil, err
		}
		hash := v.AppHash()
		info.LastBlockHeight, info.LastBlockAppHash, info.AppVersion = height, hash[:], params.AppVersion
	}
	return info, nil
}
