package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/transport"
)

const (
	dialTimeout = 5 * time.Second
	// pollTimeout limits a request for claims.
	pollTimeout = 5 * time.Second
)

// errUnconnected: there is currently no connection to the node.
var errUnconnected = errors.New("not connected")

// peer is a storage node with one connection, which is dialled again after it ends.
type peer struct {
	c       *Client
	node    dsm.NodeID
	address transport.Address
	ctx     context.Context //nolint:containedctx // ends with the Client, or when no layout has the node
	end     context.CancelFunc

	mu struct {
		sync.Mutex
		conn    transport.Conn
		attempt chan struct{} // closed when the current dial ends; nil: none in progress
		err     error         // why there is no connection
		claims  []dsm.Claim   // latest claims: hints
		polled  time.Time     // when it was last asked for claims
	}
}

func newPeer(c *Client, n dsm.NodeID, a transport.Address) *peer {
	p := &peer{c: c, node: n, address: a}
	p.ctx, p.end = context.WithCancel(c.ctx)
	p.mu.attempt, p.mu.err = make(chan struct{}), errUnconnected
	return p
}

// run maintains the connection, and polls for claims when none have arrived for a while. It returns
// after end.
func (p *peer) run() {
	pause := p.c.o.Feed.BackOff
	for p.ctx.Err() == nil {
		conn, err := p.dial()
		if err != nil {
			p.c.o.Logger.Debug("cannot reach a storage node", "node", p.node, "address", p.address.HostPort, "err", err)
			_ = sleep.For(p.ctx, pause)
			pause = min(2*pause, p.c.o.Feed.MaxBackOff)
			p.again()
			continue
		}
		pause = p.c.o.Feed.BackOff
		p.c.up(p.node)
		p.serve(conn)
		p.again()
	}
	p.set(nil, ErrClosed)
}

// dial connects to the node. Requests wait for the outcome.
func (p *peer) dial() (transport.Conn, error) {
	ctx, cancel := context.WithTimeout(p.ctx, dialTimeout)
	defer cancel()
	conn, err := p.c.o.Dialer.Dial(ctx, p.address)
	if err != nil {
		conn = nil
	}
	p.set(conn, err)
	return conn, err
}

// serve polls for claims until the connection ends.
func (p *peer) serve(conn transport.Conn) {
	every := time.NewTicker(p.c.o.Feed.Poll)
	defer every.Stop()
	for first := true; ; first = false {
		if first || p.isDue() {
			p.c.wg.Go(func() { p.poll(p.ctx) })
		}
		select {
		case <-every.C:
		case <-conn.Done():
			return
		case <-p.ctx.Done():
			if err := conn.Close(); err != nil {
				p.c.o.Logger.Debug("closing a connection", "node", p.node, "err", err)
			}
			return
		}
	}
}

// set ends a connection attempt. conn is nil if the attempt failed.
func (p *peer) set(conn transport.Conn, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.conn, p.mu.err = conn, err
	if p.mu.attempt != nil {
		close(p.mu.attempt)
		p.mu.attempt = nil
	}
}

// again starts a connection attempt.
func (p *peer) again() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.conn, p.mu.attempt = nil, make(chan struct{})
}

// connection returns the connection. It waits for an attempt in progress.
func (p *peer) connection(ctx context.Context) (transport.Conn, error) {
	p.mu.Lock()
	attempt := p.mu.attempt
	p.mu.Unlock()
	if attempt != nil {
		select {
		case <-attempt:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-p.ctx.Done():
			return nil, ErrClosed
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.conn == nil {
		if p.mu.err != nil {
			return nil, fmt.Errorf("%w: %w", errUnconnected, p.mu.err)
		}
		return nil, errUnconnected
	}
	return p.mu.conn, nil
}

// call sends a request to the node and counts it in the metrics.
func (p *peer) call(ctx context.Context, method transport.Method, body []byte, most int) ([]byte, error) {
	conn, err := p.connection(ctx)
	if err != nil {
		return nil, err
	}
	b, err := conn.Call(ctx, transport.Call{Method: method, Body: body, Max: most})
	p.c.o.Metrics.called(p.node, method, len(body), len(b), err)
	return b, err
}

// poll requests the node's claims and passes them to both machines.
func (p *peer) poll(ctx context.Context) (claims []dsm.Claim, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	p.mu.Lock()
	p.mu.polled = time.Now()
	p.mu.Unlock()
	b, err := p.call(ctx, dsm.MethodRanges, nil, dsm.MaxClaimsBytes)
	if err != nil {
		return nil, false
	}
	if claims, err = dsm.DecodeClaims(b); err != nil {
		p.c.o.Logger.Error("a storage node sent malformed claims", "node", p.node, "err", err)
		return nil, false
	}
	p.mu.Lock()
	p.mu.claims = claims
	p.mu.Unlock()
	p.c.claimed(p.node, claims)
	return claims, true
}

// isDue reports whether the last poll is at least Feed.Poll ago.
func (p *peer) isDue() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.mu.polled) >= p.c.o.Feed.Poll
}

// latest returns the claims that the node reported last.
func (p *peer) latest() []dsm.Claim {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.claims
}

// newest returns the newest height that the node claims for a range, or 0 if none.
func (p *peer) newest(r avlstar.KeyRange) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.mu.claims {
		if c.Range.Covers(r) {
			return c.Newest
		}
	}
	return 0
}
