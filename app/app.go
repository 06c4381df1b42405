package app

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/cometbft/cometbft/libs/log"

	"github.com/starling-kv/starling/app/program"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/slots"
	"github.com/starling-kv/starling/tx"
)

// Store keeps the state. The application calls Load and Commit from one goroutine at a time, and
// Durable at any time.
//
// Versions count their references (avlstar.Version). The whole program follows one rule of
// ownership: a version passed as an argument is valid during the call, and a callee that keeps it
// longer retains it; a version that is returned comes with a reference, which the caller releases.
type Store interface {
	// Load returns the durable state, which the caller releases: height 0 and nil if there is none.
	Load() (height int64, v *avlstar.Version, err error)

	// Commit hands over the block that made v the state at height. The block becomes durable later,
	// in order of height, completely or not at all: see Durable. Commit may block while the backlog
	// is at its maximum. base is the version before v, and changes are the differences from it, in
	// ascending key order. Their keys and values are never modified, so the store may keep them. In
	// the first commit base is nil, and changes contains every key; then they are valid only while
	// v is retained. With Options.Source base is never nil: before the first block, it is the
	// genesis state, which nodes that keep the state compute themselves. The store retains v and
	// base for as long as it needs them. After an error, which may concern an earlier block, the
	// application commits nothing more, and the node must stop.
	Commit(height int64, v, base *avlstar.Version, changes []avlstar.Change) error

	// Durable returns the height of the state that a restart would load, or 0 if there is none. It
	// never decreases. Later blocks exist only in CometBFT's block store, which must keep them:
	// CometBFT executes them again after a restart.
	Durable() int64
}

// Snapshots offers and receives snapshots (package statesync). The last four methods are those of
// abci.Application. All methods may be called concurrently and at any time; the application holds
// none of its locks while it calls them.
type Snapshots interface {
	// Committed reports a committed version; heights ascend. The implementation must retain v if it
	// keeps it, and must not block.
	Committed(height int64, v *avlstar.Version)
	// OldestServed returns the lowest height of the offered snapshots, or 0 if there is none.
	// CometBFT must keep the blocks from there on.
	OldestServed() int64
	// Offered describes the offered snapshots, newest first. Unlike ListSnapshots, it is not
	// counted as a request of a joining node.
	Offered() []SnapshotInfo

	ListSnapshots(context.Context, *abci.RequestListSnapshots) (*abci.ResponseListSnapshots, error)
	OfferSnapshot(context.Context, *abci.RequestOfferSnapshot) (*abci.ResponseOfferSnapshot, error)
	LoadSnapshotChunk(context.Context, *abci.RequestLoadSnapshotChunk) (*abci.ResponseLoadSnapshotChunk, error)
	ApplySnapshotChunk(context.Context, *abci.RequestApplySnapshotChunk) (*abci.ResponseApplySnapshotChunk, error)
}

// Options configure an App.
type Options struct {
	Logger  log.Logger // default: none
	Store   Store      // required
	ChainID string     // if set, the state of another chain is refused
	// KeepRecent is the number of committed versions that can be queried, at least 1. With a
	// Source, it must be greater than Retention.Window.
	KeepRecent int
	// KeepRecentBytes limits the memory that these versions take in addition to the last one, by
	// keeping fewer of them. 0 means no limit. See drop.
	KeepRecentBytes uint64
	RetainBlocks    int64  // number of blocks that CometBFT keeps; 0: all
	Version         string // version of the program, for Info
	// Programs executes programs. If it is nil, only blocks of app version 1 are executed.
	Programs program.Engine
	// NewestVersion is the newest app version whose blocks are executed; 0 stands for the newest
	// that has rules. A version without rules of its own uses those of the newest, so that an
	// upgrade can be rehearsed before its rules exist.
	NewestVersion uint64
	// SerialQueries: while a query runs, CometBFT calls no other method.
	SerialQueries bool
	Metrics       *Metrics // default: none
	// Events receives the changes of blocks, for watchers. If it is nil, there are no watchers.
	Events Events
	// WatchWait limits the time for which a query waits for an event or a result. If it is 0, no
	// query waits.
	WatchWait time.Duration
	// Source fetches nodes that are missing in the tree, which then need not have the whole state.
	// If it is nil, the tree has the whole state.
	Source Source
	// Retention determines which nodes of such a tree stay in memory. Subtrees of KeepRecords
	// always stay. Those of PreferNonces, and the paths to the keys of transactions that were
	// checked lately, stay while the tree is within Retention.Budget.
	// Retention.Least must return the number of blocks that no other node has on disk yet.
	Retention avlstar.Retention
	// Edges returns the keys at which the state is divided; nil: it is not. Every version that
	// Commit hands over has the paths to those that were returned when its block began, even if
	// leaves next to them were deleted. Retention.Keep should keep these paths.
	Edges func() [][]byte
	// Life ends all waiting for the Source, as Stop does. If it is nil, only Stop does.
	Life context.Context //nolint:containedctx // it says how long the application lives
	// WitnessTimeout limits the time for which a proposal waits for the Source. It is multiplied by
	// the number of proposals seen at the height. The default is DefaultWitnessTimeout.
	WitnessTimeout time.Duration
	// WitnessBytes limits the bytes that a proposal fetches from the Source. It is multiplied by
	// the same number. The default is DefaultWitnessBytes.
	WitnessBytes int
	// BlockWitnessBytes limits the bytes that FinalizeBlock fetches from the Source for one block;
	// 0 means no limit. Above the limit the block fails with ErrBlockWitnesses, because a decided
	// block has no other result.
	BlockWitnessBytes int
	// ProposalTime limits the time that a proposer spends on executing its proposal. The default is
	// DefaultProposalTime.
	ProposalTime time.Duration
}

