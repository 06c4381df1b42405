package client

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	rpcclient "github.com/cometbft/cometbft/rpc/client"
	ctypes "github.com/cometbft/cometbft/rpc/core/types"
	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/tx"
)

const (
	// nonceAttempts limits how often a transaction is signed again because its nonce was used
	// meanwhile.
	nonceAttempts = 8
	// The pause between polls for a transaction is longPoll while a node is asked to say when it
	// has executed it (see listen). Otherwise it is a quarter of the time waited so far, between
	// firstPoll and longPoll. So a transaction is found at most that much later than it is
	// available. Every askAllEvery polls, all nodes are asked, because the nearest one may have
	// stopped following the chain.
	firstPoll, longPoll = 50 * time.Millisecond, 500 * time.Millisecond
	askAllEvery         = 8
	// resendEvery is the interval at which a transaction that is not in a block is sent again,
	// because a restarted node has an empty mempool. The bytes are the same, so it can be executed
	// only once.
	resendEvery = 5 * time.Second
	// lostAfter is the number of consecutive resends refused for their nonce after which another
	// transaction must have used the nonce.
	lostAfter = 3
	// doubtPatience limits the wait for a transaction if no node has confirmed that it arrived.
	doubtPatience = time.Minute
)

// TxResult is the result of an executed transaction.
type TxResult struct {
	Hash    []byte
	Height  int64
	Results []tx.OperationResult // one for each operation, in order; none for text
}

// Put writes value at key.
func (c *Client) Put(ctx context.Context, key, value []byte) (*TxResult, error) {
	return c.write(ctx, tx.NewPut(key, value), len(key)+len(value))
}

// Delete removes key. Results[0].Found reports whether it existed.
func (c *Client) Delete(ctx context.Context, key []byte) (*TxResult, error) {
	return c.write(ctx, tx.NewDelete(key), len(key))
}

// write executes one operation, whose key and value have this size.
func (c *Client) write(ctx context.Context, operation tx.Operation, bytes int) (*TxResult, error) {
	if c.groups == nil || c.key == nil {
		return c.Submit(ctx, operation)
	}
	return c.groups.write(ctx, operation, bytes)
}

// CompareAndPut writes value at key if the key's value is expected (empty: if the key is absent).
// Otherwise the error matches &tx.Error{Code: tx.CodeCompareFailed}.
func (c *Client) CompareAndPut(ctx context.Context, key, expected, value []byte) (*TxResult, error) {
	return c.Submit(ctx, tx.NewCompareAndPut(key, expected, value))
}

// Read is a linearizable read: a transaction, ordered among all others, that returns the value. It
// takes a block; Get does not.
func (c *Client) Read(ctx context.Context, key []byte) (value []byte, found bool, err error) {
	result, err := c.Submit(ctx, tx.NewRead(key))
	if err != nil {
		return nil, false, err
	}
	if len(result.Results) != 1 {
		return nil, false, fmt.Errorf("client: transaction %X has %d results, want 1", result.Hash, len(result.Results))
	}
	return result.Results[0].Value, result.Results[0].Found, nil
}

// Submit signs operations as one transaction, sends it and waits until it is executed. Either all
// operations take effect, or none. While nodes catch up, it waits for them until ctx ends. If no
// node answers, it fails at once.
//
// A *TxError means that the transaction was refused. An *UnknownOutcomeError means that it may
// still be executed; this is also the error if ctx ends after it was sent. Any other error means
// that it was not sent.
func (c *Client) Submit(ctx context.Context, operations ...tx.Operation) (*TxResult, error) {
	sign := c.signs(operations)
	sent, err := c.send(ctx, sign)
	if sent == nil {
		return nil, err
	}
	return c.outcome(ctx, sent, err, sign)
}

// outcome waits until a transaction that was sent is executed. doubt is that of settle. If the
// nonce was used meanwhile, outcome signs and sends the transaction again.
func (c *Client) outcome(ctx context.Context, sent *Sent, doubt error, sign signing) (*TxResult, error) {
	for attempt := 1; ; attempt++ {
		result, err := c.settle(ctx, sent, doubt)
		if !nonceRefused(err) || attempt == nonceAttempts {
			return result, err
		}
		// The transaction is in a block with a nonce that was not the next one, so it had no
		// effect. If its nonce has been used, no block can execute it, and the operations can be
		// signed again. Otherwise the same bytes could still be executed.
		if next, nonceErr := c.Nonce(ctx, c.Account()); nonceErr != nil || next <= sent.nonce {
			return nil, err
		}
		if sent, doubt = c.send(ctx, sign); sent == nil {
			return nil, doubt
		}
	}
}

