package app

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	cmttypes "github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/tx"
)

// passedOver remembers, for one height, the transactions that were executed for a proposal and left
// out: they wait for the next block, so another round does not execute them again.
type passedOver struct {
	mu     sync.Mutex
	height int64
	txs    map[[sha256.Size]byte]struct{}
}

// of returns the transactions for a height, and forgets those for other heights.
func (p *passedOver) of(height int64) map[[sha256.Size]byte]struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.height != height || p.txs == nil {
		p.height, p.txs = height, make(map[[sha256.Size]byte]struct{})
	}
	return maps.Clone(p.txs)
}

func (p *passedOver) add(height int64, id [sha256.Size]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.height == height {
		p.txs[id] = struct{}{}
	}
}

// leftOver counts this node's consecutive proposals that left a transaction out because of missing
// nodes.
type leftOver struct {
	mu           sync.Mutex
	height       int64
	before, last map[[sha256.Size]byte]turns // of the proposal before height, and of that of height

	// The last transaction that was proposed although nodes were missing, and the height of that
	// proposal. The next one follows after pause blocks.
	forced   [sha256.Size]byte
	forcedAt int64
	pause    int64
}

// turns are consecutive proposals that left a transaction out.
type turns struct {
	number  int
	arrived map[int]uint64 // App.arrivals of what was missing in the last one
}

// of returns the turns up to the proposal before that of a height.
func (l *leftOver) of(height int64) map[[sha256.Size]byte]turns {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.height != height {
		l.height, l.before, l.last = height, l.last, make(map[[sha256.Size]byte]turns)
	}
	return l.before
}

// mayForce reports whether a proposal may have a transaction whose nodes are missing. If the last
// one is still in the mempool, it was in vain, and the pause doubles.
func (l *leftOver) mayForce(height int64, waiting []decoded) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if height <= l.forcedAt+l.pause {
		return false
	}
	isForced := func(t decoded) bool { return t.err == nil && t.id == l.forced }
	if l.forcedAt == 0 || !slices.ContainsFunc(waiting, isForced) {
		l.pause = 0
		return true
	}
	l.pause = min(max(2*l.pause, leastPause), mostPause)
	return height > l.forcedAt+l.pause
}

// force records that a transaction is proposed although nodes are missing.
func (l *leftOver) force(height int64, id [sha256.Size]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forced, l.forcedAt = id, height
}

// add counts a turn, unless what is missing is still being requested.
func (l *leftOver) add(height int64, id [sha256.Size]byte, arrived map[int]uint64, pending bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, counted := l.last[id]; l.height != height || counted {
		return
	}
	t := l.before[id]
	if !pending {
		t = turns{t.number + 1, arrived}
	}
	l.last[id] = t
}

const (
	// overdue is the number of a node's proposals that leave a transaction out.
	overdue = 2
	// maxOverdueWants limits the keys whose nodes an overdue transaction misses: one round of
	// requests brings them.
	maxOverdueWants = maxInFlight * maxRequest
	// leastPause and mostPause limit the number of blocks after an overdue transaction that was
	// proposed in vain.
	leastPause, mostPause = 16, 1 << 14
)

