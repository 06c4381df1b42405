package source

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/transport"
)

const (
	dialTimeout = 5 * time.Second
	// pollTimeout limits a request for claims.
	pollTimeout = 5 * time.Second
)

// errUnconnected: there is no connection to the node just now.
var errUnconnected = errors.New("not connected")

// peer is a storage node: one connection, which is dialled anew when it has ended.
type peer struct {
	s       *Source
	node    dsm.Node
	address transport.Address

	mu struct {
		sync.Mutex
		conn    transport.Conn
		attempt chan struct{} // closed when the dial under way has ended; nil: none is under way
		err     error         // why there is no connection
	}
}

func newPeer(s *Source, n dsm.Node, a transport.Address) *peer {
	p := &peer{s: s, node: n, address: a}
	p.mu.attempt, p.mu.err = make(chan struct{}), errUnconnected
	return p
}

// run keeps the connection, and asks for claims when nothing was heard for a while, until the
// Source is closed.
func (p *peer) run() {
	pause := p.s.o.Feed.BackOff
	for p.s.ctx.Err() == nil {
		conn, err := p.dial()
		if err != nil {
			p.s.o.Logger.Debug("cannot reach a storage node", "node", p.node, "address", p.address.HostPort, "err", err)
			p.s.sleep(pause)
			pause = min(2*pause, p.s.o.Feed.MaxBackOff)
			p.again()
			continue
		}
		pause = p.s.o.Feed.BackOff
		p.s.up(p.node)
		p.serve(conn)
		p.again()
	}
	p.set(nil, ErrClosed)
}

// dial makes a connection, which requests wait for.
func (p *peer) dial() (transport.Conn, error) {
	ctx, cancel := context.WithTimeout(p.s.ctx, dialTimeout)
	defer cancel()
	conn, err := p.s.o.Dialer.Dial(ctx, p.address)
	if err != nil {
		conn = nil
	}
	p.set(conn, err)
	return conn, err
}

// serve returns when the connection has ended. Meanwhile it asks for claims.
func (p *peer) serve(conn transport.Conn) {
	every := time.NewTicker(p.s.o.Feed.Poll)
	defer every.Stop()
	for first := true; ; first = false {
		if first || !p.s.known.heardSince(p.node, time.Now().Add(-p.s.o.Feed.Poll)) {
			p.s.wg.Go(func() { p.poll() })
		}
		select {
		case <-every.C:
		case <-conn.Done():
			return
		case <-p.s.ctx.Done():
			if err := conn.Close(); err != nil {
				p.s.o.Logger.Debug("closing a connection", "node", p.node, "err", err)
			}
			return
		}
	}
}

// set ends an attempt to connect: conn is nil if it failed.
func (p *peer) set(conn transport.Conn, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.conn, p.mu.err = conn, err
	if p.mu.attempt != nil {
		close(p.mu.attempt)
		p.mu.attempt = nil
	}
}

// again begins an attempt to connect.
func (p *peer) again() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.conn, p.mu.attempt = nil, make(chan struct{})
}

// connection returns the connection. Where one is being made, it waits for that.
func (p *peer) connection(ctx context.Context) (transport.Conn, error) {
	p.mu.Lock()
	attempt := p.mu.attempt
	p.mu.Unlock()
	if attempt != nil {
		select {
		case <-attempt:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-p.s.ctx.Done():
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

// call sends a request to the node, and counts it.
func (p *peer) call(ctx context.Context, method uint8, body []byte, most int) ([]byte, error) {
	conn, err := p.connection(ctx)
	if err != nil {
		return nil, err
	}
	b, err := conn.Call(ctx, transport.Call{Method: transport.Method(method), Body: body, Max: most})
	p.s.o.Metrics.called(p.node, method, len(body), len(b), err)
	return b, err
}

// poll asks the node for its claims, and tells both machines.
func (p *peer) poll() (ok bool) {
	ctx, cancel := context.WithTimeout(p.s.ctx, pollTimeout)
	defer cancel()
	p.s.known.asked(p.node, time.Now())
	b, err := p.call(ctx, dsm.MethodRanges, nil, dsm.MaxClaimsBytes)
	if err != nil {
		return false
	}
	claims, err := dsm.DecodeClaims(b)
	if err != nil {
		p.s.o.Logger.Error("a storage node sent claims that cannot be read", "node", p.node, "err", err)
		return false
	}
	p.s.claimed(p.node, claims)
	return true
}

// sleep waits, or until the Source is closed.
func (s *Source) sleep(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.ctx.Done():
	}
}
