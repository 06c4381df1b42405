package comet

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/consensus"
	"github.com/cometbft/cometbft/evidence"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/mempool"
	cometnode "github.com/cometbft/cometbft/node"
	"github.com/cometbft/cometbft/proxy"
	sm "github.com/cometbft/cometbft/state"
	"github.com/cometbft/cometbft/state/indexer"
	indexers "github.com/cometbft/cometbft/state/indexer/block"
	"github.com/cometbft/cometbft/state/txindex"
	"github.com/cometbft/cometbft/store"
	cmttypes "github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/disk"
	"github.com/starling-kv/starling/statesync/catchup"
)

// ErrInvalid: a block that the validators have signed cannot be executed here. CometBFT rejects it
// as well, and logs the reason.
var ErrInvalid = errors.New("a block that the validators have signed is not valid")

// ErrExtensions: the chain has vote extensions, which a validator needs to propose. They are not
// fetched over the transport.
var ErrExtensions = errors.New("blocks with vote extensions are left to CometBFT's block sync")

// Executor checks, saves and executes blocks before CometBFT starts, using CometBFT's own
// components in the order of its block sync (v0.40.0, blocksync/reactor.go, poolRoutine):
//
//	VerifyCommit ──► ValidateBlock ──► SaveBlock ──► ApplyVerifiedBlock ──► index
//
// SaveBlock syncs; what follows is durable with the next block (provideCovered). A kill between any
// two steps has the same effect as in block sync: the handshake of the next start executes a saved
// block. ApplyVerifiedBlock handles the retain height, validator changes, evidence and the last
// block (Halter).
type Executor struct {
	i        *Instance
	app      proxy.AppConns
	blocks   *store.BlockStore
	states   sm.Store
	executor *sm.BlockExecutor
	state    sm.State
	height   atomic.Int64 // height of state; before the first block, the initial height minus one
	last     atomic.Pointer[time.Time]
	maxBytes atomic.Int64 // size limit of the next block with its commit
	// verified: the last commit of the next block was verified as the commit of the block before.
	verified bool
}

var _ catchup.Chain = (*Executor)(nil)

// Executor opens the chain as a new CometBFT does: the Handshaker replays the blocks that the
// application is missing. Close it before Make. The databases must be open.
func (i *Instance) Executor(ctx context.Context) (_ *Executor, err error) {
	defer i.guard(&err)
	if err := CheckHalt(i.o.Application.halt, i.o.Height()); err != nil {
		return nil, err
	}
	d := i.o.Databases
	stateDB, err := d.provideCovered(&cfg.DBContext{ID: "state", Config: i.o.Config})
	if err != nil {
		return nil, err
	}
	genesis := func() (*cmttypes.GenesisDoc, error) { return i.o.Genesis, nil }
	state, doc, err := cometnode.LoadStateFromDBOrGenesisDocProvider(stateDB, genesis)
	if err != nil {
		return nil, err
	}
	if err := config.SameGenesis(i.o.Genesis, doc); err != nil {
		return nil, err
	}
	e := &Executor{i: i, states: d.states(stateDB)}
	if e.blocks, err = d.Blocks(); err != nil {
		return nil, err
	}
	evidenceDB, err := d.provideCovered(&cfg.DBContext{ID: "evidence", Config: i.o.Config})
	if err != nil {
		return nil, err
	}
	_, _, _, smMetrics, proxyMetrics, _, _ := i.metrics(doc.ChainID) //nolint:dogsled // CometBFT's signature
	e.app = proxy.NewAppConns(clientCreator{i.o.Application}, proxyMetrics)
	if err := e.app.Start(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.Close())
		}
	}()
	events, err := newIndex(i.o, doc.ChainID)
	if err != nil {
		return nil, err
	}
	handshaker := consensus.NewHandshaker(e.states, state, e.blocks, doc)
	handshaker.SetLogger(i.o.Logger.With("module", "consensus"))
	handshaker.SetEventBus(events)
	err = handshaker.HandshakeWithContext(ctx, e.app)
	if cause := i.o.Application.cause(); cause != nil {
		return nil, cause
	}
	if err != nil {
		return nil, fmt.Errorf("handshake: %w", err)
	}
	if state, err = e.states.Load(); err != nil {
		return nil, err
	}
	e.set(state)
	pool, err := evidence.NewPool(evidenceDB, e.states, e.blocks)
	if err != nil {
		return nil, err
	}
	pool.SetLogger(i.o.Logger.With("module", "evidence"))
	// Blocks are executed by the hundred: their log lines would bury all others.
	e.executor = sm.NewBlockExecutor(e.states, onlyErrors{i.o.Logger.With("module", "state")}, e.app.Consensus(), &mempool.NopMempool{}, pool, e.blocks,
		sm.BlockExecutorWithMetrics(smMetrics), sm.BlockExecutorWithBlockTimeTolerance(i.o.Config.Consensus.BlockTimeTolerance))
	e.executor.SetEventBus(events)
	return e, nil
}

// guard turns a panic of CometBFT, caused by inconsistent data or a failed write, into an error.
func (i *Instance) guard(err *error) {
	if cause := recover(); cause != nil {
		*err = fmt.Errorf("CometBFT's data in %q: %w", i.o.Config.DBDir(), Panicked(cause))
	}
	if disk.IsFull(*err) && !errors.Is(*err, disk.ErrFull) {
		*err = fmt.Errorf("%w: %w", disk.ErrFull, *err)
	}
}