// PrepareProposal goes through the mempool's transactions in order and proposes those that leave a
// trace: others would only fill the block. Text is proposed as key=value, and only once.
// Transactions whose reads exceed the block's budget wait for the next block. All transactions that
// it tries, proposed or not, cost no more than a block may, and take at most Options.ProposalTime;
// the rest waits too. Transactions that only write are not executed, unless a transaction that
// reads or administers comes after them.
//
// With Options.Source, all transactions are executed, since nothing has to be read from a disk.
// Transactions for which a node is missing are left out. But nodes that were fetched leave memory
// after some blocks, so those of a transaction with many keys may never be there together. So the
// first proposal of a height has one such transaction that is overdue, if one round of requests
// brings its nodes: the validators fetch them.
func (a *App) PrepareProposal(_ context.Context, req *abci.RequestPrepareProposal) (*abci.ResponsePrepareProposal, error) {
	deadline := time.Now().Add(a.options.ProposalTime)
	a.block.Lock()
	v, params := a.block.version, a.block.params
	if v == nil {
		a.block.Unlock()
		return nil, errNoGenesis
	}
	v.Retain()
	again := a.patience.height == req.Height // it has seen another proposal of this height
	a.block.Unlock()
	defer v.Release()
	if err := a.mayExecute(v, params); err != nil {
		return nil, err
	}
	p := proposer{
		executor: a.newExecutor(newOverlay(v), params, req.Height), texts: make(map[string]struct{}), room: req.MaxTxBytes,
		passed: a.passed.of(req.Height), before: a.leftOver.of(req.Height), arrivals: a.arrivals,
	}
	if p.needs = a.state.needs(); p.needs != nil {
		p.wide = true
		defer func() {
			a.ask(v, p.needs.wants) // for the next height
			a.options.Metrics.Witness.LeftOut.Add(float64(p.leftOut))
		}()
	}
	p.deadline, p.signed, p.time = deadline, proposedSigners(req.LocalLastCommit), a.rules(params).timeOf(req.Time)
	p.ahead = lookahead{base: v, txs: a.decoder.decodeAll(req.Txs, a.form(params))}
	defer v.ForgetAhead()
	p.forced = again || !a.leftOver.mayForce(req.Height, p.ahead.txs)
	for i, t := range p.ahead.txs {
		if t.err != nil {
			continue
		}
		p.missing = nil
		forced := p.forced
		inVain, err := p.try(i, req.Txs[i], t)
		if err != nil {
			return nil, fmt.Errorf("proposal %d: %w", req.Height, err)
		}
		if len(p.missing) > 0 {
			arrived, pending := a.arrivals(p.missing)
			a.leftOver.add(req.Height, t.id, arrived, pending)
		}
		if p.forced && !forced {
			a.leftOver.force(req.Height, t.id)
		}
		if inVain {
			a.passed.add(req.Height, t.id)
		}
		if p.late() && len(p.txs) > 0 {
			break
		}
	}
	return &abci.ResponsePrepareProposal{Txs: p.txs}, nil
}

// proposer makes a proposal of at most room bytes.
type proposer struct {
	*executor
	txs    [][]byte
	texts  map[string]struct{} // text transactions in txs
	passed map[[sha256.Size]byte]struct{}
	room   int64
	load   load // of the transactions that were tried
	// leftOut counts those of them for which nodes are missing, and before has those that the last
	// proposals left out.
	leftOut int
	before  map[[sha256.Size]byte]turns
	forced  bool // no (further) one of them is proposed
	// missing are the keys of the transaction that was just left out whose nodes are missing, and
	// arrivals is App.arrivals.
	missing  []avlstar.Want
	arrivals func(wants []avlstar.Want) (arrived map[int]uint64, pending bool)
	lostGas  uint64 // that they name: programs that miss nodes must not take the time of a proposal
	writes   []unexecuted
}

// unexecuted is a proposed transaction that only writes. Only its nonce was executed so far.
type unexecuted struct {
	at   int // index in the mempool's list
	body *tx.Body
}

// try tries the transaction at index i if there is room for it, and proposes it if it leaves a
// trace. inVain says that all of it was executed and undone, because it must wait for the next
// block.
func (p *proposer) try(i int, raw []byte, t decoded) (inVain bool, err error) {
	_, again := p.passed[t.id]
	lost := p.lostGas > 0 && gas(t.tx) > 0 && p.lostGas+gas(t.tx) > p.rules.maxGas/8
	if refused := p.load.plus(t.tx).fits(p.rules, ""); again || lost || refused != nil {
		return false, nil //nolint:nilerr // it waits for another block
	}
	if t.tx.Text != nil {
		raw = t.tx.Text.Bytes()
		if _, twice := p.texts[string(raw)]; twice {
			return false, nil
		}
	}
	added := cmttypes.ComputeProtoSizeForTxs([]cmttypes.Tx{raw})
	if added > p.room {
		return false, nil
	}
	if late, err := p.executeWrites(t.tx); err != nil || late {
		return false, err
	}
	mark, before, counted, unread := p.mark(), p.reads, p.validators, p.unread
	done, err := p.run(i, t.tx)
	if p.lacks(err) || err == nil && (p.unread > unread || !p.deletable(t)) {
		p.undo(mark)
		p.reads, p.validators = before, counted
		if p.isOverdue(t) {
			p.forced, p.load, p.missing = true, p.load.plus(t.tx), nil
			p.propose(raw, t, added)
			return false, nil
		}
		p.name(t.tx)
		p.leftOut++
		p.lostGas += gas(t.tx)
		return false, nil
	}
	if err != nil || !done.trace {
		return false, err
	}
	p.load = p.load.plus(t.tx)
	switch {
	case done.err != nil && done.err.Code == tx.CodeReadBudget && before != (reads{}):
		p.undo(mark)
		return true, nil
	case done.late && len(p.txs) > 0:
		return false, nil // nothing is executed after it
	}
	// If the first transaction is late, it is proposed all the same: its nonce is spent, so it
	// leaves a trace, and otherwise it would never be in a block.
	p.keep(mark)
	p.propose(raw, t, added)
	return false, nil
}

