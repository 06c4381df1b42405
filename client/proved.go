package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	rpcclient "github.com/cometbft/cometbft/rpc/client"
	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/statesync/lightclient"
)

const (
	// behindPatience limits the wait for a node to reach a height that the client has verified.
	behindPatience = 10 * time.Second
	// claimPatience limits the wait for a node to reach a height that another node only reported.
	claimPatience = 2 * time.Second
	// secondOpinion is how long to wait for the header that proves an answer before another node is
	// asked as well. The node may have reported a height that the chain has not reached.
	secondOpinion = time.Second
)

// noTransactions is the DataHash of a block without transactions.
var noTransactions = (&types.Data{}).Hash()

// errNotIdle: the header of an answer's own block does not prove it.
var errNotIdle = errors.New("the block has transactions, or a later state is known")

// proof checks an answer against the app hash of its state.
type proof func(appHash avlstar.Hash) error

// query is a read of the application's state.
type query[T any] struct {
	readOptions
	path   string
	data   []byte
	decode func(*abci.ResponseQuery) (T, proof, error)
}

// reply is a decoded answer of one node.
type reply[T any] struct {
	value  T
	height int64
	proof  proof
	from   *endpoint
}

// read sends a query to the nodes. If the client verifies, it returns only proved answers:
//
//	ask ──► answer of height H ──► header H+1, verified ──► proof ──► done
//	           │                        │ not there after secondOpinion, or the proof is wrong
//	           ▼ older than the floor   ▼
//	       ask the node again,      ask another node, too; the first that is proved wins
//	       and others as well
//
// The floor is the height of the last verified state. It never comes from an unverified report of a
// node, so a node that reports an enormous height causes a second opinion and blocks nothing.
func read[T any](ctx context.Context, c *Client, q query[T]) (T, State, error) {
	if !c.verifies(q.readOptions) {
		a, err := askReply(ctx, c, q, nil)
		if err == nil && q.height == 0 && c.verifier == nil {
			c.pool.claimed(a.height)
		}
		return a.value, State{Height: a.height}, err
	}
	a, state, err := readProved(ctx, c, q, nil)
	if err == nil {
		c.pool.verified(state.Height)
	}
	return a.value, state, err
}

// askReply returns the first answer that is recent enough, from any node except those to avoid.
func askReply[T any](ctx context.Context, c *Client, q query[T], avoid []*endpoint) (reply[T], error) {
	a, _, err := ask(ctx, c.pool, question[reply[T]]{
		what:  "query " + q.path,
		short: q.path == "/key",
		avoid: avoid,
		final: refusedByAll,
		call: func(ctx context.Context, e *endpoint) (reply[T], error) {
			return replyOf(ctx, c, q, e)
		},
	})
	return a, err
}

// replyOf asks one node until its answer is recent enough. Meanwhile the caller asks others.
func replyOf[T any](ctx context.Context, c *Client, q query[T], e *endpoint) (reply[T], error) {
	began := time.Now()
	for wait := firstPoll; ; wait = min(2*wait, longPoll) {
		result, err := queryOne(ctx, e, q.path, q.data, rpcclient.ABCIQueryOptions{Height: q.height, Prove: q.prove})
		if err != nil {
			return reply[T]{}, err
		}
		a := reply[T]{height: result.Response.Height, from: e}
		if c.verifies(q.readOptions) && (a.height < 1 || a.height == math.MaxInt64) {
			return reply[T]{}, fmt.Errorf("%w: it is from height %d", ErrUnproved, a.height)
		}
		if err = c.tooOld(a.height, q.readOptions, time.Since(began)); err != nil {
			e.isAlive()
			e.isBehind()
			if time.Since(began) > behindPatience || sleep.For(ctx, wait) != nil {
				return reply[T]{}, err
			}
			continue
		}
		if q.height != 0 && a.height != q.height {
			return reply[T]{}, fmt.Errorf("%w: it is from height %d, %d was asked for", ErrUnproved, a.height, q.height)
		}
		if q.height == 0 {
			e.isCurrent()
		}
		a.value, a.proof, err = q.decode(&result.Response)
		return a, err
	}
}

// tooOld returns errBehind if an answer is older than the heights that the client knows. It forgets
// a height that a node only reported if no node has reached it within claimPatience.
func (c *Client) tooOld(height int64, o readOptions, waited time.Duration) error {
	verified, claimed := c.pool.floors()
	switch {
	case o.height != 0:
		return nil
	case height < verified:
		return fmt.Errorf("%w: its answer is from height %d, %d is verified already", errBehind, height, verified)
	case height < claimed && waited < claimPatience:
		return fmt.Errorf("%w: its answer is from height %d, %d was reported already", errBehind, height, claimed)
	case height < claimed:
		c.pool.unclaim(claimed)
	}
	return nil
}

