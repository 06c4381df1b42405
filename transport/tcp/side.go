package tcp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/starling-kv/starling/transport"
)

// Sides sets up a second path for the answers of a connection. The path bypasses TLS and writes
// into memory that the caller's side lends (package rdma). Requests, lengths and endings stay on
// TLS. Bytes that arrive over such a path prove nothing about their sender.
//
//	Call(Into) ── request with slot (frame 8) ──────────────► Handler
//	   ▲                                                        │
//	 landed ◄═══ pieces, written into the slot ═══ Writer ◄─────┤
//	 settled ◄── written (frame 10): all have arrived ──────────┘
//
// If a path is lost, either side reports it (frame 9), and the calls of the path are repeated over
// TLS.
type Sides interface {
	// Method is the method of the exchange by which a dialer proposes a path.
	Method() transport.Method
	// Dialled returns the lender of an outbound connection.
	Dialled(c *Conn) Lender
	// Proposed answers a proposal. The writer belongs to the connection from then on and replaces
	// an earlier one; ctx ends with the connection.
	Proposed(ctx context.Context, l Link, body []byte) (answer []byte, w Writer, err error)
}

// Link is the connection of a proposal.
type Link struct {
	Peer          transport.ID
	Local, Remote net.Addr
	// Lost is called once, when the path of the writer is lost. It is not called from within a
	// method of Writer.
	Lost func(why error)
}

// Lender lends memory to the server of a connection. Its methods do not block, and do not call
// methods of the connection before they return.
type Lender interface {
	// Start starts to propose paths, by calls on the connection: one now, and another one some time
	// after a path was refused or lost.
	Start()
	// Lend returns a slot for an answer of at most n bytes, or nil. landed is called by another
	// goroutine with each piece, in order, and must not keep it. An error is a breach of the
	// protocol and ends the path. lost is called once if the path is lost before the slot is
	// returned.
	Lend(n int, landed func(piece []byte, last bool) error, lost func()) Slot
	// Carry writes the body of a request, of at most MostCarried bytes, to the server. The number
	// of the place identifies the body to the server. Carry copies b before it returns. It returns
	// nil if there is no room or no path. It may block until the device accepts the write.
	Carry(b []byte) Place
	// Up reports whether there is a path.
	Up() bool
	// PeerLost handles the server's report that the path is lost.
	PeerLost()
	// Doubt records that an answer received over the path was wrong.
	Doubt()
	// Close ends the path together with its connection. No other path is proposed. It may be called
	// again.
	Close()
}

// Place is the server's memory to which the body of a request was written.
type Place interface {
	Number() uint32
	// Valid reports whether the path still exists.
	Valid() bool
	// Delivered records that the server has ended the request.
	Delivered()
}

// Slot is memory lent for one answer.
type Slot interface {
	Number() uint32
	// Abandoned records that the call has returned without an answer while the server has not ended
	// the request.
	Abandoned()
	// Ended records that the server has ended the request and writes nothing more. total is the
	// length of the answer that the server has written; negative: the answer was not written, or
	// only in part.
	Ended(total int)
}

// Writer writes answers into memory lent by the dialer, and reads bodies written by the dialer.
type Writer interface {
	// Takes reports whether n bytes can be written to a slot now.
	Takes(slot uint32, n int) bool
	// Write posts a piece of an answer. It waits until there is room, and copies the bytes before
	// it returns. With more, another call is certain to follow without delay, so that both may be
	// posted together. Only one goroutine calls it.
	Write(ctx context.Context, p Piece, more bool) error
	// Expect announces a body of n bytes that the dialer writes to a place. It does not wait for
	// the body.
	Expect(place uint32, n int) Body
	Close()
}

// Piece is a part of an answer that is written bypassing TLS.
type Piece struct {
	Slot  uint32
	At    int // offset in the answer
	Bytes []byte
	Last  bool
	// Arrived is called when the piece has arrived at the peer's device, unless the path is lost.
	Arrived func()
}

// Body is a body that a dialer writes bypassing TLS. Its bytes prove nothing about their sender.
type Body interface {
	// Wait waits for the body. It fails if the path is lost, or with ctx's error.
	Wait(ctx context.Context) error
	// Read copies the body after it has arrived. The dialer may still write to it meanwhile.
	Read(into []byte) error
	// Wrong reports that the bytes read differ from those sent. The path is not usable.
	Wrong()
	// Release is called when nothing more is read.
	Release()
}

// leastLent is the length of a buffer, in bytes, below which an answer does not justify a slot.
const leastLent = 16 << 10

// MaxSidePiece is the size limit of the pieces that bypass TLS, in bytes. Larger pieces would show
// no progress while they are written.
const MaxSidePiece = 256 << 10

// errSideLost ends a call whose path was lost. The call is repeated over TLS.
var errSideLost = errors.New("the path that bypasses TLS was lost")

var errLostFlood = fmt.Errorf("%w: a flood of lost paths", transport.ErrProtocol)

// LocalAddr returns the local address.
func (c *Conn) LocalAddr() net.Addr { return c.wire.Conn.LocalAddr() }

// RemoteAddr returns the peer's address.
func (c *Conn) RemoteAddr() net.Addr { return c.wire.Conn.RemoteAddr() }

// Unproved reports whether an answer has arrived bypassing TLS. A wrong answer is then no proof
// against the peer: repeat the call with Call.Proved.
func (c *Conn) Unproved() bool { return c.unproved.Load() }

