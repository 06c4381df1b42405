package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/cometbft/cometbft/types"

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
	left      bool          // its caller has left; guarded by groups.mu
	done      chan struct{} // closed when result and err are set
	result    *TxResult
	err       error
}

// group has the writes of one transaction.
type group struct {
	cancel context.CancelFunc

	// The following fields are guarded by groups.mu.
	members []*member // those of the transaction that was signed last
	callers int       // that still wait
	hash    []byte    // of that transaction; nil: none was signed yet
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
	if m.left = true; m.group == nil {
		g.waiting = slices.DeleteFunc(g.waiting, func(other *member) bool { return other == m })
	} else if m.group.callers--; m.group.callers == 0 {
		m.group.cancel()
	}
	if m.group == nil || m.group.hash == nil {
		return fmt.Errorf("client: wait for the account's turn: %w", ctx.Err()), true
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
		sign := g.signs(next)
		sent, err := g.client.send(ctx, sign)
		if sent == nil {
			g.finish(next, nil, err)
			continue
		}
		go func() {
			result, err := g.client.outcome(ctx, sent, err, sign)
			g.finish(next, result, err)
		}()
	}
}

// signs signs the writes of a group whose callers have not left. A caller leaves either before, and
// its write is not sent, or afterwards, with the hash: so g.mu is locked while the client signs. A
// write whose caller left with the hash of another transaction is not signed again.
func (g *groups) signs(next *group) signing {
	return func(nonce uint64) (types.Tx, error) {
		g.mu.Lock()
		defer g.mu.Unlock()
		next.members = slices.DeleteFunc(next.members, func(m *member) bool { return m.left })
		if len(next.members) == 0 {
			return nil, context.Canceled
		}
		operations := make([]tx.Operation, len(next.members))
		for i, m := range next.members {
			operations[i] = m.operation
		}
		raw, err := g.client.signs(operations)(nonce)
		if err == nil {
			next.hash = raw.Hash()
		}
		return raw, err
	}
}

// finish gives each member of a group its result.
func (g *groups) finish(done *group, result *TxResult, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err == nil && len(result.Results) != len(done.members) {
		err = fmt.Errorf("client: transaction %X has %d results, want %d", result.Hash, len(result.Results), len(done.members))
	}
	if len(done.members) > 1 && err != nil && !errors.As(err, new(*UnknownOutcomeError)) && !errors.As(err, new(*CallError)) {
		err = errAlone // one of the writes may be the reason, and the others are not to blame
	}
	for i, m := range done.members {
		if m.err = err; err == nil {
			m.result = &TxResult{Hash: result.Hash, Height: result.Height, Results: result.Results[i : i+1 : i+1]}
		}
		close(m.done)
	}
	done.cancel()
}
