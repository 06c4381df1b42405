package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/tx"
)

const (
	// sendTimeout limits sending a transaction to one node if there are other nodes.
	sendTimeout = 2 * time.Second
	// lostRetries is how often a transaction is sent to all nodes again at once while no node has
	// confirmed that it arrived.
	lostRetries = 3
	// restartPatience is how long a write waits for nodes that were catching up and do not answer
	// any more: a node that has joined closes its RPC server and opens another one.
	restartPatience = time.Minute
	// Limits, for each account, of the transactions kept that were sent and not yet seen in a
	// block. The oldest are dropped; their Sent.Wait still sends them again.
	maxFlying, maxFlyingBytes = 1024, 32 << 20
)

// account is the state that the client keeps for a key.
type account struct {
	// turn is held from the choice of a nonce until a node has answered, so that nonces are sent in
	// order. It guards next and known.
	turn  chan struct{}
	next  uint64
	known bool // next is the nonce that the nodes expect, as far as the client knows

	mu struct {
		sync.Mutex
		flying []*Sent // sent and not known to be in a block, by nonce
		least  uint64  // next is not below it: a node has reported that those nonces are used
	}
}

func (c *Client) account(publicKey []byte) *account {
	c.accounts.Lock()
	defer c.accounts.Unlock()
	a := c.accounts.byKey[string(publicKey)]
	if a == nil {
		a = &account{turn: make(chan struct{}, 1)}
		c.accounts.byKey[string(publicKey)] = a
	}
	return a
}

// lock waits for turn, or until ctx ends.
func (a *account) lock(ctx context.Context) error {
	select {
	case a.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (a *account) unlock() { <-a.turn }

// fly keeps a transaction that was sent.
func (a *account) fly(s *Sent) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.flying = append(a.mu.flying, s)
	slices.SortStableFunc(a.mu.flying, func(x, y *Sent) int { return int(int64(x.nonce - y.nonce)) })
	size := 0
	for i := len(a.mu.flying) - 1; i >= 0; i-- {
		if size += len(a.mu.flying[i].raw); size > maxFlyingBytes || len(a.mu.flying)-i > maxFlying {
			a.mu.flying = slices.Delete(a.mu.flying, 0, i+1)
			return
		}
	}
}

// forget drops a transaction whose nonce is used.
func (a *account) forget(s *Sent) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.flying = slices.DeleteFunc(a.mu.flying, func(other *Sent) bool { return other == s })
}

// used records that a transaction is in a block.
func (a *account) used(s *Sent) {
	a.forget(s)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.least = max(a.mu.least, s.nonce+1)
}

func (a *account) least() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.least
}

// disbelieve discards the reports about used nonces.
func (a *account) disbelieve() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.least = 0
}

// before returns the transactions sent with lower nonces that may not be in a block.
func (a *account) before(nonce uint64) []*Sent {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(a.mu.flying), func(s *Sent) bool { return s.nonce >= nonce })
}

// Sent is a transaction that a node has accepted.
type Sent struct {
	Hash []byte

	client  *Client
	account *account
	nonce   uint64
	raw     types.Tx

	mu struct {
		sync.Mutex
		at *endpoint // node that accepted it last; nil: none
	}
}

func (s *Sent) acceptedBy(e *endpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.at = e
}

// acceptor returns the node that accepted the transaction last; nil: none.
func (s *Sent) acceptor() *endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.at
}

// stranded reports whether the node that accepted the transaction has been lost since, or is silent
// while others answer. It may have stopped while no other node has the transaction. If it was only
// slow, sending the same bytes to another node does no harm.
func (s *Sent) stranded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.at == nil || s.client.pool.nodes < 2 {
		return false
	}
	r := s.mu.at.record()
	return r.lost != nil || r.penalty > 0
}

// Send signs operations as one transaction and sends it to a node, which checks it. It does not
// wait for a block, so one key can have many transactions in flight, in the order of the calls.
// While nodes catch up, it waits for them until ctx ends; concurrent calls may then change places.
func (c *Client) Send(ctx context.Context, operations ...tx.Operation) (*Sent, error) {
	sent, err := c.send(ctx, c.signs(operations))
	if err != nil {
		return nil, err
	}
	return sent, nil
}

// signing makes the bytes of a transaction with a nonce.
type signing func(nonce uint64) (types.Tx, error)

