package syncbench

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/transport"
)

// ServeKinds are the attacks on a validator that serves. Attackers use six hosts, except for
// pending, which uses two.
//
//	pending  64 TCP connections without a handshake
//	idle     96 authenticated connections without requests
//	bytes    requests for one byte of a chunk, 192 at a time
//	bodies   32 requests that announce bodies of 1 MiB and never send them
//	unread   32 connections that request chunks and do not read the responses
var ServeKinds = []string{"pending", "idle", "bytes", "bodies", "unread"}

// attackHosts is the number of the attackers' hosts; host i has the address 127.0.0.(attackFrom +
// i).
const attackHosts, attackFrom = 6, 100

// comeBack is the pause before an attacker reconnects, so that the attack is not a connection
// flood.
const comeBack = 250 * time.Millisecond

// attackers describes the attackers of one kind: their number, the number of their hosts, and what
// each does with the address of its victim until it is disconnected.
type attackers struct {
	n, hosts int
	visit    func(ctx context.Context, host string, t Target) error
}

var attacks = map[string]attackers{
	"pending": {64, 2, func(ctx context.Context, host string, t Target) error {
		a, err := t.addresses()
		if err != nil {
			return err
		}
		c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(host)}}).DialContext(ctx, "tcp", a[0].HostPort)
		if err != nil {
			return err
		}
		defer context.AfterFunc(ctx, func() { _ = c.Close() })()
		defer c.Close()
		_, err = c.Read(make([]byte, 1)) // blocks until the victim closes the connection
		return err
	}},
	"idle": {96, attackHosts, func(ctx context.Context, host string, t Target) error {
		return connected(ctx, host, t, nil, func(ctx context.Context, conn transport.Conn) error { <-ctx.Done(); return ctx.Err() })
	}},
	"bytes": {24, attackHosts, func(ctx context.Context, host string, t Target) error {
		return connected(ctx, host, t, nil, func(ctx context.Context, conn transport.Conn) error {
			return flood(ctx, conn, 8, func(height []byte, k uint32, bytes uint32) ([]byte, int) {
				b := chunkBody(height, k, 1)
				binary.BigEndian.PutUint32(b[12:], rand.Uint32N(bytes)) //nolint:gosec // not used for security
				return b, 1
			})
		})
	}},
	"bodies": {32, attackHosts, func(ctx context.Context, host string, t Target) error {
		s := &stingy{closed: make(chan struct{})}
		return connected(ctx, host, t, s, func(ctx context.Context, conn transport.Conn) error {
			s.stop(false, true)
			_, err := conn.Call(ctx, transport.Call{Method: protocol.MethodStatus, Body: make([]byte, transport.MaxBody), Max: 1})
			return err
		})
	}},
	"unread": {32, attackHosts, func(ctx context.Context, host string, t Target) error {
		s := &stingy{closed: make(chan struct{})}
		return connected(ctx, host, t, s, func(ctx context.Context, conn transport.Conn) error {
			return flood(ctx, conn, 16, func(height []byte, k uint32, bytes uint32) ([]byte, int) {
				s.stop(true, false)
				return chunkBody(height, k, bytes), int(bytes)
			})
		})
	}},
}

// siegeOf starts an attack; end stops it.
func siegeOf(kind string, t Target) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for name, a := range attacks {
		if name != kind && kind != mixed {
			continue
		}
		for i := range a.n {
			host := loopback(attackFrom + i%a.hosts)
			all.Go(func() {
				for ctx.Err() == nil {
					_ = a.visit(ctx, host, t) // reconnect after every disconnect
					select {
					case <-ctx.Done():
					case <-time.After(comeBack):
					}
				}
			})
		}
	}
	return func() { cancel(); all.Wait() }
}

// connected dials from host, and calls do until do returns or the connection ends.
func connected(ctx context.Context, host string, t Target, s *stingy, do func(context.Context, transport.Conn) error) error {
	a, err := t.addresses()
	if err != nil {
		return err
	}
	var wrap func(net.Conn) net.Conn
	if s != nil {
		wrap = func(c net.Conn) net.Conn { s.Conn = c; return s }
	}
	d, err := dialFrom(host, t.ChainID, wrap)
	if err != nil {
		return err
	}
	dialling, cancel := context.WithTimeout(ctx, 10*time.Second)
	conn, err := d.Dial(dialling, a[0])
	cancel()
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel = context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with ctx
		select {
		case <-conn.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	return do(ctx, conn)
}

// flood requests parts of random chunks of the newest snapshot, n at a time, until ctx ends. ask
// returns the body of a request for chunk k, and the length of its response.
func flood(ctx context.Context, conn transport.Conn, n int, ask func(height []byte, k, bytes uint32) (body []byte, answer int)) error {
	newest, err := newestSnapshot(ctx, conn)
	if err != nil {
		return err
	}
	height, m, err := manifestOf(ctx, conn, newest)
	if err != nil {
		return err
	}
	var callers sync.WaitGroup
	for range n {
		callers.Go(func() {
			for ctx.Err() == nil {
				k := rand.Uint32N(uint32(len(m.Entries))) //nolint:gosec // not used for security
				body, length := ask(height, k, uint32(m.Entries[k].Root.Bytes))
				_, err := conn.Call(ctx, transport.Call{Method: protocol.MethodChunk, Body: body, Into: make([]byte, length)})
				if errors.Is(err, transport.ErrGone) {
					return // reconnect and use another snapshot
				}
			}
		})
	}
	callers.Wait()
	return nil
}

// stingy is a connection that stops reading, or that stops writing after the beginning of a
// request.
type stingy struct {
	net.Conn
	mu      sync.Mutex
	reading bool // reads are stopped
	writing bool // writes are stopped after left more bytes
	left    int
	closed  chan struct{}
	closing sync.Once
}

// stop stops reads, writes, or both.
func (s *stingy) stop(reads, writes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reading, s.writing, s.left = s.reading || reads, s.writing || writes, 4<<10
}

func (s *stingy) Read(b []byte) (int, error) {
	s.mu.Lock()
	stopped := s.reading
	s.mu.Unlock()
	if stopped {
		<-s.closed
		return 0, net.ErrClosed
	}
	return s.Conn.Read(b)
}

func (s *stingy) Write(b []byte) (int, error) {
	s.mu.Lock()
	stopped, n := s.writing, min(s.left, len(b))
	if stopped {
		s.left -= n
	}
	s.mu.Unlock()
	if !stopped {
		return s.Conn.Write(b)
	}
	if n, err := s.Conn.Write(slices.Clone(b[:n])); err != nil || n == len(b) {
		return n, err
	}
	<-s.closed
	return 0, net.ErrClosed
}

func (s *stingy) Close() error {
	s.closing.Do(func() { close(s.closed) })
	return s.Conn.Close()
}