// propose adds a transaction, which takes added bytes, to the proposal.
func (p *proposer) propose(raw []byte, t decoded, added int64) {
	if t.tx.Text != nil {
		p.texts[string(raw)] = struct{}{}
	}
	p.room -= added
	p.txs = append(p.txs, raw)
}

// isOverdue reports whether a transaction that misses nodes is proposed. It only writes, because
// reads and programs can miss further nodes in each round. Every range of which it misses nodes has
// answered since the last turn: no proposal waits for storage nodes that do not.
func (p *proposer) isOverdue(t decoded) bool {
	n := new(needs)
	nameKeys(n, t.tx, false)
	p.missing, _ = p.ahead.base.Missing(n.wants)
	last := p.before[t.id]
	if p.forced || last.number < overdue || !onlyWrites(t.tx) || len(p.missing) > maxOverdueWants {
		return false
	}
	arrived, pending := p.arrivals(p.missing)
	if pending {
		return false
	}
	for at, number := range arrived {
		if before, missed := last.arrived[at]; !missed || number == before {
			return false
		}
	}
	return true
}

// run executes a transaction. If the transaction only writes, run executes only its nonce, which
// alone determines whether it leaves a trace; and no other nonce or text depends on its writes. So
// 10,000 deletes, each in a page of its own, take no time of a proposal.
func (p *proposer) run(i int, t *tx.Tx) (outcome, error) {
	if p.needs == nil && onlyWrites(t) {
		var refused *tx.Error
		if err := p.spendNonce(t.Body); errors.As(err, &refused) {
			return outcome{err: refused}, nil
		} else if err != nil {
			return outcome{}, err
		}
		p.writes = append(p.writes, unexecuted{i, t.Body})
		return outcome{trace: true}, nil
	}
	p.ahead.tx = i
	return p.executor.run(t)
}

// executeWrites executes the operations that wait, if t may depend on them. late says that the time
// of the proposal is over.
func (p *proposer) executeWrites(t *tx.Tx) (late bool, err error) {
	if len(p.writes) == 0 || t.Body == nil || onlyWrites(t) {
		return false, nil
	}
	for ; len(p.writes) > 0; p.writes = p.writes[1:] {
		mark := p.mark()
		p.ahead.tx = p.writes[0].at
		if done, err := p.runOperations(p.writes[0].body); err != nil || done.late {
			return done.late, err
		}
		p.keep(mark)
	}
	return false, nil
}

// onlyWrites reports whether a transaction is signed, and consists only of writes under grants.
func onlyWrites(t *tx.Tx) bool {
	return t.Body != nil && !slices.ContainsFunc(t.Body.Operations, func(o tx.Operation) bool {
		switch o.Op.(type) {
		case *tx.Operation_Put, *tx.Operation_Delete, *tx.Operation_CompareAndPut, *tx.Operation_Add:
			return false
		}
		return true
	})
}

// ProcessProposal rejects a block only for reasons that do not depend on the state, and that no
// correct proposer causes: a transaction that does not decode, or a cost or gas above the limit.
// FinalizeBlock executes all other blocks, or refuses their transactions one by one.
//
// With Options.Source it also rejects a block if missing nodes do not arrive within
// Options.WitnessTimeout and WitnessBytes, times the number of proposals seen at the height.
// docs/decisions/0045-execution-on-witnesses.md explains why this may depend on more than block and
// state.
func (a *App) ProcessProposal(ctx context.Context, req *abci.RequestProcessProposal) (*abci.ResponseProcessProposal, error) {
	v, params := a.check.state()
	if v == nil {
		return nil, errNoGenesis
	}
	defer v.Release()
	if err := a.mayExecute(v, params); err != nil {
		return nil, err
	}
	var sum load
	rules := a.rules(params)
	txs := a.decoder.decodeAll(req.Txs, a.form(params))
	for i, t := range txs {
		err := t.err
		if err == nil {
			sum = sum.plus(t.tx)
			err = sum.fits(rules, "the transactions up to this one name")
		}
		if err != nil {
			a.logger.Info("rejected a proposal", "height", req.Height, "proposer", req.ProposerAddress, "tx", i, "err", err)
			return &abci.ResponseProcessProposal{Status: abci.ResponseProcessProposal_REJECT}, nil //nolint:nilerr // a refusal is an answer
		}
	}
	if !a.state.process(ctx, req, txs) {
		return &abci.ResponseProcessProposal{Status: abci.ResponseProcessProposal_REJECT}, nil
	}
	return &abci.ResponseProcessProposal{Status: abci.ResponseProcessProposal_ACCEPT}, nil
}
