package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"

	"github.com/starling-kv/starling/avlstar"
)

// finalize implements backing. It returns the only possible result, or an error. The caller holds
// block's lock, which is released while it waits.
func (a byWitness) finalize(ctx context.Context, b block) (*abci.ResponseFinalizeBlock, error) {
	f := a.ofBlock(forBlock)
	defer f.observe()
	if p := a.block.pending; p != nil && p.same(b) {
		return p.res, nil // executed by ProcessProposal
	}
	ctx, cancel := a.alive(ctx)
	defer cancel()
	f.most = a.options.BlockWitnessBytes
	done, err := a.witnessed(ctx, b, a.decoder.decodeAll(b.txs, a.form(a.block.params)), f)
	if err != nil {
		return nil, fmt.Errorf("block %d: %w", b.height, err)
	}
	return done.res, nil
}

// same reports whether b and p have the same inputs, and hence the same result.
func (p *block) same(b block) bool {
	return p.height == b.height && p.time == b.time && slices.EqualFunc(p.txs, b.txs, bytes.Equal) &&
		(p.signed == nil) == (b.signed == nil) && slices.EqualFunc(p.signed, b.signed, bytes.Equal)
}

// witnessed executes a block, whose transactions are txs, as often as necessary to fetch the nodes
// that it needs with f. The block then waits for its commit. An error is that of ctx or of f's
// limit, or a failure of this node. The caller holds block's lock, which is released during each
// fetch.
func (a *App) witnessed(ctx context.Context, b block, txs []decoded, f *fetcher) (*pending, error) {
	a.giveUp() // so that received nodes are grafted into the committed state
	if err := f.bring(ctx, a.edges()); err != nil {
		return nil, err
	}
	for {
		n := new(needs)
		done, err := a.execute(b, txs, n)
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

// blockWitnesses are the lengths of the largest witnesses that proposals and blocks have fetched.
type blockWitnesses struct {
	mu           sync.Mutex
	before, last int // for the last commit, and since then
}

func (w *blockWitnesses) received(bytes int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = max(w.last, bytes)
}

func (w *blockWitnesses) committed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.before, w.last = w.last, 0
}

// BlockWitnessBytes returns the length of the largest witness that a proposal or block has fetched
// since the block before the last one.
func (a *App) BlockWitnessBytes() int {
	a.witnesses.mu.Lock()
	defer a.witnesses.mu.Unlock()
	return max(a.witnesses.before, a.witnesses.last)
}

// edges returns the wants of the paths to Options.Edges.
func (a *App) edges() *needs {
	n := new(needs)
	if a.options.Edges == nil {
		return n
	}
	for _, key := range a.options.Edges() {
		n.add(avlstar.Want{Key: key})
	}
	return n
}

// applyWitnessed does what apply does, and fetches missing nodes: nodes next to the paths to
// deleted keys, and paths to edges that lead elsewhere after the leaf next to the edge was deleted.
func (a *App) applyWitnessed(ctx context.Context, done *pending, f *fetcher) error {
	for {
		err := a.apply(done)
		var missing *avlstar.MissingNodeError
		if err == nil {
			return a.bringEdges(ctx, done, f)
		}
		if !errors.As(err, &missing) {
			return err
		}
		if err := f.bring(ctx, &needs{wants: missing.Wants(done.changes), held: missing.Held()}); err != nil {
			return err
		}
	}
}

// bringEdges fetches missing nodes on the paths to Options.Edges into the version of a block that
// waits for its commit. After an error the block no longer waits.
func (a *App) bringEdges(ctx context.Context, done *pending, f *fetcher) error {
	into := &fetcher{
		app: a, call: f.call, height: f.height, lock: f.lock, replace: a.renew,
		version: func() *avlstar.Version {
			if a.block.pending != done {
				return nil
			}
			return done.version
		},
	}
	for {
		n := lackedEdges(done.version, a.edges().wants)
		if n == nil {
			return nil
		}
		err := into.bring(ctx, n)
		f.waited, into.waited = f.waited+into.waited, 0
		if err != nil {
			if a.block.pending == done {
				a.giveUp()
			}
			return err
		}
		done.edged = true
	}
}

// lackedEdges returns the wants for the missing paths from v to edges, or nil if none is missing.
// The state before the block has the same subtrees. There, the least key of a subtree leads to it,
// while the path to the edge may end at a leaf that the block has deleted.
func lackedEdges(v *avlstar.Version, edges []avlstar.Want) *needs {
	lacking, held := v.Missing(edges)
	if len(held) == 0 {
		return nil
	}
	n := new(needs)
	n.held = held
	for _, w := range lacking {
		n.add(w)
		for s := range v.Stubs(w.Key) {
			n.add(avlstar.Want{Key: bytes.Clone(s.First)})
			break
		}
	}
	return n
}

// maxPatience limits the factor by which Options.WitnessTimeout and WitnessBytes grow.
const maxPatience = 1 << 10

// patience counts the proposals that were seen at a height. It is guarded by block's lock.
type patience struct {
	height int64
	seen   int
}

// next returns the factor for the limits of the next proposal at height. Like CometBFT's timeouts,
// the limits grow with each proposal, so that a network that is slow for all validators decides in
// the end.
func (p *patience) next(height int64) int {
	if p.height != height {
		p.height, p.seen = height, 0
	}
	p.seen = min(p.seen+1, maxPatience)
	return p.seen
}

// process implements backing. It reports whether this node has executed the proposal in time,
// because it prevotes only for such proposals. The block then waits for its commit, and
// FinalizeBlock has nothing left to do.
func (a byWitness) process(ctx context.Context, req *abci.RequestProcessProposal, txs []decoded) bool {
	a.block.Lock()
	defer a.block.Unlock()
	patience := a.patience.next(req.Height)
	limit, f := a.options.WitnessTimeout*time.Duration(patience), a.ofBlock(forProposal)
	defer f.observe()
	f.most = a.options.WitnessBytes * patience
	err := a.mayFinalize(req.Height)
	if err == nil {
		err = a.executeProposal(ctx, req, txs, limit, f)
	}
	if err != nil {
		a.logger.Info("rejected a proposal that could not be executed", "height", req.Height, "proposer", req.ProposerAddress, "limit", limit, "err", err)
	}
	return err == nil
}

// executeProposal executes a proposal for the next block, unless it was executed before. The caller
// holds block's lock.
func (a byWitness) executeProposal(ctx context.Context, req *abci.RequestProcessProposal, txs []decoded, limit time.Duration, f *fetcher) error {
	b := a.nextBlock(req.Height, req.Time, req.Txs, req.ProposedLastCommit)
	if p := a.block.pending; p != nil && p.same(b) {
		return nil
	}
	ctx, cancel := a.alive(ctx)
	defer cancel()
	ctx, cancelled := context.WithTimeout(ctx, limit)
	defer cancelled()
	_, err := a.witnessed(ctx, b, txs, f)
	return err
}

// deletable reports whether all nodes for the deletions of a transaction are present, and records
// the missing ones.
func (p *proposer) deletable(t decoded) bool {
	if p.needs == nil || t.tx.Body == nil {
		return true
	}
	var wants []avlstar.Want
	for i := range t.tx.Body.Operations {
		wants = wantsOf(wants, &t.tx.Body.Operations[i])
	}
	wants = slices.DeleteFunc(wants, func(w avlstar.Want) bool { return !w.Deleted })
	for _, key := range p.removed {
		wants = append(wants, avlstar.Want{Key: key, Deleted: true, Written: true})
	}
	lacking, _ := p.base.Missing(wants)
	for _, w := range lacking {
		p.needs.add(w)
	}
	return len(lacking) == 0
}