// Height implements catchup.Chain.
func (e *Executor) Height() int64 { return e.height.Load() }

// set makes a state the current one.
func (e *Executor) set(state sm.State) {
	e.state = state
	height, last := state.LastBlockHeight, state.LastBlockTime
	if height == 0 {
		height, last = state.InitialHeight-1, time.Time{}
	}
	limit := state.ConsensusParams.Block.MaxBytes
	if limit < 0 {
		limit = cmttypes.MaxBlockSizeBytes
	}
	limit += cmttypes.MaxOverheadForBlock + cmttypes.MaxCommitBytes(state.Validators.Size())
	e.maxBytes.Store(min(limit, catchup.MaxBytes))
	e.last.Store(&last)
	e.height.Store(height)
}

// Time implements catchup.Chain.
func (e *Executor) Time() time.Time { return *e.last.Load() }

// MaxBlockBytes implements catchup.Chain.
func (e *Executor) MaxBlockBytes() int64 { return e.maxBytes.Load() }

// Apply implements catchup.Chain.
func (e *Executor) Apply(ctx context.Context, b catchup.Block) (err error) {
	defer e.i.guard(&err)
	if err := ctx.Err(); err != nil {
		return err
	}
	if e.state.ConsensusParams.ABCI.VoteExtensionsEnabled(b.Height) {
		return fmt.Errorf("%w: block %d", ErrExtensions, b.Height)
	}
	if err := e.state.Validators.VerifyCommit(e.state.ChainID, b.ID, b.Height, b.Commit); err != nil {
		return fmt.Errorf("%w: block %d: %w", catchup.ErrUnsigned, b.Height, err)
	}
	// The first block's last commit has not been verified yet.
	validate := e.executor.ValidateBlock
	if e.verified {
		validate = e.executor.ValidateBlockSkipLastCommit
	}
	if err := validate(e.state, b.Block); err != nil {
		return fmt.Errorf("%w: block %d: %w", ErrInvalid, b.Height, err)
	}
	e.blocks.SaveBlock(b.Block, b.Parts, b.Commit)
	first := e.state.LastBlockHeight == 0
	state, err := e.executor.ApplyVerifiedBlock(e.state, b.ID, b.Block)
	if err == nil && first {
		// With an initial height above 1, the handshake refuses the first block without its state.
		err = e.i.o.Databases.Sync()
	}
	if err == nil {
		e.set(state)
		e.verified = true
	}
	if cause := e.i.o.Application.cause(); cause != nil { // this block may be the last one
		return cause
	}
	if err != nil {
		return fmt.Errorf("block %d: %w", b.Height, err)
	}
	return nil
}

// Close ends the connections to the application. The databases stay open.
func (e *Executor) Close() error { return e.app.Stop() }

// onlyErrors suppresses all log lines except errors.
type onlyErrors struct{ log.Logger }

func (l onlyErrors) With(keyvals ...any) log.Logger { return onlyErrors{l.Logger.With(keyvals...)} }
func (onlyErrors) Info(string, ...any)              {}

// index adds the events of a block to CometBFT's indexes before the next block is executed.
// CometBFT's own IndexerService does so in a goroutine that cannot be waited for.
type index struct {
	cmttypes.NopEventBus
	log    log.Logger
	txs    txindex.TxIndexer
	blocks indexer.BlockIndexer
	batch  *txindex.Batch // of the block whose transactions follow; nil: none
	left   int64          // number of transactions still to come
}

// newIndex opens the indexes that config.toml names ([tx_index]).
func newIndex(o Options, chainID string) (cmttypes.BlockEventPublisher, error) {
	txs, blocks, none, err := indexers.IndexerFromConfigWithDisabledIndexers(o.Config, o.Databases.provideCovered, chainID)
	if err != nil || none {
		return cmttypes.NopEventBus{}, err
	}
	logger := o.Logger.With("module", "txindex")
	txs.SetLogger(logger)
	blocks.SetLogger(logger)
	return &index{log: logger, txs: txs, blocks: blocks}, nil
}

// PublishEventNewBlockEvents implements types.BlockEventPublisher. It is called before the
// transactions of its block (state/execution.go, fireEvents).
func (x *index) PublishEventNewBlockEvents(data cmttypes.EventDataNewBlockEvents) error {
	if err := x.blocks.Index(data); err != nil {
		x.log.Error("failed to index block", "height", data.Height, "err", err) // as CometBFT does
	}
	x.batch, x.left = txindex.NewBatch(data.NumTxs), data.NumTxs
	return x.flush()
}

// PublishEventTx implements types.BlockEventPublisher.
func (x *index) PublishEventTx(data cmttypes.EventDataTx) error {
	if x.batch == nil {
		return errors.New("a transaction outside of a block")
	}
	x.left--
	return errors.Join(x.batch.Add(&data.TxResult), x.flush())
}

// flush writes a block's transactions once they are complete.
func (x *index) flush() error {
	if x.left > 0 {
		return nil
	}
	batch := x.batch
	x.batch = nil
	if len(batch.Ops) == 0 {
		return nil
	}
	if err := x.txs.AddBatch(batch); err != nil {
		x.log.Error("failed to index block txs", "err", err)
	}
	return nil
}
