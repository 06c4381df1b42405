package client

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"

	"github.com/starling-kv/starling/app/result"
	"github.com/starling-kv/starling/tx"
)

// maxListening limits the requests of a client that wait at one node for results: each takes a
// connection, of which CometBFT accepts 900 by default. Other transactions are polled for.
const maxListening = 64

// heardResult is what a node says about a transaction that it has executed.
type heardResult struct {
	result *TxResult
	err    error // a *TxError: it failed
}

// listener listens for the result of a transaction, at one node at a time.
type listener struct {
	c     *Client
	hash  []byte
	at    *endpoint
	heard <-chan heardResult // nil: no node is listened at
	stop  context.CancelFunc // ends listening at the node
}

// moveTo listens at another node; nil: at the same one.
func (l *listener) moveTo(ctx context.Context, e *endpoint) {
	if e == nil || e == l.at {
		return
	}
	l.close()
	ctx, l.stop = context.WithCancel(ctx)
	l.at, l.heard = e, l.c.listen(ctx, e, l.hash)
}

func (l *listener) close() {
	if l.stop != nil {
		l.stop()
	}
}

// listen waits at a node until the node has executed a transaction, or until ctx ends. The channel
// is closed without a result if the node cannot be waited for; it is nil if that is known before.
func (c *Client) listen(ctx context.Context, e *endpoint, hash []byte) <-chan heardResult {
	if e == nil || len(hash) != sha256.Size || e.record().deaf {
		return nil
	}
	select {
	case e.listening <- struct{}{}:
	default:
		return nil
	}
	heard := make(chan heardResult, 1)
	go func() {
		defer func() { <-e.listening }()
		defer close(heard)
		for {
			began := time.Now()
			result, err := c.executed(ctx, e, hash)
			switch {
			case err == nil && result == nil: // not yet
				if time.Since(began) < pollWait/2 {
					return // the node does not wait
				}
			case done(err):
				heard <- heardResult{result, err}
				return
			default:
				return
			}
		}
	}()
	return heard
}

// executed asks a node for the result of a transaction, for which the node waits; nil: the node has
// not executed it yet. The error is a *TxError if the transaction failed.
func (c *Client) executed(ctx context.Context, e *endpoint, hash []byte) (*TxResult, error) {
	return call(ctx, c.pool, e, false, func(ctx context.Context, e *endpoint) (*TxResult, error) {
		request := result.Request{ID: [sha256.Size]byte(hash), WaitMS: uint32(pollWait.Milliseconds())}
		answer, err := queryWaiting(ctx, e, result.Path, request.Encode())
		if err != nil {
			if errors.Is(err, &tx.Error{Code: tx.CodeUnknownPath}) {
				e.update(func(r *record) { r.deaf = true })
			}
			return nil, err
		}
		if len(answer.Response.Value) == 0 {
			return nil, nil
		}
		var found abci.TxResult
		if err := found.Unmarshal(answer.Response.Value); err != nil {
			return nil, fmt.Errorf("%w: the result of transaction %X does not decode: %w", ErrUnproved, hash, err)
		}
		return resultOf(hash, found.Height, &found.Result)
	})
}

// resultOf converts the result of a transaction in a block. The error is a *TxError if it failed.
func resultOf(hash []byte, height int64, r *abci.ExecTxResult) (*TxResult, error) {
	if r.Code != 0 {
		return nil, &TxError{Hash: hash, Height: height, Code: txCode(r.Code), Log: r.Log}
	}
	result, err := tx.DecodeResult(r.Data)
	if err != nil {
		return nil, fmt.Errorf("client: transaction %X is executed, but its result does not decode: %w", hash, err)
	}
	return &TxResult{Hash: hash, Height: height, Results: result.Results}, nil
}
