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

// pending is a block that was executed and waits for its commit.
type pending struct {
	height    int64
	version   *avlstar.Version // holds a reference, until commit hands it to App.block or giveUp releases it
	params    *Params          // of version
	changes   []avlstar.Change // refer to the transactions, not to a version
	results   []*abci.ExecTxResult
	rewritten map[[sha256.Size]byte]struct{}
}

var errNoGenesis = errors.New("there is no state yet: CometBFT calls InitChain first")

// FinalizeBlock executes a block on the committed state and computes the state after it, which Commit saves and makes visible.
// Until then it may be called again, with this block or another. It depends on the committed state and the transactions alone.
func (a *App) FinalizeBlock(_ context.Context, req *abci.RequestFinalizeBlock) (*abci.ResponseFinalizeBlock, error) {
	a.block.Lock()
	defer a.block.Unlock()
	if a.block.failures != nil {
		return nil, a.block.failures
	}
	if a.block.version == nil {
		return nil, errNoGenesis
	}
	next := a.block.height + 1
	if a.block.height == 0 {
		next = a.block.initial
	}
	if req.Height != next {
		return nil, fmt.Errorf("block %d does not follow the state, which waits for block %d", req.Height, next)
	}

	if err := a.mayExecute(a.block.version, a.block.params); err != nil {
		return nil, err
	}

	x := newExecutor(newOverlay(a.block.version), a.block.params, req.Height)
	done := &pending{height: req.Height, params: a.block.params, rewritten: make(map[[sha256.Size]byte]struct{})}
	res := &abci.ResponseFinalizeBlock{TxResults: make([]*abci.ExecTxResult, len(req.Txs))}
	for i, t := range a.decoder.decodeAll(req.Txs, a.block.params.ChainId) {
		if t.err != nil {
			res.TxResults[i] = execResult(outcome{err: t.err})
			continue
		}
		res.TxResults[i] = execResult(x.run(t.tx))
		x.keep(0)
		if t.tx.Text != nil {
			done.rewritten[colonID(t.tx.Text)] = struct{}{}
		}
	}

	if params := x.beginUpgrade(); params != nil {
		done.params = params
		res.ConsensusParamUpdates = versionUpdate(params.AppVersion)
	}
	done.changes = x.changes()
	err := a.block.version.Err() // what could not be read was taken for absent
	if err != nil {
		return nil, fmt.Errorf("block %d: %w", req.Height, err)
	}
	a.giveUp() // only the latest version of a tree can be changed
	if done.version, err = a.block.version.Apply(done.changes); err != nil {
		return nil, fmt.Errorf("block %d: %w", req.Height, err)
	}
	hash := done.version.AppHash()
	res.AppHash = hash[:]
	res.ValidatorUpdates = x.validatorUpdates()
	done.results = res.TxResults
	a.block.pending = done
	return res, nil
}

// giveUp releases the finalized block that waits for its commit, if there is one. block is locked.
func (a *App) giveUp() {
	if p := a.block.pending; p != nil {
		p.version.Release()
		a.block.pending = nil
	}
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

// colonID is the hash of the form key:value of a text transaction. PrepareProposal writes key=value into the block, so CometBFT
// does not find the other form in it and would keep that in its mempool and propose it for ever: recheck refuses it by this id.
func colonID(t *tx.Text) [sha256.Size]byte {
	return sha256.Sum256(bytes.Join([][]byte{t.Key, t.Value}, []byte(":")))
}

// Commit hands the finalized block to the store, which makes it durable in its own time, and makes it visible. After a crash CometBFT
// executes again what was not durable: so it must keep those blocks. An error stops the node.
func (a *App) Commit(context.Context, *abci.RequestCommit) (*abci.ResponseCommit, error) {
	height, v, err := a.commit()
	if err != nil {
		a.logger.Error("the state cannot be saved, the node must stop", "err", err)
		return nil, err
	}
	defer v.Release()
	var oldest int64
	if s := a.snapshots.Load(); s != nil {
		(*s).Committed(height, v)
		oldest = (*s).OldestServed()
	}
	return &abci.ResponseCommit{RetainHeight: retainHeight(height, a.options.RetainBlocks, oldest, a.options.Store.Durable())}, nil
}

// commit returns the version that is the state now, which the caller releases.
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
	base, changes := a.block.version, p.changes
	if a.block.height == 0 {
		base, changes = nil, everything(p.version)
	}
	start := time.Now()
	if err := a.options.Store.Commit(p.height, p.version, base, changes); err != nil {
		a.block.failures = fmt.Errorf("save the state of block %d: %w (nothing is lost: once the cause is mended, start the node again)", p.height, err)
		a.giveUp()
		return 0, nil, a.block.failures
	}
	a.options.Metrics.CommitSeconds.Observe(time.Since(start).Seconds())
	a.options.Metrics.executed(p.results)
	a.block.pending = nil // its reference is the state's now
	if p.params.AppVersion != a.block.params.AppVersion {
		a.logger.Info("the blocks from here on are of another app version", "after", p.height, "version", p.params.AppVersion)
	}
	a.replace(p.height, p.version, p.params)
	a.publish(p.rewritten, !changeRights(p.changes))
	p.version.Retain()
	return p.height, p.version, nil
}

// changeRights tells whether the changes, in ascending key order, touch who may do what.
func changeRights(changes []avlstar.Change) bool {
	for _, c := range changes {
		if c.Key[0] != reserved {
			return false
		}
		switch c.Key[1] {
		case tagNonce, tagValidator, tagUpgrade: // give nobody a right
		default:
			return true
		}
	}
	return false
}

// everything lists a whole state as changes, which are v's own memory: until v is released.
func everything(v *avlstar.Version) []avlstar.Change {
	changes := make([]avlstar.Change, 0, v.Len())
	for key, value := range v.Ascend(nil, nil) {
		changes = append(changes, avlstar.Change{Key: key, Value: value})
	}
	return changes
}

// retainHeight is the lowest block that CometBFT must keep; 0: all. A snapshot that is served needs the blocks from its height on, a
// restart those after the durable state and, with the validators of the last of them, that of the durable state itself.
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
