package rdma

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/starling-kv/starling/transport/rdma/internal/verbs"
	"github.com/starling-kv/starling/transport/tcp"
)

// Request bodies are written into buffers that the server lends, called places: one for each call
// under way.
//
//	dialer  Carry: place taken ──► written ═══► arrived ─┬─► place free
//	                   └─ frame 11, by TLS ──► ending ───┘
//	server  frame 11 ──► Expect ─┬─► come ──► copied, hashed ──► Handler
//	        immediate ═══════════┘        in either order
const (
	bodyUnit = tcp.MostCarried
	bodies   = 16 // places; one for each call that can be under way
	// bodyReceives is the number of immediates that can arrive before the first one is handled. The
	// dialer reuses a place as soon as the device has acknowledged the previous write, which the
	// server may not have handled yet.
	bodyReceives = 4 * bodies
)

func lentBy(p *path) []byte {
	memory, _, _ := p.queue.Lent()
	return memory
}

// unit implements side.
func (*lending) unit() int { return unit }

// unit implements side.
func (*writer) unit() int { return bodyUnit }

// outbox is the dialer's side of request bodies.
type outbox struct {
	path *path

	mu struct {
		sync.Mutex
		places [bodies]*place // in use; nil: free
		round  int
	}
}

// place implements tcp.Place.
type place struct {
	lending *lending
	number  uint32
	length  int
	stall   *time.Timer

	arrived, delivered bool // guarded by outbox.mu
}

// Carry implements tcp.Lender.
func (l *lender) Carry(b []byte) tcp.Place {
	s := l.lent(true)
	if s == nil {
		return nil
	}
	p := s.take(len(b))
	if p == nil {
		return nil
	}
	region, at := s.path.peers(), firstUnit(p.number)*bodyUnit
	err := s.path.fill(at, b)
	if err == nil {
		err = s.path.queue.Write([]verbs.Write{{
			From: at, Length: len(b), To: region.address + uint64(at), Key: region.key, Immediate: p.number, Tag: uint32(firstUnit(p.number)),
		}})
	}
	if err != nil {
		s.path.end(err)
		return nil
	}
	return p
}

// take reserves a place for a body of n bytes; nil: none is free.
func (s *lending) take(n int) *place {
	o := &s.outbox
	most := min(bodies, s.path.peers().units)
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range most {
		if o.mu.places[i] != nil {
			continue
		}
		o.mu.round = (o.mu.round + 1) % rounds
		p := &place{lending: s, number: slotNumber(o.mu.round, i), length: n}
		p.stall = time.AfterFunc(s.path.fabric.o.stall, func() { s.path.end(ErrStalled) })
		o.mu.places[i] = p
		return p
	}
	return nil
}

// arrived implements side.
func (s *lending) arrived(tag uint32) {
	o := &s.outbox
	o.mu.Lock()
	p := o.mu.places[tag]
	p.stall.Stop()
	p.arrived = true
	o.free(p)
	o.mu.Unlock()
	if hook := s.path.fabric.o.Hooks.Sent; hook != nil {
		hook(s.path.peer, p.length)
	}
}

// free releases a place that neither side uses any more. The caller holds o.mu.
func (o *outbox) free(p *place) {
	if p.arrived && p.delivered {
		o.mu.places[firstUnit(p.number)] = nil
	}
}

// end stops all timers.
func (o *outbox) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range o.mu.places {
		if p != nil {
			p.stall.Stop()
		}
	}
}

// Number implements tcp.Place.
func (p *place) Number() uint32 { return p.number }

// Valid implements tcp.Place.
func (p *place) Valid() bool { return p.lending.lender.lent(true) == p.lending }

// Delivered implements tcp.Place.
func (p *place) Delivered() {
	o := &p.lending.outbox
	o.mu.Lock()
	defer o.mu.Unlock()
	p.delivered = true
	o.free(p)
}

// inbox is the server's side of request bodies.
type inbox struct {
	path   *path
	memory []byte

	bodies struct {
		sync.Mutex
		at [bodies]*body
		// late holds the immediates that can still arrive for requests that have ended.
		late map[uint32]struct{}
	}
}

