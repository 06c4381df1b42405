package app

import (
	"bytes"
	"context"
	"errors"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"

	"github.com/starling-kv/starling/app/event"
	"github.com/starling-kv/starling/tx"
)

// Events receives the changes of blocks, and answers watchers. Answer may be called at any time;
// the other methods are called one after another.
type Events interface {
	// Begin reports the state on which the next block is executed. Stored events of later blocks
	// are dropped: these blocks will be executed again, perhaps by another program.
	Begin(height int64) error
	// Commit takes the events of a block before the store takes the block's changes, because the
	// store must not make a state durable before the events that led to it. After an error the
	// application commits nothing more. The memory of b is no longer modified.
	Commit(b event.Block) error
	// Committed reports that queries see the state after height.
	Committed(height int64)
	// Answer answers a request, which was checked. It waits for an event for the time in the
	// request, but no longer than wait.
	Answer(ctx context.Context, r event.Request, wait time.Duration) (event.Answer, error)
}

// MaxPreviousBytes limits the total length of the previous values in the events of one block, so
// that the events of deletions cannot be much longer than the block's transactions. Events get
// their previous values in order, until the limit is reached. A node that does not have the whole
// state omits long ones too, if nothing but their length was needed.
const MaxPreviousBytes = 8 << 20

// events collects the events of a block. They are in the order in which the block's operations
// change keys, so that all nodes number them alike.
type events struct {
	changes  []event.Change
	previous int // total length of previous values
}

// collect adds the changes of a transaction. A record of the journal is an event if the value of
// the key changed, and if the key is a client's or of a kind that has events.
func (e *events) collect(number int, journal []undoRecord) {
	for _, r := range journal {
		kind := eventKind(r.entry.key, r.after)
		if kind == "" || !r.changed {
			continue
		}
		c := event.Change{Tx: number, Kind: kind, Key: r.entry.key, Value: r.after}
		if e.previous+r.value.length <= MaxPreviousBytes {
			e.previous += r.value.length
			c.Omitted = r.value.missing()
			c.Previous = bytes.Clone(r.value.value) // it may be memory of a version
		} else {
			c.Omitted = true
		}
		e.changes = append(e.changes, c)
	}
}

// eventKind returns the kind of a change to a key; a nil value is a deletion. It returns "" for
// system keys that follow from other changes, such as nonces.
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

// handOver passes the events of a block to Options.Events.
func (a *App) handOver(p *pending) error {
	if a.options.Events == nil {
		return nil
	}
	return a.options.Events.Commit(event.Block{Height: p.height, Txs: p.txs, Changes: p.events.changes})
}

// queryEvents answers a query with path event.Path.
func (a *App) queryEvents(ctx context.Context, req *abci.RequestQuery) (*abci.ResponseQuery, *tx.Error) {
	switch {
	case a.options.Events == nil:
		return nil, tx.Errorf(tx.CodeUnreadable, "this node keeps no events (state.keep_events is 0 in its app.toml): ask another node")
	case req.Prove:
		return nil, tx.Errorf(tx.CodeBadRequest, "events have no proofs: query %s or %s to prove their values", PathKey, PathRange)
	case req.Height != 0:
		return nil, tx.Errorf(tx.CodeBadRequest, "the start of the events is set in the data, not by the height")
	}
	r, err := event.DecodeRequest(req.Data)
	if err != nil {
		return nil, tx.Errorf(tx.CodeBadRequest, "%v", err)
	}
	answer, err := a.options.Events.Answer(ctx, r, a.options.WatchWait)
	switch {
	case errors.Is(err, event.ErrBusy):
		return nil, tx.Errorf(tx.CodeBusy, "%v: ask again later, or ask another node", err)
	case err != nil:
		return nil, tx.Errorf(tx.CodeUnreadable, "%v", err)
	}
	res := &abci.ResponseQuery{Key: req.Data, Value: answer.Encode(), Height: answer.Head}
	if answer.Compacted(r.From) {
		res.Log = "compacted: the answer has the lowest height whose events are kept here"
	}
	return res, nil
}
