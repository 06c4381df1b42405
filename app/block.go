package app

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/tx"
)

// block is what decides about the result of an execution, besides the state before it.
type block struct {
	height int64
	txs    [][]byte
	signed [][]byte // see lastSigners
}

// pending is a block that was executed and waits for its commit.
type pending struct {
	block
	// Holds a reference, until commit passes it to App.block or giveUp releases it.
	version *avlstar.Version
	// edged: of Options.Edges, made lacks ways that version has.
	edged bool
	// What Apply returned, if version is another one of the same state that has more in memory; it
	// holds a reference then.
	applied   *avlstar.Version
	params    *Params          // of version
	changes   []avlstar.Change // they refer to the transactions' bytes, not to a version
	res       *abci.ResponseFinalizeBlock
	events    events // for Options.Events
	rewritten map[[sha256.Size]byte]struct{}
	executed  []decoded // its transactions, with Options.Source; nil otherwise
}

var errNoGenesis = errors.New("there is no state yet: CometBFT calls InitChain first")

// FinalizeBlock executes a block on the committed state and computes the next state, which Commit
// saves and publishes. It may be called again before that, with the same block or another. The
// result depends on nothing but the committed state, the transactions and who signed the last
// block. With Options.Source it waits for what the tree lacks until ctx or Stop ends it: see
// App.witnessed.
func (a *App) FinalizeBlock(ctx context.Context, req *abci.RequestFinalizeBlock) (*abci.ResponseFinalizeBlock, error) {
	a.block.Lock()
	defer a.block.Unlock()
	if err := a.mayFinalize(req.Height); err != nil {
		return nil, err
	}
	b := block{req.Height, req.Txs, lastSigners(req.DecidedLastCommit)}
	if a.options.Source != nil {
		return a.finalizeWitnessed(ctx, b)
	}
	txs := a.decoder.decodeAll(b.txs, a.block.params.ChainId)
	defer a.block.version.ForgetAhead() // Apply needs the last of these pages
	done, err := execute(a.block.version, a.block.params, b, txs, nil)
	if err != nil {
		return nil, fmt.Errorf("block %d: %w", b.height, err)
	}
	if err := a.apply(done); err != nil {
		return nil, fmt.Errorf("block %d: %w", b.height, err)
	}
	return done.res, nil
}

// mayFinalize returns an error unless the block at height is the next one, and this program can
// execute it. The caller holds block's lock.
func (a *App) mayFinalize(height int64) error {
	if a.block.failures != nil {
		return a.block.failures
	}
	if a.block.version == nil {
		return errNoGenesis
	}
	if next := a.nextHeight(); height != next {
		return fmt.Errorf("block %d does not follow the state, which waits for block %d", height, next)
	}
	return a.mayExecute(a.block.version, a.block.params)
}

// nextHeight returns the height of the next block. The caller holds block's lock.
func (a *App) nextHeight() int64 {
	if a.block.height == 0 {
		return a.block.initial
	}
	return a.block.height + 1
}

// execute executes a block on v, whose parameters are params; txs are its transactions. The result
// has no version yet: see apply. If v lacks nodes, needs takes what was found to be lacking, and
// unless that is nothing there is no result.
func execute(v *avlstar.Version, params *Params, b block, txs []decoded, needs *needs) (*pending, error) {
	x := newExecutor(newOverlay(v), params, b.height)
	x.signed, x.needs = b.signed, needs
	done := &pending{block: b, params: params, rewritten: make(map[[sha256.Size]byte]struct{})}
	res := &abci.ResponseFinalizeBlock{TxResults: make([]*abci.ExecTxResult, len(txs))}
	x.ahead = lookahead{base: v, txs: txs}
	for i, t := range txs {
		x.ahead.tx = i
		if t.err != nil {
			res.TxResults[i] = execResult(outcome{err: t.err})
			continue
		}
		counted := x.validators
		ran, err := x.run(t.tx)
		switch {
		case x.lacks(err):
			x.validators = counted
			x.explore(t.tx)
			continue
		case err != nil:
			return nil, err
		case needs.lost() && ran.trace:
			x.name(t.tx) // it may take another way when it is run again
		}
		res.TxResults[i] = execResult(ran)
		done.events.collect(i, x.journal)
		x.keep(0)
		if t.tx.Text != nil {
			done.rewritten[colonID(t.tx.Text)] = struct{}{}
		}
	}

	next, err := x.beginUpgrade()
	if err != nil && !x.lacks(err) {
		return nil, err
	}
	if needs.lost() {
		return nil, nil
	}
	if next != nil {
		done.params = next
		res.ConsensusParamUpdates = versionUpdate(next.AppVersion)
	}
	done.changes = x.changes()
	res.ValidatorUpdates = x.validatorUpdates()
	done.res = res
	if needs != nil {
		done.executed = txs
	}
	return done, nil
}

// apply makes the version of an executed block, which then waits for its commit in the place of
// what waited before. The caller holds block's lock.
func (a *App) apply(done *pending) error {
	a.giveUp() // only the latest version of a tree can be changed
	v, err := a.block.version.Apply(done.changes)
	if err != nil {
		return err
	}
	hash := v.AppHash()
	done.version, done.res.AppHash = v, hash[:]
	a.block.pending = done
	return nil
}

