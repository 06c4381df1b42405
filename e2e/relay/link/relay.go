package link

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"
)

const (
	// maxConnections bounds the connections of a relay. A large network needs some hundreds.
	maxConnections = 8192
	// dialTimeout limits the time to dial a target, which is on the same machine or in the same
	// network of containers.
	dialTimeout = 5 * time.Second
	// acceptPause is the pause after a failed accept.
	acceptPause = 100 * time.Millisecond
)

// pair is a sender and a receiver.
type pair struct{ from, to string }

// Relay forwards the connections of all links. Its methods may be called concurrently.
type Relay struct {
	ctx    context.Context
	cancel context.CancelFunc
	dial   func(ctx context.Context, address string) (net.Conn, error)
	wg     sync.WaitGroup
	homes  map[string]string // by node

	ways map[pair]*way // both directions of every link; the map itself is immutable

	mu        sync.Mutex // guards the fields below, and changes of ways
	listeners []net.Listener
	conns     map[net.Conn]struct{}
	closed    bool
}

// New listens at all links and forwards connections, untreated. The caller must call Close.
func New(c Config) (*Relay, error) {
	r := newRelay(func(ctx context.Context, address string) (net.Conn, error) {
		return (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", address)
	}, c.Links, slices.Collect(maps.Keys(c.Homes))...)
	r.homes = c.Homes
	for _, l := range c.Links {
		listener, err := new(net.ListenConfig).Listen(r.ctx, "tcp", l.Listen)
		if err != nil {
			r.Close()
			return nil, fmt.Errorf("link from %s to %s: %w", l.From, l.To, err)
		}
		r.serve(listener, l)
	}
	return r, nil
}

func newRelay(dial func(ctx context.Context, address string) (net.Conn, error), links []Link, dialers ...string) *Relay {
	r := &Relay{dial: dial, ways: map[pair]*way{}, conns: map[net.Conn]struct{}{}}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	for _, l := range links {
		from := []string{l.From}
		if l.From == "" {
			from = append(from, dialers...)
		}
		for _, name := range from {
			for _, p := range []pair{{name, l.To}, {l.To, name}} {
				if r.ways[p] == nil {
					r.ways[p] = newWay()
				}
			}
		}
	}
	return r
}

// Set changes the treatment of pairs of nodes: all settings are applied, or none if there is an
// error.
func (r *Relay) Set(settings ...Setting) error {
	for _, s := range settings {
		if r.ways[pair{s.From, s.To}] == nil {
			return fmt.Errorf("there is no link between %q and %q", s.From, s.To)
		}
		if err := s.check(); err != nil {
			return fmt.Errorf("link from %s to %s: %w", s.From, s.To, err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range settings {
		r.ways[pair{s.From, s.To}].set(s.Treatment)
	}
	return nil
}

// Close ends all connections, and returns when all goroutines have ended. A second call has no
// effect.
func (r *Relay) Close() {
	r.mu.Lock()
	r.closed = true
	for _, l := range r.listeners {
		_ = l.Close()
	}
	r.listeners = nil
	for c := range r.conns {
		_ = c.Close()
	}
	r.mu.Unlock()
	r.cancel()
	r.wg.Wait()
}

// serve accepts the connections of a link, until Close.
func (r *Relay) serve(listener net.Listener, l Link) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		_ = listener.Close()
		return
	}
	r.listeners = append(r.listeners, listener)
	r.wg.Go(func() {
		for {
			conn, err := listener.Accept()
			switch {
			case errors.Is(err, net.ErrClosed):
				return
			case err != nil:
				// too many open files, or the dialer closed the connection: the next accept may
				// succeed
				select {
				case <-r.ctx.Done():
				case <-time.After(acceptPause):
				}
			case !r.hold(conn):
				_ = conn.Close()
			default:
				r.wg.Go(func() {
					defer r.release(conn)
					r.carry(conn, l)
				})
			}
		}
	})
}

// hold registers a connection for Close. It returns false if the relay is closed, or there are too
// many connections.
func (r *Relay) hold(conn net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || len(r.conns) >= maxConnections {
		return false
	}
	r.conns[conn] = struct{}{}
	return true
}

func (r *Relay) release(conn net.Conn) {
	_ = conn.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, conn)
}

// carry forwards one connection, until both sides have closed or one of them has failed.
func (r *Relay) carry(dialer net.Conn, l Link) {
	ctx, cancel := context.WithCancel(r.ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	context.AfterFunc(ctx, func() { _ = dialer.Close() })
	if l.From == "" {
		l.From = dialerOf(dialer, r.homes)
	}
	there, back := r.ways[pair{l.From, l.To}], r.ways[pair{l.To, l.From}]

	// The dialer is read from the beginning, so that the relay notices when it gives up.
	request := newQueue(ctx)
	wg.Go(func() { request.fill(dialer) })
	if !open(ctx, there, back, request.ended) {
		return
	}
	target, err := r.dial(ctx, l.Target)
	if err != nil {
		return
	}
	defer r.release(target)
	context.AfterFunc(ctx, func() { _ = target.Close() })
	if !r.hold(target) {
		return
	}
	answer := newQueue(ctx)
	wg.Go(func() { answer.fill(target) })
	var writers sync.WaitGroup
	for _, w := range []struct {
		from    *queue
		to      net.Conn
		by, rev *way
	}{{request, target, there, back}, {answer, dialer, back, there}} {
		writers.Go(func() {
			if !w.from.drain(ctx, w.to, w.by, w.rev) {
				cancel()
			}
		})
	}
	writers.Wait()
}

// open waits until a connection can be opened: a handshake needs both directions, and the first
// packet takes the delay of the path there.
func open(ctx context.Context, there, back *way, gaveUp <-chan struct{}) bool {
	arrived := time.Now()
	for {
		t, b := there.Load(), back.Load()
		if !t.Cut && !b.Cut {
			return there.pass(ctx, arrived)
		}
		select {
		case <-ctx.Done():
			return false
		case <-gaveUp:
			return false
		case <-t.replaced:
		case <-b.replaced:
		}
	}
}