// settle waits for a transaction that was sent. If no node has confirmed that it arrived (doubt is
// not nil), it may never be executed, so the wait is limited.
func (c *Client) settle(ctx context.Context, sent *Sent, doubt error) (*TxResult, error) {
	if doubt == nil {
		return sent.Wait(ctx)
	}
	limited, cancel := context.WithTimeout(ctx, doubtPatience)
	defer cancel()
	result, err := sent.Wait(limited)
	var unknown *UnknownOutcomeError
	if errors.As(err, &unknown) && limited.Err() != nil && ctx.Err() == nil {
		return nil, doubt
	}
	return result, err
}

// Wait waits until the transaction is executed. It sends the transaction again, to the best node,
// every few seconds, and at once if the node that accepted it is lost or silent. The bytes are the
// same each time, so it can be executed only once.
func (s *Sent) Wait(ctx context.Context) (*TxResult, error) {
	refusals := 0
	result, err := s.client.waitTx(ctx, s.Hash, s.acceptor, s.stranded, func() error {
		err := s.client.sendAgain(ctx, s)
		if !errors.Is(err, &tx.Error{Code: tx.CodeBadNonce}) {
			refusals = 0
			return nil
		}
		if refusals++; refusals < lostAfter {
			return nil
		}
		s.account.forget(s)
		return fmt.Errorf("the account's nonce was used by another transaction, or this one is executed but not in the node's index: %w", err)
	})
	if err == nil || errors.As(err, new(*TxError)) && !errors.Is(err, &tx.Error{Code: tx.CodeBadNonce}) {
		s.account.used(s)
	}
	return result, err
}

// WaitTx waits until the transaction with this hash is in a block. One of the nodes must index
// transactions ([tx_index] indexer = "kv", the default). When ctx ends, the error is an
// *UnknownOutcomeError.
func (c *Client) WaitTx(ctx context.Context, hash []byte) (*TxResult, error) {
	return c.waitTx(ctx, hash, func() *endpoint { return nil }, func() bool { return false }, func() error { return nil })
}

// waitTx waits until a transaction is in a block. It listens at the node that acceptor returns, and
// polls others. It calls resend every resendEvery, and as soon as stranded reports that no node is
// known to have the transaction.
func (c *Client) waitTx(ctx context.Context, hash []byte, acceptor func() *endpoint, stranded func() bool, resend func() error) (*TxResult, error) {
	l := &listener{c: c, hash: hash}
	defer l.close()
	l.moveTo(ctx, acceptor())
	last := errNotFound
	began := time.Now()
	nextResend := began.Add(resendEvery)
	for poll := 0; ; poll++ {
		var result *TxResult
		err := errNotFound
		if poll > 0 || l.heard == nil {
			result, err = c.lookup(ctx, hash, poll%askAllEvery == askAllEvery-1)
		}
		if done(err) {
			return c.noted(result), err
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			last = err
		}
		var all *CallError
		if errors.As(err, &all) && all.all(errNoIndex) && l.heard == nil {
			return nil, &UnknownOutcomeError{Hash: hash, Err: err}
		}
		if time.Now().After(nextResend) || stranded() {
			if err := resend(); err != nil {
				return nil, &UnknownOutcomeError{Hash: hash, Err: err}
			}
			nextResend = time.Now().Add(resendEvery)
		}
		l.moveTo(ctx, acceptor())
		pause := min(max(time.Since(began)/4, firstPoll), longPoll)
		if l.heard != nil {
			pause = longPoll
		}
		timer := time.NewTimer(pause)
		select {
		case h, ok := <-l.heard:
			if ok {
				return c.noted(h.result), h.err
			}
			l.heard = nil
		case <-timer.C:
		case <-ctx.Done():
			return nil, &UnknownOutcomeError{Hash: hash, Err: fmt.Errorf("%w while waiting for a block: %w", ctx.Err(), last)}
		}
		timer.Stop()
	}
}

// done reports whether err is that of a transaction in a block.
func done(err error) bool { return err == nil || errors.As(err, new(*TxError)) }

// noted remembers the height of a result; nil: there is none.
func (c *Client) noted(result *TxResult) *TxResult {
	if result != nil {
		c.pool.claimed(result.Height)
	}
	return result
}

