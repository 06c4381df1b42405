package app

import (
	"bytes"
	"context"
	"errors"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"

	"github.com/starling-kv/starling/event"
	"github.com/starling-kv/starling/tx"
)

// Events takes what blocks change, and answers watchers. Answer is called at any time; the others
// follow one another.
type Events interface {
	// Begin reports the state that the next block is executed on. Events of later blocks that are
	// there are dropped: these blocks will be executed again, perhaps by another program.
	Begin(height int64) error
	// Commit takes the events of a block, before the store takes its changes: the store must not
	// make a state durable before the events that led to it. After an error the application
	// commits nothing more. Nobody modifies what b refers to.
	Commit(b event.Block) error
	// Committed reports that queries are answered from the state after height.
	Committed(height int64)
	// Answer answers a request, which was checked. It waits for an event for as long as the request
	// says, and no longer than wait.
	Answer(ctx context.Context, r event.Request, wait time.Duration) (event.Answer, error)
}

// MaxPreviousBytes limits the previous values that the events of one block have together, so that
// what a block's deletions leave behind does not exceed what its transactions bring. The first
// events have theirs.
const MaxPreviousBytes = 8 << 20

// events collects the events of a block. The order is that in which its operations change keys, so
// that all nodes number them alike.
type events struct {
	changes  []event.Change
	previous int // bytes
}

// collect adds what a transaction has changed. A record of the journal is an event if the key has
// another value than before, and is of a client or of a kind that clients hear of.
func (e *events) collect(number int, journal []undoRecord) {
	for _, r := range journal {
		kind := eventKind(r.entry.key, r.after)
		if kind == "" || bytes.Equal(r.value, r.after) {
			continue
		}
		c := event.Change{Tx: number, Kind: kind, Key: r.entry.key, Value: r.after}
		if e.previous+len(r.value) <= MaxPreviousBytes {
			e.previous += len(r.value)
			c.Previous = bytes.Clone(r.value) // it may be a version's own memory
		} else {
			c.Omitted = true
		}
		e.changes = append(e.changes, c)
	}
}

// eventKind returns the kind of a change to a key, value nil being its deletion; "": it is
// bookkeeping that follows from other changes, such as a nonce.
func eventKind(key, value []byte) string {
	if key[0] != reserved {
		if value == nil {
			return KindDelete
		}
		return KindPut
	}
	switch key[1] {
	case tagGrant:
		if value == nil {
			return KindRevoke
		}
		return KindGrant
	case tagValidator:
		return KindValidator
	case tagAdmin:
		return KindAdmin
	case tagUpgrade:
		return KindUpgrade
	case tagThreshold:
		return KindThreshold
	case tagProposal:
		return KindProposal
	}
	return ""
}

// handOver gives the events of a block to Options.Events.
func (a *App) handOver(p *pending) error {
	if a.options.Events == nil {
		return nil
	}
	return a.options.Events.Commit(event.Block{Height: p.height, Txs: p.txs, Changes: p.events.changes})
}

// queryEvents answers a query of path event.Path.
func (a *App) queryEvents(ctx context.Context, req *abci.RequestQuery) (*abci.ResponseQuery, *tx.Error) {
	switch {
	case a.options.Events == nil:
		return nil, tx.Errorf(tx.CodeUnreadable, "this node keeps no events (state.keep_events is 0 in its app.toml): ask another one")
	case req.Prove:
		return nil, tx.Errorf(tx.CodeBadRequest, "events have no proofs: prove what they say by a query of %s or %s", PathKey, PathRange)
	case req.Height != 0:
		return nil, tx.Errorf(tx.CodeBadRequest, "the height from which on to read events is in the data")
	}
	r, err := event.DecodeRequest(req.Data)
	if err != nil {
		return nil, tx.Errorf(tx.CodeBadRequest, "%v", err)
	}
	answer, err := a.options.Events.Answer(ctx, r, a.options.WatchWait)
	switch {
	case errors.Is(err, event.ErrBusy):
		return nil, tx.Errorf(tx.CodeBusy, "%v: ask again later, or another one", err)
	case err != nil:
		return nil, tx.Errorf(tx.CodeUnreadable, "%v", err)
	}
	res := &abci.ResponseQuery{Key: req.Data, Value: answer.Encode(), Height: answer.Head}
	if answer.Compacted(r.From) {
		res.Log = "compacted: the least height whose events are kept here is in the answer"
	}
	return res, nil
}