// DefaultProposalTime leaves most of timeout_propose, for which the other validators wait (3 s by
// default), for sending the proposal.
const DefaultProposalTime = time.Second

// App is the application. Its methods may be called concurrently. Methods that only read never wait
// for a block that is being executed.
type App struct {
	// Methods that Starling does not use: vote extensions, and an application mempool.
	abci.BaseApplication

	options     Options
	state       backing
	logger      log.Logger
	decoder     decoder
	snapshots   atomic.Pointer[Snapshots]
	published   atomic.Pointer[published]
	check       checker
	results     *results
	passed      passedOver
	leftOver    leftOver
	ahead       ahead
	expected    expectedKeys
	trees       *queryTrees
	witnesses   blockWitnesses
	queries     slots.Slots[string] // fetches of queries in progress, by client
	simulations chan struct{}       // one element for each simulation that runs
	life        context.Context     //nolint:containedctx // ends with Stop
	end         context.CancelFunc  // ends life

	// block is the state machine, which advances block by block.
	block struct {
		sync.Mutex
		height  int64 // committed; 0: none yet
		initial int64 // height of the first block, from InitChain
		// The version after block height, or of genesis; nil before InitChain. Holds a reference:
		// see replace.
		version  *avlstar.Version
		params   *Params  // of version
		pending  *pending // finalized and not yet committed: see giveUp
		failures error    // set when a commit failed: no block is executed any more
	}
	patience patience // guarded by block's lock
}

var _ abci.Application = (*App)(nil)

// published is the state that queries see. It is immutable. When it is replaced, versions that are
// not in the new one are released, so a version that was found here may no longer be valid: use
// acquire.
type published struct {
	height int64 // 0: no block is committed yet
	// In ascending order of height; the last one is that of height. Each holds a reference, which
	// passes from one published to the next.
	recent []committed
}

// committed is a version after a block. A function that returns one passes its reference to the
// caller.
type committed struct {
	height  int64
	version *avlstar.Version
}

// ErrOtherChain is returned if data belong to another chain, or to another genesis of it, than the
// requested one.
var ErrOtherChain = errors.New("data of another chain")

// New returns an application that resumes from the state in the store.
func New(options Options) (*App, error) {
	if options.Store == nil {
		return nil, errors.New("app: no store")
	}
	options.KeepRecent = max(options.KeepRecent, 1)
	if options.ProposalTime == 0 {
		options.ProposalTime = DefaultProposalTime
	}
	if options.Logger == nil {
		options.Logger = log.NewNopLogger()
	}
	if options.Metrics == nil {
		options.Metrics = NopMetrics()
	}
	if options.WitnessTimeout == 0 {
		options.WitnessTimeout = DefaultWitnessTimeout
	}
	if options.WitnessBytes == 0 {
		options.WitnessBytes = DefaultWitnessBytes
	}
	a := &App{
		options: options, logger: options.Logger, results: newResults(),
		trees: newQueryTrees(), simulations: make(chan struct{}, maxSimulations),
	}
	a.state = onDisk{a}
	if options.Source != nil {
		a.state = byWitness{a}
	}
	a.options.KeepRecent = a.state.keepRecent(options.KeepRecent)
	if options.Life == nil {
		options.Life = context.Background()
	}
	a.life, a.end = context.WithCancel(options.Life)
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
	a.logger.Info("loaded the state", "height", height, "app_hash", v.AppHash(), "keys", keysOf(v), "chunks", v.NumChunks())
	return a, nil
}

// keysOf returns the number of keys of v, for a log message.
func keysOf(v *avlstar.Version) any {
	if n, ok := v.Count(); ok {
		return n
	}
	return "unknown"
}