var errNoIndex = errors.New(`the node does not index transactions: set [tx_index] indexer = "kv" in its config.toml, or use another node`)

// lookup returns a transaction that is in a block. The error is a *TxError if it failed there, and
// errNotFound if the nearest node knows of no block with it; with everybody, if none of the nodes
// does.
func (c *Client) lookup(ctx context.Context, hash []byte, everybody bool) (*TxResult, error) {
	var avoid []*endpoint
	if everybody {
		avoid = c.pool.silent()
	}
	found, _, err := ask(ctx, c.pool, question[*ctypes.ResultTx]{
		avoid: avoid,
		what:  "look up the transaction",
		short: true,
		first: c.pool.writer(),
		call: func(ctx context.Context, e *endpoint) (*ctypes.ResultTx, error) {
			found, err := e.Tx(ctx, hash, false)
			switch {
			case err != nil && answered(err) && strings.Contains(err.Error(), "not found"):
				if everybody {
					return nil, errNotFound
				}
				return nil, nil // not an error: the next poll asks other nodes
			case err != nil && answered(err) && strings.Contains(err.Error(), "indexing is disabled"):
				return nil, errNoIndex
			}
			return found, err
		},
	})
	switch {
	case err != nil:
		return nil, err
	case found == nil:
		return nil, errNotFound
	}
	return resultOf(hash, found.Height, &found.TxResult)
}

// PutText writes value at key with an unsigned text transaction, which open chains accept (see the
// genesis document).
func (c *Client) PutText(ctx context.Context, key, value []byte) (*TxResult, error) {
	raw := types.Tx((&tx.Text{Key: key, Value: value}).Bytes())
	if _, err := tx.Decode(raw, c.chainID); err != nil {
		return nil, err
	}
	sent := &Sent{Hash: raw.Hash(), client: c, account: new(account), raw: raw}
	err := untilCaughtUp(ctx, func() error {
		_, err := c.deliver(ctx, sent)
		return err
	})
	var unknown *UnknownOutcomeError
	switch {
	case errors.Is(err, errInCache):
		return nil, ErrRepeatedText
	case err != nil && !errors.As(err, &unknown):
		return nil, err
	}
	return c.settle(ctx, sent, err)
}

// Nonce returns the nonce of the account's next transaction, counting the transactions in the
// node's mempool.
func (c *Client) Nonce(ctx context.Context, account []byte) (uint64, error) {
	return c.nonceFrom(ctx, account, 0)
}

// nonceFrom is Nonce. Nodes that report less than least are behind.
func (c *Client) nonceFrom(ctx context.Context, account []byte, least uint64) (uint64, error) {
	next, _, err := ask(ctx, c.pool, question[uint64]{
		what:  "query /nonce",
		short: true,
		first: c.pool.writer(),
		final: refusedByAll,
		call: func(ctx context.Context, e *endpoint) (uint64, error) {
			next, err := nonceOf(ctx, e, account)
			if err == nil && next < least {
				e.isBehind()
				err = fmt.Errorf("%w: the account's next nonce there is %d, %d was used already", errBehind, next, least-1)
			}
			return next, err
		},
	})
	return next, err
}

// nextNonce returns the nonce to sign with. A node is behind if a transaction of the account is
// missing there that another node has reported to be in a block. That report may be false, so it is
// trusted only for claimPatience.
func (c *Client) nextNonce(ctx context.Context, a *account) (uint64, error) {
	began := time.Now()
	for wait := firstPoll; ; wait = min(2*wait, longPoll) {
		next, err := c.nonceFrom(ctx, c.Account(), a.least())
		if !errors.Is(err, errBehind) || sleep.For(ctx, wait) != nil {
			return next, err
		}
		if time.Since(began) >= claimPatience {
			a.disbelieve()
		}
	}
}

func nonceOf(ctx context.Context, e *endpoint, account []byte) (uint64, error) {
	result, err := queryOne(ctx, e, "/nonce", account, rpcclient.ABCIQueryOptions{})
	if err != nil {
		return 0, err
	}
	if len(result.Response.Value) != 8 {
		return 0, fmt.Errorf("%w: a nonce of %d bytes, want 8: is %s a Starling node?", ErrUnproved, len(result.Response.Value), e.Remote())
	}
	return binary.BigEndian.Uint64(result.Response.Value), nil
}

func txCode(code uint32) tx.Code { return tx.Code(code) }
