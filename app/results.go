package app

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"

	"github.com/starling-kv/starling/app/result"
	"github.com/starling-kv/starling/tx"
)

const (
	// maxResultBytes limits the memory for results. The oldest go first.
	maxResultBytes = 16 << 20
	// resultOverhead is the approximate memory of a result beyond its fields.
	resultOverhead = 256
	// maxResultWaiters limits the requests that wait, each with a goroutine of CometBFT's RPC.
	maxResultWaiters = 10_000
)

// errManyWaiters is returned if so many requests wait that no more are accepted.
var errManyWaiters = fmt.Errorf("%d requests wait for results, the limit: ask again later, or ask another node", maxResultWaiters)

// results keeps the results of the last blocks' transactions, and wakes the requests that wait for
// one. A client learns a result here as soon as its block is committed; CometBFT's index has it
// only some time later.
type results struct {
	mu struct {
		sync.Mutex
		byID    map[[sha256.Size]byte]*abci.TxResult // without the transaction
		order   []keptResult                         // oldest first
		bytes   int
		waiting map[[sha256.Size]byte]*waiting // the requests, by transaction
		waiters int                            // number of all requests
	}
}

// waiting has the requests that wait for one result. number is guarded by the lock of results.
type waiting struct {
	done   chan struct{} // closed when the result is there
	number int
}

func newResults() *results {
	r := new(results)
	r.mu.byID, r.mu.waiting = map[[sha256.Size]byte]*abci.TxResult{}, map[[sha256.Size]byte]*waiting{}
	return r
}

// keptResult is a result in the order of the blocks. Its entry in byID may be a later one.
type keptResult struct {
	id     [sha256.Size]byte
	result *abci.TxResult
	bytes  int
}

// add takes the results of a committed block.
func (r *results) add(height int64, txs [][]byte, all []*abci.ExecTxResult) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, raw := range txs {
		id := sha256.Sum256(raw)
		old := r.mu.byID[id]
		if old != nil && old.Result.Code == 0 && all[i].Code != 0 {
			continue // a proposer repeated a transaction, which had its effect before
		}
		kept := keptResult{
			id: id, bytes: resultOverhead + all[i].Size(),
			result: &abci.TxResult{Height: height, Index: uint32(i), Result: *all[i]},
		}
		r.mu.byID[id] = kept.result
		r.mu.order = append(r.mu.order, kept)
		r.mu.bytes += kept.bytes
		if w := r.mu.waiting[id]; w != nil {
			close(w.done)
			delete(r.mu.waiting, id)
		}
	}
	for r.mu.bytes > maxResultBytes {
		oldest := r.mu.order[0]
		r.mu.order[0] = keptResult{} // the slice may keep the memory
		r.mu.order = r.mu.order[1:]
		r.mu.bytes -= oldest.bytes
		if r.mu.byID[oldest.id] == oldest.result {
			delete(r.mu.byID, oldest.id)
		}
	}
}

// wait returns the result of a transaction, and waits for it at most until wait has passed or a
// context ends; nil: it is not there yet.
func (r *results) wait(ctx, life context.Context, id [sha256.Size]byte, wait time.Duration) (*abci.TxResult, error) {
	found, w, err := r.begin(id, wait > 0)
	if w == nil {
		return found, err
	}
	defer r.end(id, w)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-w.done:
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.mu.byID[id], nil
	case <-timer.C:
	case <-ctx.Done():
	case <-life.Done():
	}
	return nil, nil
}

// begin returns a result, or registers a request that waits for it.
func (r *results) begin(id [sha256.Size]byte, wait bool) (*abci.TxResult, *waiting, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch found := r.mu.byID[id]; {
	case found != nil || !wait:
		return found, nil, nil
	case r.mu.waiters == maxResultWaiters:
		return nil, nil, errManyWaiters
	}
	w := r.mu.waiting[id]
	if w == nil {
		w = &waiting{done: make(chan struct{})}
		r.mu.waiting[id] = w
	}
	w.number++
	r.mu.waiters++
	return nil, w, nil
}

// end removes a request that has waited.
func (r *results) end(id [sha256.Size]byte, w *waiting) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.waiters--
	if w.number--; w.number == 0 && r.mu.waiting[id] == w {
		delete(r.mu.waiting, id)
	}
}

// queryResult answers a query with path result.Path. The value is empty while there is no result.
func (a *App) queryResult(ctx context.Context, req *abci.RequestQuery) (*abci.ResponseQuery, *tx.Error) {
	switch {
	case req.Prove:
		return nil, tx.Errorf(tx.CodeBadRequest, "results have no proofs: prove what the transaction wrote, with %s", PathKey)
	case req.Height != 0:
		return nil, tx.Errorf(tx.CodeBadRequest, "a result is found by its transaction's hash, not by a height")
	}
	r, err := result.DecodeRequest(req.Data)
	if err != nil {
		return nil, tx.Errorf(tx.CodeBadRequest, "%v", err)
	}
	found, err := a.results.wait(ctx, a.life, r.ID, min(time.Duration(r.WaitMS)*time.Millisecond, a.options.WatchWait))
	if err != nil {
		return nil, tx.Errorf(tx.CodeBusy, "%v: ask again later, or ask another node", err)
	}
	res := &abci.ResponseQuery{Key: req.Data, Height: a.published.Load().height, Log: "not executed yet"}
	if found != nil {
		res.Log = ""
		if res.Value, err = found.Marshal(); err != nil {
			return nil, tx.Errorf(tx.CodeUnreadable, "%v", err)
		}
	}
	return res, nil
}
