package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/starling-kv/starling/tx"
)

// Limits of a transaction that WithGroupCommit makes. A single write may be larger.
const (
	maxGroupWrites = 512
	maxGroupBytes  = 512 << 10
)

// WithGroupCommit makes Put and Delete share transactions: a write that is requested while another
// is being sent waits for it, and is then sent in one transaction with all others that wait. A lone
// write does not wait. The transactions of many concurrent writes are fewer, and cost all nodes
// less.
//
// Each write still succeeds or fails on its own: if a transaction of several writes is refused,
// each of them is sent in a transaction of its own. Watchers see the writes of one transaction
// together.
func WithGroupCommit() Option {
	return func(c *Client) error {
		c.groups = &groups{client: c}
		return nil
	}
}

// groups combines the writes of concurrent callers into transactions.
//
//	write ──▶ waiting ──▶ one transaction ──▶ sent ──▶ in a block ──▶ each caller's result
//	                 (while the last one is sent)
type groups struct {
	client *Client

	mu      sync.Mutex
	waiting []*member // guarded by mu
	sending bool      // guarded by mu: a goroutine runs send
}

// member is a write that waits for its group.
type member struct {
	operation tx.Operation
	bytes     int
	group     *group        // nil while it waits; guarded by groups.mu
	done      chan struct{} // closed when result and err are set
	result    *TxResult
	err       error
}

// group has the writes of one transaction.
type group struct {
	members []*member
	cancel  context.CancelFunc
	callers int    // that still wait; guarded by groups.mu
	hash    []byte // nil: not sent yet; guarded by groups.mu
}

// errAlone means that a write has to be sent in a transaction of its own.
var errAlone = errors.New("client: the group's transaction was refused")

// write executes one operation, in a transaction that it may share.
func (g *groups) write(ctx context.Context, operation tx.Operation, bytes int) (*TxResult, error) {
	m := &member{operation: operation, bytes: bytes, done: make(chan struct{})}
	g.mu.Lock()
	g.waiting = append(g.waiting, m)
	if !g.sending {
		g.sending = true
		go g.send()
	}
	g.mu.Unlock()
	select {
	case <-m.done:
	case <-ctx.Done():
		if err, left := g.leave(ctx, m); left {
			return nil, err
		}
	}
	if errors.Is(m.err, errAlone) {
		return g.client.Submit(ctx, operation)
	}
	return m.result, m.err
}

// leave ends the wait of a caller whose context has ended. It returns false if the result is there.
func (g *groups) leave(ctx context.Context, m *member) (error, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-m.done:
		return nil, false
	default:
	}
	if m.group == nil {
		g.waiting = slices.DeleteFunc(g.waiting, func(other *member) bool { return other == m })
		return fmt.Errorf("client: wait for the account's turn: %w", ctx.Err()), true
	}
	if m.group.callers--; m.group.callers == 0 {
		m.group.cancel()
	}
	return &UnknownOutcomeError{Hash: m.group.hash, Err: fmt.Errorf("%w while waiting for a block", ctx.Err())}, true
}

// next returns the writes of the next transaction, and a context that ends when all callers have
// left. It returns nil, and the caller ends, if no write waits.
func (g *groups) next() (context.Context, *group) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n, bytes := 0, 0
	for ; n < len(g.waiting) && n < maxGroupWrites; n++ {
		if bytes += g.waiting[n].bytes; n > 0 && bytes > maxGroupBytes {
			break
		}
	}
	if n == 0 {
		g.sending = false
		return nil, nil
	}
	ctx, cancel := context.WithCancel(context.Background()) //nolint:gosec // finish and leave call it
	next := &group{members: slices.Clone(g.waiting[:n]), cancel: cancel, callers: n}
	g.waiting = slices.Delete(g.waiting, 0, n)
	for _, m := range next.members {
		m.group = next
	}
	return ctx, next
}

// send sends one transaction after the other until no write waits. It does not wait for blocks.
func (g *groups) send() {
	for {
		ctx, next := g.next()
		if next == nil {
			return
		}
		operations := make([]tx.Operation, len(next.members))
		for i, m := range next.members {
			operations[i] = m.operation
		}
		sent, err := g.client.send(ctx, operations)
		if sent == nil {
			g.finish(next, nil, err)
			continue
		}
		g.mu.Lock()
		next.hash = sent.Hash
		g.mu.Unlock()
		go func() {
			result, err := g.client.outcome(ctx, sent, err, operations)
			g.finish(next, result, err)
		}()
	}
}

// finish gives each member of a group its result.
func (g *groups) finish(done *group, result *TxResult, err error) {
	if err == nil && len(result.Results) != len(done.members) {
		err = fmt.Errorf("client: transaction %X has %d results, want %d", result.Hash, len(result.Results), len(done.members))
	}
	if len(done.members) > 1 && err != nil && !errors.As(err, new(*UnknownOutcomeError)) && !errors.As(err, new(*CallError)) {
		err = errAlone // one of the writes may be the reason, and the others are not to blame
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, m := range done.members {
		if m.err = err; err == nil {
			m.result = &TxResult{Hash: result.Hash, Height: result.Height, Results: result.Results[i : i+1 : i+1]}
		}
		close(m.done)
	}
	done.cancel()
}