// body implements tcp.Body. Unless its comment says otherwise, a field is guarded by inbox.bodies.
type body struct {
	inbox    *inbox
	number   uint32 // immutable
	length   int
	come     chan struct{} // closed when the body has arrived
	landed   bool
	expected bool // the request's frame has arrived
	stall    *time.Timer
}

// landed implements side: a body has arrived.
func (i *inbox) landed(number uint32, length int) error {
	unit := firstUnit(number)
	if number >= immediateLast || unit >= bodies || length > bodyUnit {
		return fmt.Errorf("%w: a body of %d bytes at place %d", ErrBreach, length, unit)
	}
	i.bodies.Lock()
	defer i.bodies.Unlock()
	b := i.bodies.at[unit]
	_, late := i.bodies.late[number]
	switch {
	case late:
		delete(i.bodies.late, number)
		return nil
	case b == nil: // it arrived before its frame
		b = i.newBody(number, length)
	case b.number != number || b.landed || b.length != length:
		return fmt.Errorf("%w: more bodies than open requests", ErrBreach)
	default:
		b.stall.Stop()
	}
	b.landed = true
	close(b.come)
	if hook := i.path.fabric.o.Hooks.Received; hook != nil {
		hook(i.path.peer, length)
	}
	return nil
}

// newBody occupies a place. The caller holds i.bodies.
func (i *inbox) newBody(number uint32, length int) *body {
	b := &body{inbox: i, number: number, length: length, come: make(chan struct{})}
	i.bodies.at[firstUnit(number)] = b
	return b
}

// Expect implements tcp.Writer.
func (i *inbox) Expect(number uint32, n int) tcp.Body {
	b, err := i.expect(number, n)
	if err != nil {
		i.path.end(err)
	}
	return b
}

// expect returns the body that a frame announces. After an error the body never arrives, because
// the path ends.
func (i *inbox) expect(number uint32, n int) (*body, error) {
	unit := firstUnit(number)
	wrong := &body{inbox: i, number: number, come: make(chan struct{}), landed: true, expected: true}
	if number >= immediateLast || unit >= bodies || n > bodyUnit {
		return wrong, fmt.Errorf("%w: a body of %d bytes at place %d", ErrBreach, n, unit)
	}
	i.bodies.Lock()
	defer i.bodies.Unlock()
	b := i.bodies.at[unit]
	switch {
	case b == nil:
		b = i.newBody(number, n)
		b.stall = time.AfterFunc(i.path.fabric.o.stall, func() { i.path.end(ErrStalled) })
	case b.number != number || b.length != n || b.expected:
		return wrong, fmt.Errorf("%w: two bodies at place %d", ErrBreach, unit)
	}
	b.expected = true
	return b, nil
}

// Wait implements tcp.Body.
func (b *body) Wait(ctx context.Context) error {
	select {
	case <-b.come:
		return nil
	case <-b.inbox.path.ended:
		return b.inbox.path.why()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Read implements tcp.Body.
func (b *body) Read(into []byte) error {
	p := b.inbox.path
	p.use.RLock()
	defer p.use.RUnlock()
	if err := p.why(); err != nil {
		return err
	}
	copy(into, b.inbox.memory[firstUnit(b.number)*bodyUnit:])
	return nil
}

// Wrong implements tcp.Body.
func (b *body) Wrong() {
	b.inbox.path.end(fmt.Errorf("%w: the hash of a body does not match", ErrBreach))
}

// Release implements tcp.Body.
func (b *body) Release() {
	i := b.inbox
	i.bodies.Lock()
	if b.stall != nil {
		b.stall.Stop()
	}
	if unit := firstUnit(b.number); unit < bodies && i.bodies.at[unit] == b {
		i.bodies.at[unit] = nil
		if !b.landed {
			i.bodies.late[b.number] = struct{}{}
		}
	}
	flood := len(i.bodies.late) > bodyReceives+bodies
	i.bodies.Unlock()
	if flood {
		i.path.end(fmt.Errorf("%w: too many bodies were announced and never arrived", ErrBreach))
	}
}
