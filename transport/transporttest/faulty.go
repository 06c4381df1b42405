package transporttest

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/starling-kv/starling/transport"
)

// Faults describes the faults of a peer. Shares are between 0 and 1. The zero value means no
// faults.
type Faults struct {
	Refuse     float64       // share of dials that fail
	Loss       float64       // share of calls that are never answered
	Delay      time.Duration // before an answer ...
	Jitter     time.Duration // ... and up to that much more, so that answers overtake each other
	Reorder    float64       // share of answers held back until overtaken, or for a second
	Truncate   float64       // share of answers that are truncated
	Corrupt    float64       // share of answers with one bit flipped
	Rate       int64         // bytes of answers per second, over all connections to it; 0: no limit
	Disconnect int           // calls after which a connection breaks; 0: never
}

// Faulty is a dialer that injects faults. The outcome of a call depends on the seed, the peer, the
// method, the body and how often that call was made before, but not on the order of calls. It uses
// package time, so it works in virtual time.
type Faulty struct {
	Dialer transport.Dialer
	Seed   uint64
	Faults func(transport.Address) Faults // called at every dial

	mu    sync.Mutex
	asked map[[sha256.Size]byte]uint64 // number of calls by hash of the call
	links map[string]*link             // by host and port
}

// link is the network link to a peer.
type link struct {
	sync.Mutex
	free time.Time // when everything handed over will be transmitted
}

const overtaken = time.Second // how long an answer waits to be overtaken

var errRefused = errors.New("connection refused")

// Dial implements transport.Dialer.
func (f *Faulty) Dial(ctx context.Context, a transport.Address) (transport.Conn, error) {
	faults := f.Faults(a)
	if f.fate("dial", a.HostPort, 0, nil).Float64() < faults.Refuse {
		return nil, fmt.Errorf("dial %s: %w", a, errRefused)
	}
	c, err := f.Dialer.Dial(ctx, a)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.links == nil {
		f.links = make(map[string]*link)
	}
	if f.links[a.HostPort] == nil {
		f.links[a.HostPort] = &link{}
	}
	return &faultyConn{Conn: c, f: f, faults: faults, link: f.links[a.HostPort], passed: make(chan struct{})}, nil
}

// fate returns the random source for a call: it depends on the peer, the call and its number of
// repetitions.
func (f *Faulty) fate(what, hostPort string, method transport.Method, body []byte) *rand.Rand {
	h := sha256.New()
	fmt.Fprintf(h, "%d %s %s %d ", f.Seed, what, hostPort, method)
	h.Write(body)
	key := [sha256.Size]byte(h.Sum(nil))
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.asked == nil {
		f.asked = make(map[[sha256.Size]byte]uint64)
	}
	f.asked[key]++
	return rand.New(rand.NewPCG(binary.BigEndian.Uint64(key[:]), f.asked[key])) //nolint:gosec // must be reproducible
}

type faultyConn struct {
	transport.Conn
	f      *Faulty
	faults Faults
	link   *link
	calls  atomic.Int64

	mu     sync.Mutex
	passed chan struct{} // closed and replaced when an answer passes
}

// Call implements transport.Conn.
func (c *faultyConn) Call(ctx context.Context, call transport.Call) ([]byte, error) {
	if n := c.faults.Disconnect; n > 0 && c.calls.Add(1) > int64(n) {
		if err := c.Conn.Close(); err != nil {
			return nil, err
		}
	}
	fate := c.f.fate("call", c.Conn.Remote().HostPort, call.Method, call.Body)
	lost, reorder, truncate, corrupt := fate.Float64() < c.faults.Loss, fate.Float64() < c.faults.Reorder,
		fate.Float64() < c.faults.Truncate, fate.Float64() < c.faults.Corrupt
	delay := c.faults.Delay + time.Duration(fate.Float64()*float64(c.faults.Jitter))
	if lost {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-c.Done():
			return nil, c.Err()
		}
	}
	received := call.Received // counted below, at the speed of the link
	call.Received = nil
	got, err := c.Conn.Call(ctx, call)
	if err == nil && truncate && len(got) > 0 {
		got = got[:fate.IntN(len(got))]
	}
	if err == nil && corrupt && len(got) > 0 {
		got[fate.IntN(len(got))] ^= 1 << fate.IntN(8)
	}
	if err := c.wait(ctx, delay); err != nil {
		return nil, err
	}
	if reorder {
		if err := c.fallBehind(ctx); err != nil {
			return nil, err
		}
	}
	if err := c.transmit(ctx, len(got), received); err != nil {
		return nil, err
	}
	c.pass()
	return got, err
}

// wait waits for d, or until the connection or the call ends.
func (c *faultyConn) wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	return c.await(ctx, d, nil)
}

func (c *faultyConn) await(ctx context.Context, d time.Duration, other <-chan struct{}) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-other:
	case <-ctx.Done():
		return ctx.Err()
	case <-c.Done():
		return c.Err()
	}
	return nil
}

// fallBehind waits until another answer has passed.
func (c *faultyConn) fallBehind(ctx context.Context) error {
	c.mu.Lock()
	passed := c.passed
	c.mu.Unlock()
	return c.await(ctx, overtaken, passed)
}

func (c *faultyConn) pass() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.passed)
	c.passed = make(chan struct{})
}

// transmit waits as long as the link needs for n bytes. Answers take turns with 16 KiB each.
func (c *faultyConn) transmit(ctx context.Context, n int, received *atomic.Int64) error {
	for n > 0 {
		part := n
		if c.faults.Rate > 0 {
			part = min(n, 16<<10)
			if err := c.wait(ctx, c.link.reserve(time.Duration(float64(part)/float64(c.faults.Rate)*float64(time.Second)))); err != nil {
				return err
			}
		}
		if n -= part; received != nil {
			received.Add(int64(part))
		}
	}
	return nil
}

// reserve reserves the link for a transmission that takes d, and returns the time until its end.
func (l *link) reserve(d time.Duration) time.Duration {
	l.Lock()
	defer l.Unlock()
	now := time.Now()
	if l.free.Before(now) {
		l.free = now
	}
	l.free = l.free.Add(d)
	return l.free.Sub(now)
}
