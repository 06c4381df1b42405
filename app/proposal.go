package app

import (
	"context"
	"fmt"

	abci "github.com/cometbft/cometbft/abci/types"
	cmttypes "github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/tx"
)

// PrepareProposal executes the mempool's transactions in order and proposes those that leave a
// trace: others would only fill the block. Text is proposed as key=value, and only once. Reads that
// exceed the block's budget wait for the next block.
func (a *App) PrepareProposal(_ context.Context, req *abci.RequestPrepareProposal) (*abci.ResponsePrepareProposal, error) {
	a.block.Lock()
	v, params := a.block.version, a.block.params
	if v == nil {
		a.block.Unlock()
		return nil, errNoGenesis
	}
	v.Retain()
	a.block.Unlock()
	defer v.Release()
	if err := a.mayExecute(v, params); err != nil {
		return nil, err
	}
	res := &abci.ResponsePrepareProposal{}
	x := newExecutor(newOverlay(v), params, req.Height)
	x.signed = proposedSigners(req.LocalLastCommit)
	texts := make(map[string]struct{})
	var size int64
	for i, t := range a.decoder.decodeAll(req.Txs, params.ChainId) {
		if t.err != nil {
			continue
		}
		raw := req.Txs[i]
		if t.tx.Text != nil {
			raw = t.tx.Text.Bytes()
			if _, twice := texts[string(raw)]; twice {
				continue
			}
		}
		added := cmttypes.ComputeProtoSizeForTxs([]cmttypes.Tx{raw})
		if size+added > req.MaxTxBytes {
			continue
		}
		proposed, err := x.propose(t.tx)
		if err != nil {
			return nil, fmt.Errorf("proposal %d: %w", req.Height, err)
		}
		if !proposed {
			continue
		}
		if t.tx.Text != nil {
			texts[string(raw)] = struct{}{}
		}
		size += added
		res.Txs = append(res.Txs, raw)
	}
	return res, nil
}

// propose executes the transaction and reports whether it is to be proposed; otherwise it is
// undone.
func (x *executor) propose(t *tx.Tx) (bool, error) {
	mark, before := x.mark(), x.reads
	done, err := x.run(t)
	if err != nil {
		return false, err
	}
	if done.trace && done.err != nil && done.err.Code == tx.CodeReadBudget && before != (reads{}) {
		x.undo(mark)
		return false, nil
	}
	x.keep(mark)
	return done.trace, nil
}

// ProcessProposal rejects a block only for transactions that no honest proposer can have proposed,
// whatever the state: those that do not decode. FinalizeBlock executes the others, or refuses them
// one by one.
func (a *App) ProcessProposal(_ context.Context, req *abci.RequestProcessProposal) (*abci.ResponseProcessProposal, error) {
	v, params := a.check.state()
	if v == nil {
		return nil, errNoGenesis
	}
	defer v.Release()
	if err := a.mayExecute(v, params); err != nil {
		return nil, err
	}
	for i, t := range a.decoder.decodeAll(req.Txs, params.ChainId) {
		if t.err != nil {
			a.logger.Info("rejected a proposal", "height", req.Height, "proposer", req.ProposerAddress, "tx", i, "err", t.err)
			return &abci.ResponseProcessProposal{Status: abci.ResponseProcessProposal_REJECT}, nil //nolint:nilerr // a refusal is an answer
		}
	}
	return &abci.ResponseProcessProposal{Status: abci.ResponseProcessProposal_ACCEPT}, nil
}
