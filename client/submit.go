package client

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/tx"
)

const (
	// nonceAttempts limits how often a transaction is signed again because its nonce was used
	// meanwhile.
	nonceAttempts = 8
	// The pause between polls for a transaction grows from firstPoll to longPoll.
	firstPoll, longPoll = 50 * time.Millisecond, 500 * time.Millisecond
	// resendEvery is the interval at which a transaction that is not in a block is sent to the node
	// again, since a node that was restarted has an empty mempool. The bytes are the same, so it
	// can be executed only once.
	resendEvery = 5 * time.Second
	// lostRetries is how often a transaction is sent again at once after the node's answer was
	// lost.
	lostRetries = 3
	// lostAfter is the number of consecutive resends, refused for their nonce, after which the
	// nonce must have been used by another transaction.
	lostAfter = 3
)

// TxResult is a transaction in a block, executed.
type TxResult struct {
	Hash    []byte
	Height  int64
	Results []tx.OperationResult // one for each operation, in order; none for text
}

// account is what the client remembers about a key.
type account struct {
	// held from the choice of a nonce until the node has answered, so that nonces are sent in order
	sync.Mutex
	next  uint64
	known bool // next is the nonce that the node expects, as far as the client knows
}

func (c *Client) account(publicKey []byte) *account {
	c.accounts.Lock()
	defer c.accounts.Unlock()
	a := c.accounts.byKey[string(publicKey)]
	if a == nil {
		a = new(account)
		c.accounts.byKey[string(publicKey)] = a
	}
	return a
}

// Put writes value at key.
func (c *Client) Put(ctx context.Context, key, value []byte) (*TxResult, error) {
	return c.Submit(ctx, tx.NewPut(key, value))
}

// Delete removes key. Results[0].Found reports whether it existed.
func (c *Client) Delete(ctx context.Context, key []byte) (*TxResult, error) {
	return c.Submit(ctx, tx.NewDelete(key))
}

// CompareAndPut writes value at key if the key's value is expected (empty: if the key is absent).
// Otherwise the error matches &tx.Error{Code: tx.CodeCompareFailed}.
func (c *Client) CompareAndPut(ctx context.Context, key, expected, value []byte) (*TxResult, error) {
	return c.Submit(ctx, tx.NewCompareAndPut(key, expected, value))
}

// Read is a linearizable read: a transaction, ordered among all others, that returns the value. It
// costs a block; Get does not.
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
// operations take effect, or none.
//
// A *TxError means that it was refused. An *UnknownOutcomeError means that it may still be
// executed; that is also the error if ctx ends after the transaction was sent. Any other error
// means that it was not sent.
func (c *Client) Submit(ctx context.Context, operations ...tx.Operation) (*TxResult, error) {
	for attempt := 1; ; attempt++ {
		sent, err := c.Send(ctx, operations...)
		if err != nil {
			return nil, err
		}
		result, err := sent.Wait(ctx)
		if !errors.Is(err, &tx.Error{Code: tx.CodeBadNonce}) || attempt == nonceAttempts {
			return result, err
		}
		// The transaction is in a block with a nonce that was not the next one, so it had no
		// effect. If its nonce has been used, no block can execute it, and the operations can be
		// signed again. If not, the same bytes could still be executed.
		if next, nonceErr := c.Nonce(ctx, c.Account()); nonceErr != nil || next <= sent.nonce {
			return nil, err
		}
	}
}

// Sent is a transaction that a node has accepted.
type Sent struct {
	Hash []byte

	client *Client
	nonce  uint64
	raw    types.Tx
}

// Send signs operations as one transaction and sends it to the node, which checks it. It does not
// wait for a block, so one key can have many transactions in flight, in the order of the calls.
func (c *Client) Send(ctx context.Context, operations ...tx.Operation) (*Sent, error) {
	if c.key == nil {
		return nil, ErrNoKey
	}
	a := c.account(c.key.PubKey().Bytes())
	a.Lock()
	defer a.Unlock()
	for attempt := 1; ; attempt++ {
		sent, err := c.sendOnce(ctx, a, c.key, operations)
		if err == nil {
			return sent, nil
		}
		if !errors.Is(err, &tx.Error{Code: tx.CodeBadNonce}) || attempt == nonceAttempts {
			return nil, err
		}
		if err := pause(ctx, time.Duration(attempt)*firstPoll); err != nil {
			return nil, err
		}
	}
}

// sendOnce signs and sends once. a must be locked.
func (c *Client) sendOnce(ctx context.Context, a *account, key ed25519.PrivKey, operations []tx.Operation) (*Sent, error) {
	if !a.known {
		next, err := c.Nonce(ctx, key.PubKey().Bytes())
		if err != nil {
			return nil, err
		}
		a.next, a.known = next, true
	}
	raw, err := tx.Sign(key, c.chainID, &tx.Body{Nonce: a.next, Operations: operations})
	if err != nil {
		return nil, err
	}
	sent := &Sent{Hash: types.Tx(raw).Hash(), client: c, nonce: a.next, raw: raw}
	if err := c.broadcastAgain(ctx, raw); err != nil {
		a.known = false
		return nil, err
	}
	a.next++
	return sent, nil
}

// broadcastAgain is broadcast for bytes that were not sent before. If an answer is lost it sends
// them again, which is safe, since they can be executed only once.
func (c *Client) broadcastAgain(ctx context.Context, raw types.Tx) error {
	lost := c.broadcast(ctx, raw)
	for try := 0; try < lostRetries && errors.As(lost, new(*UnknownOutcomeError)); try++ {
		if pause(ctx, firstPoll<<try) != nil {
			break
		}
		if err := c.broadcast(ctx, raw); err == nil || errors.Is(err, errInCache) {
			return nil
		}
	}
	if errors.Is(lost, errInCache) {
		return nil
	}
	return lost
}

