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

	"github.com/starling-kv/starling/statesync/fastsync"
	"github.com/starling-kv/starling/transport"
)

// ServeKinds are the attackers of a validator that serves. They come from six hosts, but for those
// that only connect, who are two.
//
//	pending  64 connections that say nothing
//	idle     96 authenticated connections without requests
//	bytes    requests for one byte of a chunk, 192 at a time
//	bodies   32 requests whose bodies of 1 MiB are announced and never come
//	unread   32 connections that request chunks and read no answer
var ServeKinds = []string{"pending", "idle", "bytes", "bodies", "unread"}

// attackHosts are the hosts of attackers; each has the address 127.0.0.(attackFrom + i).
const attackHosts, attackFrom = 6, 100

// comeBack is how long an attacker waits before it connects again, so that attackers are no flood
// of connections.
const comeBack = 250 * time.Millisecond

// attackers are those of one kind: how many, from how many hosts, and what one does with the
// address of its victim until it is thrown out.
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
		_, err = c.Read(make([]byte, 1)) // until it is closed
		return err
	}},
	"idle": {96, attackHosts, func(ctx context.Context, host string, t Target) error {
		return connected(ctx, host, t, nil, func(ctx context.Context, conn transport.Conn) error { <-ctx.Done(); return ctx.Err() })
	}},
	"bytes": {24, attackHosts, func(ctx context.Context, host string, t Target) error {
		return connected(ctx, host, t, nil, func(ctx context.Context, conn transport.Conn) error {
			return flood(ctx, conn, 8, func(height []byte, k uint32, bytes uint32) ([]byte, int) {
				b := chunkBody(height, k, 1)
				binary.BigEndian.PutUint32(b[12:], rand.Uint32N(bytes)) //nolint:gosec // any byte will do
				return b, 1
			})
		})
	}},
	"bodies": {32, attackHosts, func(ctx context.Context, host string, t Target) error {
		s := &stingy{closed: make(chan struct{})}
		return connected(ctx, host, t, s, func(ctx context.Context, conn transport.Conn) error {
			s.stop(false, true)
			_, err := conn.Call(ctx, transport.Call{Method: fastsync.MethodStatus, Body: make([]byte, transport.MaxBody), Max: 1})
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

// siegeOf begins an attack; end ends it.
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
					_ = a.visit(ctx, host, t) // whatever it was thrown out for, it comes back
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

// connected dials from host, and calls do until it returns or the connection ends.
func connected(ctx context.Context, host string, t Target, s *stingy, do func(context.Context, transport.Conn) error) error {
	a, err := t.addresses()
	if err != nil {
		return err
	}
	var wrap func(net.Conn) net.Conn
	if s != nil {
		wrap = func(c net.Conn) net.Conn { s.Conn = c; return s }
	}
	d, err := dialFrom(host, wrap)
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
	go func() { // it ends with ctx
		select {
		case <-conn.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	return do(ctx, conn)
}

// flood requests something of random chunks of the newest snapshot, n requests at a time, until ctx
// ends. ask returns the body of a request about chunk k, and the length of its answer.
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
				k := rand.Uint32N(uint32(len(m.Entries))) //nolint:gosec // any chunk will do
				body, length := ask(height, k, uint32(m.Entries[k].Root.Bytes))
				_, err := conn.Call(ctx, transport.Call{Method: fastsync.MethodChunk, Body: body, Into: make([]byte, length)})
				if errors.Is(err, transport.ErrGone) {
					return // another snapshot, with another connection
				}
			}
		})
	}
	callers.Wait()
	return nil
}

// stingy is a connection that stops to read, or to write after what a request begins with.
type stingy struct {
	net.Conn
	mu      sync.Mutex
	reading bool // stopped
	writing bool // stopped, but for left bytes
	left    int
	closed  chan struct{}
	closing sync.Once
}

// stop ends reads, writes, or both.
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