// HasPath reports whether there is a path that bypasses TLS now.
func (c *Conn) HasPath() bool { return c.side != nil && c.side.Up() }

// Doubt records a wrong answer that may have arrived bypassing TLS.
func (c *Conn) Doubt() {
	if c.side != nil {
		c.side.Doubt()
	}
}

// SideLost tells the server that the path is lost.
func (c *Conn) SideLost() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.err == nil {
		c.mu.frames = appendHeader(c.mu.frames, frameLost, 0, 0)
		c.poke()
	}
}

// peerLost handles the server's report that the path is lost.
func (c *Conn) peerLost() error {
	if c.side == nil {
		return fmt.Errorf("%w: a path was reported lost, but there was none", transport.ErrProtocol)
	}
	if c.side.PeerLost(); !c.lost.Allow() {
		return errLostFlood
	}
	return nil
}

// lend takes a slot for a call that is suitable, if there is a slot.
func (c *Conn) lend(call transport.Call, a *answer) {
	switch {
	case c.side == nil || call.Into == nil:
	case call.Proved:
	case len(call.Into) >= leastLent:
		a.slot = c.side.Lend(len(call.Into), func(piece []byte, last bool) error {
			c.unproved.Store(true)
			return a.land(piece, last)
		}, func() { a.end(errSideLost) })
	}
}

// land adds a piece that was written into the slot. It fails if there are more bytes than the
// answer can have.
func (a *answer) land(piece []byte, last bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.mu.left:
		return nil
	case a.mu.tls || len(piece) > a.mu.limit-a.mu.n:
		return fmt.Errorf("%w: an answer has more bytes than announced", transport.ErrProtocol)
	}
	if a.put(a.mu.n, piece); last {
		a.finish(nil)
	}
	return nil
}

// written handles the ending of an answer that was written into a slot.
func (c *Conn) written(br *bufio.Reader, id uint64, a *answer) error {
	total, err := readTotal(br)
	if err != nil {
		return err
	}
	if a.slot == nil || a.started {
		return fmt.Errorf("%w: request %d has no slot", transport.ErrProtocol, id)
	}
	if total > a.mu.limit {
		return fmt.Errorf("%w: %d bytes were written to a slot of %d", transport.ErrProtocol, total, a.mu.limit)
	}
	c.settle(id)
	a.ended(total)
	return nil
}

// ended returns the slot, if there is one. total is as in Slot.Ended.
func (a *answer) ended(total int) {
	if a.slot != nil {
		a.slot.Ended(total)
	}
}

// sides is the state of a server connection's path.
type sides struct {
	mu     sync.Mutex
	writer Writer // nil: none
}

// propose answers the proposal of a path.
func (n *session) propose(body []byte) ([]byte, error) {
	var w Writer
	var lost bool // before Proposed has returned
	l := Link{Peer: n.proto.Peer, Local: n.wire.Conn.LocalAddr(), Remote: n.wire.Conn.RemoteAddr(), Lost: func(error) {
		n.side.mu.Lock()
		defer n.side.mu.Unlock()
		if lost = true; w != nil && n.side.writer == w {
			n.drop(true)
		}
	}}
	answer, made, err := n.server.o.Sides.Proposed(n.ctx, l, body)
	if err != nil {
		return nil, err
	}
	n.side.mu.Lock()
	defer n.side.mu.Unlock()
	n.drop(false)
	if lost || n.ctx.Err() != nil {
		made.Close()
		return nil, transport.ErrFailed
	}
	w, n.side.writer = made, made
	side := n.queue.follow(made) // before the lock is released, so that it can be lost
	n.wg.Go(func() { n.writeSide(side) })
	return answer, nil
}

// sideLost handles the dialer's report that the path is lost.
func (n *session) sideLost() error {
	if n.dropSide(); !n.idle.Allow() {
		return errLostFlood
	}
	return nil
}

// drop ends the path, and with tell informs the peer. The caller holds n.side.mu.
func (n *session) drop(tell bool) {
	if w := n.side.writer; w != nil {
		n.side.writer = nil
		w.Close()
		n.queue.lost(tell)
	}
}

// dropSide ends the path, if there is one.
func (n *session) dropSide() {
	n.side.mu.Lock()
	defer n.side.mu.Unlock()
	n.drop(false)
}

// writeSide writes the answers that have slots until the path is lost.
func (n *session) writeSide(f *sideQueue) {
	var none []byte
	capped := n.guest.sent != nil || n.server.rate != nil
	p, ok := n.queue.nextSide(f)
	for {
		if !ok {
			select {
			case <-f.wake:
				p, ok = n.queue.nextSide(f)
				continue
			case <-f.lost:
				return
			case <-n.ctx.Done():
				return
			}
		}
		for rest := len(p.bytes); rest > 0; rest -= maxPiece {
			if n.pace(&none, min(rest, maxPiece)) != nil {
				return
			}
		}
		now := p
		p, ok = n.queue.nextSide(f)
		piece := Piece{now.slot, now.at, now.bytes, now.last, func() { n.queue.arrived(f, now) }}
		err := f.writer.Write(n.ctx, piece, ok && !capped)
		if err != nil { // the path is lost, and Link.Lost is called
			select {
			case <-f.lost:
			case <-n.ctx.Done():
			}
			return
		}
	}
}