// readProved is read for a client that verifies, from any node except those to avoid.
func readProved[T any](ctx context.Context, c *Client, q query[T], avoid []*endpoint) (reply[T], State, error) {
	a, err := askReply(ctx, c, q, avoid)
	if err != nil {
		return reply[T]{}, State{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type outcome struct {
		reply reply[T]
		state State
		err   error
	}
	outcomes := make(chan outcome, 2)
	go func() {
		state, err := c.prove(ctx, a.height, q.height == 0, a.from, a.proof)
		outcomes <- outcome{a, state, err}
	}()
	avoid = append(avoid[:len(avoid):len(avoid)], a.from)
	another := len(avoid) < c.pool.nodes
	second := time.NewTimer(secondOpinion)
	defer second.Stop()
	var failures []error
	for pending := 1; pending > 0; {
		select {
		case o := <-outcomes:
			pending--
			switch {
			case o.err == nil:
				if o.reply.height < a.height-1 {
					a.from.isDoubted() // no other node confirmed the height that it reported
				}
				return o.reply, o.state, nil
			case errors.Is(o.err, ErrConflict):
				return reply[T]{}, State{}, o.err
			case errors.Is(o.err, ErrUnproved) && o.reply.from == a.from:
				a.from.isDoubted()
			}
			failures = append(failures, o.err)
		case <-second.C:
		}
		if another && ctx.Err() == nil {
			another = false
			pending++
			go func() {
				reply, state, err := readProved(ctx, c, q, avoid)
				outcomes <- outcome{reply, state, err}
			}()
		}
	}
	return reply[T]{}, State{}, errors.Join(failures...)
}

// prove checks the proof of an answer at a height, and returns its state. The header that proves
// the newest state is that of the next block, which an idle network does not make for a while. If
// there is no such block yet, prove tries the header of the answer's own block as well.
func (c *Client) prove(ctx context.Context, height int64, newest bool, from *endpoint, check proof) (State, error) {
	if !newest {
		return c.proveNext(ctx, height, from, check, nil)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type outcome struct {
		state State
		err   error
	}
	next, idle, late := make(chan outcome, 1), make(chan State, 1), make(chan struct{}, 1)
	go func() {
		s, err := c.proveNext(ctx, height, from, check, sync.OnceFunc(func() { late <- struct{}{} }))
		next <- outcome{s, err}
	}()
	for {
		select {
		case <-late:
			go func() {
				if s, err := c.proveIdle(ctx, height, from, check); err == nil {
					idle <- s
				}
			}()
		case s := <-idle:
			return s, nil
		case o := <-next:
			return o.state, o.err
		}
	}
}

// proveIdle proves an answer by the header of its own block, whose app hash is that of the state
// before the block. That is sufficient if the block has no transactions: all writes that are known
// to be done are in earlier blocks. The state is then that of the height below the answer's.
func (c *Client) proveIdle(ctx context.Context, height int64, from *endpoint, check proof) (State, error) {
	header, err := c.verifier.await(ctx, height, from, nil)
	if err != nil {
		return State{}, err
	}
	verified, claimed := c.pool.floors()
	if lightclient.IsFirst(header) || !bytes.Equal(header.DataHash, noTransactions) || height <= max(verified, claimed) {
		return State{}, errNotIdle
	}
	return stateOf(header, from, check)
}

// proveNext proves an answer at a height by the header of the next block. It calls late, which may
// be nil, at most once, if there is no such block yet.
func (c *Client) proveNext(ctx context.Context, height int64, from *endpoint, check proof, late func()) (State, error) {
	header, err := c.verifier.await(ctx, height+1, from, late)
	if err != nil {
		return State{}, err
	}
	return stateOf(header, from, check)
}

// stateOf checks a proof against the app hash of a header, and returns the state before its block.
func stateOf(header *types.Header, from *endpoint, check proof) (State, error) {
	s := State{Height: header.Height - 1, Time: header.Time, Verified: true}
	if len(header.AppHash) != len(s.AppHash) {
		return State{}, fmt.Errorf("%w: header %d has an app hash of %d bytes: not a Starling chain", ErrUnproved, header.Height, len(header.AppHash))
	}
	s.AppHash = avlstar.Hash(header.AppHash)
	if err := check(s.AppHash); err != nil {
		return State{}, fmt.Errorf("%w by app hash %v at height %d, %s is Byzantine or broken: %w", ErrUnproved, s.AppHash, s.Height, from.Remote(), err)
	}
	return s, nil
}