// errInCache is CometBFT's mempool.ErrTxInCache, of which only the text arrives.
var errInCache = errors.New("the node has it already")

// broadcast sends a transaction to the primary. The error is errInCache, *TxError,
// *UnknownOutcomeError, or another one, which means that the node has not accepted it.
func (c *Client) broadcast(ctx context.Context, raw types.Tx) error {
	result, err := c.primary.BroadcastTxSync(ctx, raw)
	switch {
	case err == nil && result.Code == 0:
		return nil
	case err == nil:
		return &TxError{Hash: raw.Hash(), Code: txCode(result.Code), Log: result.Log}
	case answered(err) && strings.Contains(err.Error(), "tx already exists in cache"):
		return errInCache
	case answered(err) || notSent(err):
		return c.callError("send the transaction", err)
	default:
		return &UnknownOutcomeError{Hash: raw.Hash(), Err: c.callError("send the transaction", err)}
	}
}

// Wait waits until the transaction is executed. Meanwhile it sends it to the node every few
// seconds, in case the node has lost it.
func (s *Sent) Wait(ctx context.Context) (*TxResult, error) {
	refusals := 0
	return s.client.waitTx(ctx, s.Hash, func() error {
		err := s.client.broadcast(ctx, s.raw)
		if !errors.Is(err, &tx.Error{Code: tx.CodeBadNonce}) {
			refusals = 0
			return nil
		}
		if refusals++; refusals < lostAfter {
			return nil
		}
		return fmt.Errorf("the account's nonce was used by another transaction, or this one is executed but not in the node's index: %w", err)
	})
}

// WaitTx waits until the transaction with this hash is in a block. The node must index transactions
// ([tx_index] indexer = "kv", the default). When ctx ends, the error is an *UnknownOutcomeError.
func (c *Client) WaitTx(ctx context.Context, hash []byte) (*TxResult, error) {
	return c.waitTx(ctx, hash, func() error { return nil })
}

func (c *Client) waitTx(ctx context.Context, hash []byte, resend func() error) (*TxResult, error) {
	last := errNotFound
	wait := firstPoll
	for nextResend := time.Now().Add(resendEvery); ; wait = min(2*wait, longPoll) {
		result, err := c.lookup(ctx, hash)
		var refused *TxError
		if err == nil || errors.As(err, &refused) {
			return result, err
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			last = err
		}
		if errors.Is(err, errNoIndex) {
			return nil, &UnknownOutcomeError{Hash: hash, Err: err}
		}
		if time.Now().After(nextResend) {
			if err := resend(); err != nil {
				return nil, &UnknownOutcomeError{Hash: hash, Err: err}
			}
			nextResend = time.Now().Add(resendEvery)
		}
		if err := pause(ctx, wait); err != nil {
			return nil, &UnknownOutcomeError{Hash: hash, Err: fmt.Errorf("%w while waiting for a block: %w", err, last)}
		}
	}
}

var errNoIndex = errors.New(`the node does not index transactions: set [tx_index] indexer = "kv" in its config.toml, or ask another`)

// lookup returns a transaction that is in a block. The error is a *TxError if it failed there, and
// errNotFound if it is in no block.
func (c *Client) lookup(ctx context.Context, hash []byte) (*TxResult, error) {
	found, err := c.primary.Tx(ctx, hash, false)
	switch {
	case err != nil && answered(err) && strings.Contains(err.Error(), "not found"):
		return nil, errNotFound
	case err != nil && answered(err) && strings.Contains(err.Error(), "indexing is disabled"):
		return nil, errNoIndex
	case err != nil:
		return nil, c.callError("look up the transaction", err)
	case found.TxResult.Code != 0:
		return nil, &TxError{Hash: hash, Height: found.Height, Code: txCode(found.TxResult.Code), Log: found.TxResult.Log}
	}
	result, err := tx.DecodeResult(found.TxResult.Data)
	if err != nil {
		return nil, fmt.Errorf("client: transaction %X is executed, but its result does not decode: %w", hash, err)
	}
	return &TxResult{Hash: hash, Height: found.Height, Results: result.Results}, nil
}

// PutText writes value at key by an unsigned text transaction, which open chains accept (see the
// genesis document).
func (c *Client) PutText(ctx context.Context, key, value []byte) (*TxResult, error) {
	raw := types.Tx((&tx.Text{Key: key, Value: value}).Bytes())
	if _, err := tx.Decode(raw, c.chainID); err != nil {
		return nil, err
	}
	switch err := c.broadcast(ctx, raw); {
	case errors.Is(err, errInCache):
		return nil, ErrRepeatedText
	case err != nil:
		return nil, err
	}
	return c.WaitTx(ctx, raw.Hash())
}

// Nonce returns the nonce of the account's next transaction. Transactions in the node's mempool
// count.
func (c *Client) Nonce(ctx context.Context, account []byte) (uint64, error) {
	result, err := c.Query(ctx, "/nonce", account, 0, false)
	if err != nil {
		return 0, err
	}
	if len(result.Response.Value) != 8 {
		return 0, fmt.Errorf("client: a nonce of %d bytes, want 8: is %s a node of Starling?", len(result.Response.Value), c.primary.Remote())
	}
	return binary.BigEndian.Uint64(result.Response.Value), nil
}

func txCode(code uint32) tx.Code { return tx.Code(code) }