// signs signs operations.
func (c *Client) signs(operations []tx.Operation) signing {
	return func(nonce uint64) (types.Tx, error) {
		return tx.Sign(c.key, c.chainID, &tx.Body{Nonce: nonce, Operations: operations})
	}
}

// send is Send, but with an *UnknownOutcomeError it also returns the transaction. It signs with the
// nonce whose turn it is, and again with another one if a node refuses it.
func (c *Client) send(ctx context.Context, sign signing) (*Sent, error) {
	if c.key == nil {
		return nil, ErrNoKey
	}
	a := c.account(c.key.PubKey().Bytes())
	var sent *Sent
	err := untilCaughtUp(ctx, func() error { // between two calls, others may have the turn
		if err := a.lock(ctx); err != nil {
			return fmt.Errorf("client: wait for the account's turn: %w", err)
		}
		defer a.unlock()
		for attempt := 1; ; attempt++ {
			var err error
			sent, err = c.sendOnce(ctx, a, sign)
			again := nonceRefused(err) || errors.Is(err, errBehind) && sent == nil
			if !again || attempt == nonceAttempts {
				return err
			}
			if err := sleep.For(ctx, time.Duration(attempt)*firstPoll); err != nil {
				return err
			}
		}
	})
	return sent, err
}

// untilCaughtUp calls send again, until ctx ends, while nodes do not accept a transaction because
// they are catching up. It returns the last error of send, with that of ctx. If a node may have the
// transaction, send must return an *UnknownOutcomeError: it is not called again.
func untilCaughtUp(ctx context.Context, send func() error) error {
	var seen time.Time // when a node last reported that it is catching up
	for wait := firstPoll; ; wait = min(2*wait, longPoll) {
		err := send()
		switch {
		case errors.As(err, new(*UnknownOutcomeError)):
			return err
		case isCatchingUp(err):
			seen = time.Now()
		case !errors.Is(err, ErrUnreachable) || time.Since(seen) >= restartPatience:
			return err
		}
		if ended := sleep.For(ctx, wait); ended != nil {
			return fmt.Errorf("client: not sent: %w: %w", ended, err)
		}
	}
}

// isCatchingUp reports whether a call failed only because nodes are catching up, or do not answer.
func isCatchingUp(err error) bool {
	var all *CallError
	if !errors.As(err, &all) {
		return errors.Is(err, errCatchingUp)
	}
	other := func(n NodeError) bool {
		return heard(n.Err) && !errors.Is(n.Err, errCatchingUp) && !errors.Is(n.Err, ErrWrongChain)
	}
	return errors.Is(err, errCatchingUp) && !slices.ContainsFunc(all.Nodes, other)
}

// nonceRefused reports whether err means that a transaction was refused for its nonce and was not
// executed. An *UnknownOutcomeError may contain such a refusal of bytes that were executed.
func nonceRefused(err error) bool {
	return errors.Is(err, &tx.Error{Code: tx.CodeBadNonce}) && !errors.As(err, new(*UnknownOutcomeError))
}

// sendOnce signs and sends once. The caller must hold the account's turn.
func (c *Client) sendOnce(ctx context.Context, a *account, sign signing) (*Sent, error) {
	if !a.known {
		next, err := c.nextNonce(ctx, a)
		if err != nil {
			return nil, err
		}
		a.next, a.known = next, true
	}
	raw, err := sign(a.next)
	if err != nil {
		return nil, err
	}
	sent := &Sent{Hash: raw.Hash(), client: c, account: a, nonce: a.next, raw: raw}
	at, err := c.deliver(ctx, sent)
	switch {
	case err == nil || errors.Is(err, errInCache):
		sent.acceptedBy(at)
		a.fly(sent)
		a.next++
		return sent, nil
	case errors.As(err, new(*UnknownOutcomeError)):
		a.known = false
		a.fly(sent)
		return sent, err
	default:
		// If no node judged the transaction, the next one has this nonce, too. The node that
		// restarted without the transactions before it gets these first.
		a.known = isCatchingUp(err) || errors.Is(err, ErrUnreachable)
		return nil, err
	}
}

// sendAgain sends the bytes of a transaction again, after earlier ones that are missing at the
// node.
func (c *Client) sendAgain(ctx context.Context, s *Sent) error {
	if s.account.turn != nil {
		if err := s.account.lock(ctx); err != nil {
			return err
		}
		defer s.account.unlock()
	}
	at, err := c.deliver(ctx, s)
	s.acceptedBy(at) // nil after an error: the next attempt follows at the next interval
	return err
}

