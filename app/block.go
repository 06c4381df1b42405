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

// block contains all inputs of an execution except the state before the block.
type block struct {
	height int64
	time   uint64 // in Unix seconds; 0 in versions whose results do not depend on it
	txs    [][]byte
	signed [][]byte // see lastSigners
}

// pending is a block that was executed and waits for its commit.
type pending struct {
	block
	// Holds a reference, until commit passes it to App.block or giveUp releases it.
	version *avlstar.Version
	// edged says that version has paths to Options.Edges that are missing in applied.
	edged bool
	// applied is the result of Apply, if version is another version of the same state with more
	// nodes in memory. It then holds a reference.
	applied   *avlstar.Version
	params    *Params          // of version
	changes   []avlstar.Change // they refer to the transactions' bytes, not to a version
	res       *abci.ResponseFinalizeBlock
	events    events // for Options.Events
	rewritten map[[sha256.Size]byte]struct{}
	executed  []decoded // its transactions, with Options.Source; otherwise nil
}

var errNoGenesis = errors.New("there is no state yet: CometBFT calls InitChain first")

// FinalizeBlock executes a block on the committed state and computes the next state, which Commit
// saves and publishes. It may be called again before that, with the same block or another. The
// result depends only on the committed state, the transactions, the block's time, and the
// validators that signed the last block. With Options.Source it waits for missing nodes until ctx
// or Stop ends it: see App.witnessed.
func (a *App) FinalizeBlock(ctx context.Context, req *abci.RequestFinalizeBlock) (*abci.ResponseFinalizeBlock, error) {
	a.block.Lock()
	defer a.block.Unlock()
	if err := a.mayFinalize(req.Height); err != nil {
		return nil, err
	}
	return a.state.finalize(ctx, a.nextBlock(req.Height, req.Time, req.Txs, req.DecidedLastCommit))
}

// nextBlock returns the inputs of the block after the committed state. The caller holds block's
// lock.
func (a *App) nextBlock(height int64, t time.Time, txs [][]byte, last abci.CommitInfo) block {
	return block{height, a.rules(a.block.params).timeOf(t), txs, lastSigners(last)}
}

// timeOf returns a block's time for programs, in Unix seconds, or 0 if no result depends on it.
func (r *rules) timeOf(t time.Time) uint64 {
	if !r.timed {
		return 0
	}
	return uint64(max(t.Unix(), 0))
}

// mayFinalize returns an error unless the block at height is the next one and this program can
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

// execute executes a block on the committed state; txs are its transactions. The result has no
// version yet: see apply. If nodes may be missing in the state, needs records the missing ones, and
// the result is nil unless there are none. The caller holds block's lock.
func (a *App) execute(b block, txs []decoded, needs *needs) (*pending, error) {
	v, params := a.block.version, a.block.params
	x := a.newExecutor(newOverlay(v), params, b.height)
	x.signed, x.needs, x.time = b.signed, needs, b.time
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
			x.name(t.tx) // it may take another path when it is run again
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

// apply makes the version of an executed block. The block then waits for its commit, and replaces a
// block that was waiting. The caller holds block's lock.
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

// giveUp drops the finalized block that waits for its commit, if there is one, and releases its
// versions. The caller holds block's lock.
func (a *App) giveUp() {
	if p := a.block.pending; p != nil {
		p.version.Release()
		if p.applied != nil {
			p.applied.Release()
		}
		a.block.pending = nil
	}
}

// made returns the result of Apply, or version if paths to the edges are missing in that result.
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
			panic(err) // cannot happen: the memory has the computed size
		}
		res.Data = data
	}
	return res
}

// colonID is the hash of the form key:value of a text transaction. PrepareProposal writes key=value
// into the block. CometBFT does not find the other form there, so it would keep it in its mempool
// and propose it again forever. A recheck therefore refuses it by this id.
func colonID(t *tx.Text) [sha256.Size]byte {
	return sha256.Sum256(bytes.Join([][]byte{t.Key, t.Value}, []byte(":")))
}

// Commit hands the finalized block to the store, which makes it durable later, and publishes the
// new state. After a crash CometBFT executes the blocks again that were not durable, so it must
// keep them until then. An error stops the node.
func (a *App) Commit(context.Context, *abci.RequestCommit) (*abci.ResponseCommit, error) {
	height, v, err := a.commit()
	if err != nil {
		a.logger.Error("cannot save the state, the node must stop", "err", err)
		return nil, err
	}
	defer v.Release()
	var oldest int64
	if s := a.snapshots.Load(); s != nil {
		if a.state.offers() {
			(*s).Committed(height, v)
		}
		oldest = (*s).OldestServed()
	}
	return &abci.ResponseCommit{RetainHeight: retainHeight(height, a.options.RetainBlocks, oldest, a.options.Store.Durable())}, nil
}

// commit saves and publishes the finalized block. It returns the new state, which the caller
// releases.
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
	if a.block.height == 0 {
		base, changes, err = a.state.first(p)
	}
	start := time.Now()
	if err == nil {
		err = a.handOver(p)
	}
	if err == nil {
		err = a.options.Store.Commit(p.height, p.made(), base, changes)
	}
	if err != nil {
		a.block.failures = fmt.Errorf("save the state of block %d: %w (no data is lost: fix the cause and start the node again)", p.height, err)
		a.giveUp()
		return 0, nil, a.block.failures
	}
	a.options.Metrics.CommitSeconds.Observe(time.Since(start).Seconds())
	a.options.Metrics.executed(p.res.TxResults)
	if err := a.state.shed(p); err != nil {
		a.block.failures = fmt.Errorf("the state of block %d: %w", p.height, err)
		a.giveUp()
		return 0, nil, a.block.failures
	}
	a.block.pending = nil // its reference passes to replace
	if p.params.AppVersion != a.block.params.AppVersion {
		a.logger.Info("the app version changes with the next block", "after", p.height, "version", p.params.AppVersion)
	}
	a.replace(p.height, p.version, p.params)
	a.publish(p.rewritten, !changeRights(p.changes), p.executed)
	a.results.add(p.height, p.txs, p.res.TxResults)
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
		// These grant no right.
		case tagNonce, tagStrangers, tagValidator, tagUpgrade, tagProposal, tagProgram:
		default:
			return true
		}
	}
	return false
}

// everything lists a whole state as changes. Keys and values are memory of v: valid until v is
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

// retainHeight returns the lowest block that CometBFT must keep; 0 means all. A snapshot on offer
// needs the blocks from its height on. A restart needs the blocks after the durable state, and also
// the block of the durable state itself, for its validators.
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
