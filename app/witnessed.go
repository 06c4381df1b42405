package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"

	"github.com/starling-kv/starling/avlstar"
)

// finalizeWitnessed is FinalizeBlock with a Source. It ends with the only result that there is, or
// without one. The caller holds block's lock, which is given up while it waits.
func (a *App) finalizeWitnessed(ctx context.Context, b block) (*abci.ResponseFinalizeBlock, error) {
	if p := a.block.pending; p != nil && p.same(b) {
		return p.res, nil // as ProcessProposal left it
	}
	ctx, cancel := a.alive(ctx)
	defer cancel()
	done, err := a.witnessed(ctx, b, a.decoder.decodeAll(b.txs, a.block.params.ChainId), forBlock)
	if err != nil {
		return nil, fmt.Errorf("block %d: %w", b.height, err)
	}
	return done.res, nil
}

// same reports whether the result of b is that of p.
func (p *block) same(b block) bool {
	return p.height == b.height && slices.EqualFunc(p.txs, b.txs, bytes.Equal) &&
		(p.signed == nil) == (b.signed == nil) && slices.EqualFunc(p.signed, b.signed, bytes.Equal)
}

// witnessed executes a block, whose transactions are txs, as often as it takes to fetch what it
// needs; then it waits for its commit. The error is that of ctx, or a failure of this node. The
// caller holds block's lock, which is given up during each fetch.
func (a *App) witnessed(ctx context.Context, b block, txs []decoded, call string) (*pending, error) {
	a.giveUp() // so that what comes is grafted into the committed state
	f := a.ofBlock(call)
	for {
		n := newNeeds()
		done, err := execute(a.block.version, a.block.params, b, txs, n)
		if err == nil && done != nil {
			err = a.applyWitnessed(ctx, done, f)
			return done, err
		}
		if err == nil {
			err = f.bring(ctx, n)
		}
		if err != nil {
			return nil, err
		}
	}
}

// applyWitnessed is apply, which may need nodes beside the ways to keys that are deleted.
func (a *App) applyWitnessed(ctx context.Context, done *pending, f *fetcher) error {
	for {
		err := a.apply(done)
		var missing *avlstar.MissingNodeError
		if !errors.As(err, &missing) {
			return err
		}
		if err := f.bring(ctx, &needs{wants: missing.Wants(done.changes), held: missing.Held()}); err != nil {
			return err
		}
	}
}

// maxPatience limits the factor by which Options.WitnessTimeout grows.
const maxPatience = 1 << 10

// patience counts the proposals that were seen at a height. It is guarded by block's lock.
type patience struct {
	height int64
	seen   int
}

// next returns how long the next proposal at height may take: as CometBFT's timeouts, it grows with
// each, so that a network that is slow for all decides in the end.
func (p *patience) next(height int64, timeout time.Duration) time.Duration {
	if p.height != height {
		p.height, p.seen = height, 0
	}
	p.seen = min(p.seen+1, maxPatience)
	return timeout * time.Duration(p.seen)
}

// processWitnessed reports whether this node has executed the proposal in time: it prevotes for no
// other. Then the block waits for its commit, and FinalizeBlock has nothing left to do.
func (a *App) processWitnessed(ctx context.Context, req *abci.RequestProcessProposal, txs []decoded) bool {
	a.block.Lock()
	defer a.block.Unlock()
	b := block{req.Height, req.Txs, lastSigners(req.ProposedLastCommit)}
	limit := a.patience.next(req.Height, a.options.WitnessTimeout)
	err := a.mayFinalize(req.Height)
	if err == nil && (a.block.pending == nil || !a.block.pending.same(b)) {
		ctx, cancel := a.alive(ctx)
		defer cancel()
		ctx, cancelled := context.WithTimeout(ctx, limit)
		defer cancelled()
		_, err = a.witnessed(ctx, b, txs, forProposal)
	}
	if err != nil {
		a.logger.Info("rejected a proposal that could not be executed", "height", req.Height, "proposer", req.ProposerAddress, "limit", limit, "err", err)
	}
	return err == nil
}

// deletable reports whether the tree has what it takes to make the deletions of a transaction, and
// notes what it lacks.
func (p *proposer) deletable(t decoded) bool {
	if p.needs == nil || t.tx.Body == nil {
		return true
	}
	var wants []avlstar.Want
	for i := range t.tx.Body.Operations {
		if op := t.tx.Body.Operations[i].GetDelete(); op != nil {
			wants = append(wants, avlstar.Want{Key: op.Key, Deleted: true})
		}
	}
	lacking, _ := p.base.Lacks(wants)
	for _, w := range lacking {
		p.needs.add(w)
	}
	return len(lacking) == 0
}