// errInCache is CometBFT's mempool.ErrTxInCache, of which only the text arrives.
var errInCache = errors.New("the node has it already")

// deliver sends a transaction to one node after the other until one accepts it, beginning with the
// node that accepted the last one. The bytes are always the same, so nothing can be executed twice.
//
// The error is errInCache if a node already has it, *TxError if a node refused it and no node can
// have it, *UnknownOutcomeError if a node may have it, and another error if no node can have it.
func (c *Client) deliver(ctx context.Context, s *Sent) (at *endpoint, err error) {
	var unknown *UnknownOutcomeError
	c.pool.refresh(ctx)
	for try := 0; ; try++ {
		t := newTally("send the transaction")
		for _, e := range c.pool.order(c.pool.writer(), nil) {
			t.asked(e)
			err := c.broadcast(ctx, e, s)
			var refused *TxError
			switch {
			case err == nil, errors.Is(err, errInCache):
				c.pool.writes(e)
				if unknown != nil {
					err = nil // the node may have it from this call
				}
				return e, err
			case errors.As(err, &refused) && unknown == nil && !elsewhere(refused):
				c.pool.writes(e) // it knows the account's nonce
				return nil, err
			case errors.As(err, &unknown):
				err = unknown.Err
			}
			t.failed(e, err)
		}
		err := t.error(ctx.Err())
		if unknown == nil {
			return nil, err
		}
		if try == lostRetries || sleep.For(ctx, firstPoll<<try) != nil {
			return nil, &UnknownOutcomeError{Hash: s.Hash, Err: err}
		}
	}
}

// elsewhere reports whether another node may accept what one refused.
func elsewhere(refused *TxError) bool {
	return refused.Code == tx.CodeBusy || refused.Code == tx.CodeUnreadable
}

// broadcast sends a transaction to one node. If the node refuses the nonce because earlier
// transactions, which were sent to a lost node, are missing there, broadcast sends those and then
// the transaction again. The error is errInCache, *TxError, *UnknownOutcomeError, or another one,
// which means that the node has not accepted it.
func (c *Client) broadcast(ctx context.Context, e *endpoint, s *Sent) error {
	err := c.broadcastOne(ctx, e, s.raw)
	if !nonceRefused(err) || s.account.turn == nil {
		return err
	}
	next, nonceErr := call(ctx, c.pool, e, true, func(ctx context.Context, e *endpoint) (uint64, error) {
		return nonceOf(ctx, e, c.Account())
	})
	if nonceErr != nil || next >= s.nonce {
		return err
	}
	var refused []*Sent
	for _, before := range s.account.before(s.nonce) {
		switch err := c.broadcastOne(ctx, e, before.raw); {
		case err == nil, errors.Is(err, errInCache):
			before.acceptedBy(e)
		case errors.As(err, new(*TxError)):
			refused = append(refused, before) // it is in a block, or its nonce was used
		default:
			return fmt.Errorf("send an earlier transaction: %w", err)
		}
	}
	switch err = c.broadcastOne(ctx, e, s.raw); {
	case err == nil:
		for _, before := range refused {
			// A node that accepts this nonce knows that the lower ones are used.
			s.account.forget(before)
		}
		return nil
	case nonceRefused(err):
		e.isBehind()
		return fmt.Errorf("%w: its next nonce of the account is %d, this one is %d", errBehind, next, s.nonce)
	default:
		return err
	}
}

func (c *Client) broadcastOne(ctx context.Context, e *endpoint, raw types.Tx) error {
	limit := sendTimeout
	if c.pool.nodes == 1 {
		limit = callTimeout
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	_, err := call(limited, c.pool, e, true, func(ctx context.Context, e *endpoint) (struct{}, error) {
		result, err := e.BroadcastTxSync(ctx, raw)
		switch {
		case err == nil && result.Code == 0:
			return struct{}{}, nil
		case err == nil:
			return struct{}{}, &TxError{Hash: raw.Hash(), Code: txCode(result.Code), Log: result.Log}
		case answered(err) && strings.Contains(err.Error(), "tx already exists in cache"):
			return struct{}{}, errInCache
		case answered(err) || notSent(err):
			return struct{}{}, err
		default:
			return struct{}{}, &UnknownOutcomeError{Hash: raw.Hash(), Err: err}
		}
	})
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		e.update(func(r *record) { r.lose(fmt.Errorf("%w for %v", errSilent, limit)) })
	}
	return err
}