// giveUp releases the finalized block that waits for its commit, if there is one. The caller holds
// block's lock.
func (a *App) giveUp() {
	if p := a.block.pending; p != nil {
		p.version.Release()
		if p.applied != nil {
			p.applied.Release()
		}
		a.block.pending = nil
	}
}

// made returns the version that Apply returned, or one with more that has the ways to the edges.
func (p *pending) made() *avlstar.Version {
	if p.applied != nil && !p.edged {
		return p.applied
	}
	return p.version
}

func execResult(o outcome) *abci.ExecTxResult {
	if o.err != nil {
		return &abci.ExecTxResult{Code: uint32(o.err.Code), Codespace: tx.Codespace, Log: o.err.Reason}
	}
	res := &abci.ExecTxResult{Events: o.events}
	if o.result != nil {
		data, err := o.result.Marshal()
		if err != nil {
			panic(err) // it writes into memory of the size that it computed
		}
		res.Data = data
	}
	return res
}

// colonID is the hash of the form key:value of a text transaction. PrepareProposal writes key=value
// into the block. CometBFT does not find the other form there, so it would keep that in its mempool
// and propose it again for ever: a recheck refuses it by this id.
func colonID(t *tx.Text) [sha256.Size]byte {
	return sha256.Sum256(bytes.Join([][]byte{t.Key, t.Value}, []byte(":")))
}

// Commit hands the finalized block to the store, which makes it durable later, and publishes the
// new state. After a crash CometBFT executes the blocks again that were not durable, so it must
// keep them until then. An error stops the node.
func (a *App) Commit(context.Context, *abci.RequestCommit) (*abci.ResponseCommit, error) {
	height, v, err := a.commit()
	if err != nil {
		a.logger.Error("the state cannot be saved, the node must stop", "err", err)
		return nil, err
	}
	defer v.Release()
	var oldest int64
	if s := a.snapshots.Load(); s != nil {
		if a.options.Source == nil { // see SetSnapshots
			(*s).Committed(height, v)
		}
		oldest = (*s).OldestServed()
	}
	return &abci.ResponseCommit{RetainHeight: retainHeight(height, a.options.RetainBlocks, oldest, a.options.Store.Durable())}, nil
}

// commit returns the new state, which the caller releases.
func (a *App) commit() (int64, *avlstar.Version, error) {
	a.block.Lock()
	defer a.block.Unlock()
	p := a.block.pending
	switch {
	case a.block.failures != nil:
		return 0, nil, a.block.failures
	case p == nil:
		return 0, nil, errors.New("commit without a finalized block")
	}
	var err error
	base, changes := a.block.version, p.changes
	if a.block.height == 0 && a.options.Source == nil {
		base = nil
		changes, err = everything(p.made())
	}
	start := time.Now()
	if err == nil {
		err = a.handOver(p)
	}
	if err == nil {
		err = a.options.Store.Commit(p.height, p.made(), base, changes)
	}
	if err != nil {
		a.block.failures = fmt.Errorf("save the state of block %d: %w (nothing is lost: once the cause is mended, start the node again)", p.height, err)
		a.giveUp()
		return 0, nil, a.block.failures
	}
	a.options.Metrics.CommitSeconds.Observe(time.Since(start).Seconds())
	a.options.Metrics.executed(p.res.TxResults)
	if a.options.Source != nil {
		if err := a.shed(p); err != nil {
			a.block.failures = fmt.Errorf("the state of block %d: %w", p.height, err)
			a.giveUp()
			return 0, nil, a.block.failures
		}
	}
	a.block.pending = nil // its reference passes to replace
	if p.params.AppVersion != a.block.params.AppVersion {
		a.logger.Info("the blocks from here on are of another app version", "after", p.height, "version", p.params.AppVersion)
	}
	a.replace(p.height, p.version, p.params)
	a.publish(p.rewritten, !changeRights(p.changes), p.executed)
	if a.options.Events != nil {
		a.options.Events.Committed(p.height)
	}
	p.version.Retain()
	return p.height, p.version, nil
}

// changeRights reports whether changes, in ascending key order, may alter what an account is
// allowed to do.
func changeRights(changes []avlstar.Change) bool {
	for _, c := range changes {
		if c.Key[0] != reserved {
			return false
		}
		switch c.Key[1] {
		case tagNonce, tagStrangers, tagValidator, tagUpgrade, tagProposal: // these grant no right
		default:
			return true
		}
	}
	return false
}

// everything lists a whole state as changes. Keys and values are v's own memory: valid until v is
// released.
func everything(v *avlstar.Version) ([]avlstar.Change, error) {
	n, _ := v.Count()
	changes := make([]avlstar.Change, 0, n)
	for kv, err := range v.Ascend(nil, nil) {
		if err != nil {
			return nil, err
		}
		changes = append(changes, avlstar.Change{Key: kv.Key, Value: kv.Value})
	}
	return changes, nil
}

// retainHeight returns the lowest block that CometBFT must keep, 0: all. A snapshot on offer needs
// the blocks from its height on. A restart needs those after the durable state, and also that of
// the durable state itself, for its validators.
func retainHeight(height, retainBlocks, oldestServed, durable int64) int64 {
	if retainBlocks <= 0 || height < retainBlocks {
		return 0
	}
	retain := min(height-retainBlocks+1, durable)
	if oldestServed > 0 {
		retain = min(retain, oldestServed)
	}
	return retain
}