// adopt makes a state from the store the current one, and retains it.
func (a *App) adopt(height int64, v *avlstar.Version) error {
	if height < 1 || v == nil {
		return fmt.Errorf("a state at height %d cannot be resumed", height)
	}
	v, err := a.state.begin(height, v)
	if err != nil {
		return err
	}
	defer v.Release()
	params, err := ReadParams(v)
	if err != nil {
		return err
	}
	if want := a.options.ChainID; want != "" && params.ChainId != want {
		return fmt.Errorf("%w: the state is of chain %q, genesis names %q: use another home folder or the matching genesis file",
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
	if a.options.Events != nil {
		if err := a.options.Events.Begin(height); err != nil {
			return err
		}
	}
	v.Retain()
	a.state.adopted(v)
	a.replace(height, v, &params)
	a.publish(nil, false, nil)
	return nil
}

// replace makes v the current state and takes over a reference to it. It releases the previous
// state and drops a block that waits for its commit. The caller holds block's lock.
func (a *App) replace(height int64, v *avlstar.Version, params *Params) {
	a.giveUp()
	if a.block.version != nil {
		a.block.version.Release()
	}
	a.block.height, a.block.version, a.block.params = height, v, params
}

// publish shows the committed state to queries and to CheckTx. The caller holds block's lock. For
// the arguments see checker.reset.
func (a *App) publish(rewritten map[[32]byte]struct{}, sameRights bool, included []decoded) {
	height, v := a.block.height, a.block.version
	v.Retain()
	old := a.published.Load().recent
	drop := a.options.drop(old)
	recent := append(make([]committed, 0, len(old)-drop+1), old[drop:]...)
	a.published.Store(&published{height: height, recent: append(recent, committed{height, v})})
	for _, c := range old[:drop] { // only after published was replaced: see acquire
		c.version.Release()
	}
	a.check.reset(v, a.block.params, rewritten, sameRights, included)
	a.ahead.committed()
	a.witnesses.committed()
	a.options.Metrics.committed(height, v)
	a.options.Metrics.Witness.Unchecked.Set(float64(a.check.numUnchecked()))
	a.options.Metrics.OldestHeight.Set(float64(a.Oldest()))
}

// drop returns the number of the oldest recent versions to drop when a new one is added: those
// beyond KeepRecent, or beyond KeepRecentBytes in total. A version holds the memory that the next
// one does not share with it, which is the cost of keeping the version. If an older version is
// still referenced (by a snapshot or a query), some of that memory stays in use for it instead: at
// most the size of that version's whole state.
func (o *Options) drop(recent []committed) int {
	held := uint64(0)
	for i := len(recent) - 1; i >= 0; i-- {
		// A block that changes nothing has the version of the block before.
		if i == len(recent)-1 || recent[i].version != recent[i+1].version {
			held += recent[i].version.HeldBytes()
		}
		if len(recent)-i >= o.KeepRecent || o.KeepRecentBytes > 0 && held > o.KeepRecentBytes {
			return i + 1
		}
	}
	return 0
}

// acquire returns the version after block height (0: the latest) if it is kept. The caller releases
// it.
func (a *App) acquire(height int64) (committed, *tx.Error) {
	for {
		c, refused := a.published.Load().at(height)
		if refused != nil || c.version.TryRetain() {
			return c, refused
		}
		// The version was released after it was found, so published has been replaced.
	}
}

// SetSnapshots connects the snapshots. It must be called at most once, before the first block. If
// there is a state already, it is reported to them. With Options.Source nothing is reported,
// because a version with missing nodes has neither a manifest nor chunks to offer.
func (a *App) SetSnapshots(s Snapshots) {
	a.snapshots.Store(&s)
	if !a.state.offers() {
		return
	}
	if height, v := a.Latest(); v != nil {
		defer v.Release()
		s.Committed(height, v)
	}
}

// Restored makes v the current state of an application that has none. v came from a snapshot, and
// is complete, verified and durable. The application retains v and applies the next block to it; no
// other code may apply changes to it. Snapshots.Committed is not called.
func (a *App) Restored(height int64, v *avlstar.Version) error {
	if err := a.adopt(height, v); err != nil {
		return fmt.Errorf("restored state: %w", err)
	}
	a.logger.Info("restored the state", "height", height, "app_hash", v.AppHash(), "keys", keysOf(v), "chunks", v.NumChunks())
	return nil
}

// Forget drops a restored state on which no block was executed, so that another can be restored. It
// is used when the join was interrupted before CometBFT knew the state. The caller removes the
// state from the store.
func (a *App) Forget() {
	a.block.Lock()
	defer a.block.Unlock()
	a.replace(0, nil, nil)
	for _, c := range a.published.Swap(&published{}).recent {
		c.version.Release()
	}
	a.check.reset(nil, nil, nil, false, nil)
}

// Latest returns the last committed state, which the caller releases. It returns height 0 and nil
// if there is none.
func (a *App) Latest() (height int64, v *avlstar.Version) {
	c, refused := a.acquire(0)
	if refused != nil {
		return 0, nil
	}
	return c.height, c.version
}

// Version returns the committed state after block height, if it is kept, with a reference that the
// caller releases. With a Source, nodes may be missing in it, except those that its block needed.
func (a *App) Version(height int64) (v *avlstar.Version, ok bool) {
	if height <= 0 { // acquire takes 0 for the latest version
		return nil, false
	}
	c, refused := a.acquire(height)
	return c.version, refused == nil
}

// Height returns the height of the last committed block, 0 if there is none.
func (a *App) Height() int64 { return a.published.Load().height }

// Oldest returns the height of the oldest state that can be queried, or 0 if there is none.
func (a *App) Oldest() int64 {
	if recent := a.published.Load().recent; len(recent) > 0 {
		return recent[0].height
	}
	return 0
}

// Info tells CometBFT after which block to replay: the height of the state in memory, which after a
// start is the durable one.
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
