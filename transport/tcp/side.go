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

// Sides makes second paths for the answers of connections: past TLS, straight into memory that the
// caller's side has lent (package rdma). Requests, lengths and endings stay on TLS. What came by
// such a path proves nothing about its sender.
//
//	Call(Into) ── request with slot (frame 8) ──────────────► Handler
//	   ▲                                                        │
//	 landed ◄═══ pieces, written into the slot ═══ Writer ◄─────┤
//	 settled ◄── written (frame 10): all have arrived ──────────┘
//
// Where a path is lost, either side says so (frame 9), and its calls are made again over TLS.
type Sides interface {
	// Method is that of the exchange by which a dialer proposes a path.
	Method() transport.Method
	// Dialled returns the lender of a connection that was dialled.
	Dialled(c *Conn) Lender
	// Proposed answers the exchange. The writer is the connection's from then on, in place of an
	// earlier one; ctx ends with the connection.
	Proposed(ctx context.Context, l Link, body []byte) (answer []byte, w Writer, err error)
}

// Link is the connection of a proposal.
type Link struct {
	Peer          transport.ID
	Local, Remote net.Addr
	// Lost is called when the path is lost that the writer belongs to, once, by no call of Writer.
	Lost func(why error)
}

// Lender lends memory to the server of a connection. Its methods do not block, and call nothing of
// the connection before they return.
type Lender interface {
	// Start begins to propose paths, by calls of the connection: one now, and another one some time
	// after one was refused or lost.
	Start()
	// Lend returns a slot for an answer of at most n bytes, or nil. landed is called with each
	// piece of it, one after another, by another goroutine; it is not kept. An error is a breach,
	// which ends the path. lost is called once if the path is lost before the slot was returned.
	Lend(n int, landed func(piece []byte, last bool) error, lost func()) Slot
	// Carry writes the body of a request, of at most MostCarried bytes, to the server, which is
	// told of it by its place. It has copied b when it returns; nil: there is no room, or no path.
	// It may take as long as the device does to accept the write.
	Carry(b []byte) Place
	// Up reports whether there is a path.
	Up() bool
	// PeerLost: the server says that the path is lost.
	PeerLost()
	// Doubt: an answer that came by a path was wrong.
	Doubt()
	// Close ends the path with its connection, and proposes no other. It may be called again.
	Close()
}

// Place is where the body of a request was carried to.
type Place interface {
	Number() uint32
	// Valid reports whether the path is there still.
	Valid() bool
	// Delivered: the server has ended the request.
	Delivered()
}

// Slot is lent memory.
type Slot interface {
	Number() uint32
	// Abandoned: the call has returned without an answer, and the server has not ended the request.
	Abandoned()
	// Ended: the server has ended the request, and will write nothing more. total is the length of
	// the answer that it has written; negative: none, or a part.
	Ended(total int)
}

// Writer writes answers into what the dialer has lent, and reads bodies that the dialer has
// carried.
type Writer interface {
	// Takes reports whether n bytes can be written to a slot now.
	Takes(slot uint32, n int) bool
	// Write posts a piece of an answer. It waits until there is room, and has copied its bytes when
	// it returns. more: another call follows, whatever happens, and without anything that it waits
	// for: both may be posted together. One goroutine calls it.
	Write(ctx context.Context, p Piece, more bool) error
	// Expect notes that a body of n bytes is carried to a place, and does not wait for it.
	Expect(place uint32, n int) Body
	Close()
}

// Piece is one of an answer that is written past TLS.
type Piece struct {
	Slot  uint32
	At    int // in the answer
	Bytes []byte
	Last  bool
	// Arrived is called when the peer's device has the piece, unless the path is lost.
	Arrived func()
}

// Body is one that a dialer carries past TLS. What is read proves nothing about who has written it.
type Body interface {
	// Wait returns when the body has come. It fails if the path is lost, or with ctx's error.
	Wait(ctx context.Context) error
	// Read copies the body, which has come. The dialer could still write to it.
	Read(into []byte) error
	// Wrong: what was read is not what was sent. The path is of no use.
	Wrong()
	// Release is called once nothing more is read.
	Release()
}

// leastLent is the length of a buffer, in bytes, below which an answer is not worth a slot.
const leastLent = 16 << 10

// MaxSidePiece is the limit of the pieces that are written past TLS, in bytes: a larger one would
// show no progress while it is written.
const MaxSidePiece = 256 << 10

// errSideLost ends a call whose path was lost: it is made again over TLS.
var errSideLost = errors.New("the path past TLS was lost")

var errLostFlood = fmt.Errorf("%w: a flood of lost paths", transport.ErrProtocol)

// LocalAddr returns this end's address.
func (c *Conn) LocalAddr() net.Addr { return c.wire.Conn.LocalAddr() }

// RemoteAddr returns the peer's address.
func (c *Conn) RemoteAddr() net.Addr { return c.wire.Conn.RemoteAddr() }

// Unproved reports whether an answer of the connection has come past TLS: a wrong answer is then
// no proof that the peer has sent it. Call it again with Call.Proved.
func (c *Conn) Unproved() bool { return c.unproved.Load() }

// HasPath reports whether there is a path past TLS now.
func (c *Conn) HasPath() bool { return c.side != nil && c.side.Up() }

// Doubt notes that an answer which may have come past TLS was wrong.
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

// peerLost handles a server's word that the path is lost.
func (c *Conn) peerLost() error {
	if c.side == nil {
		return fmt.Errorf("%w: a path is lost that there was not", transport.ErrProtocol)
	}
	if c.side.PeerLost(); !c.lost.Allow() {
		return errLostFlood
	}
	return nil
}

// lend takes a slot for a call, if it is one for a slot and there is one.
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
		return fmt.Errorf("%w: more bytes than the answer has", transport.ErrProtocol)
	}
	if a.put(a.mu.n, piece); last {
		a.finish(nil)
	}
	return nil
}

// written notes the end of an answer that was written into a slot.
func (c *Conn) written(br *bufio.Reader, id uint64, a *answer) error {
	total, err := readTotal(br)
	if err != nil {
		return err
	}
	if a.slot == nil || a.started {
		return fmt.Errorf("%w: request %d has no slot to be written to", transport.ErrProtocol, id)
	}
	if total > a.mu.limit {
		return fmt.Errorf("%w: %d bytes in a slot for %d", transport.ErrProtocol, total, a.mu.limit)
	}
	c.settle(id)
	a.ended(total)
	return nil
}

// ended gives the slot back, if there is one. total is as in Slot.Ended.
func (a *answer) ended(total int) {
	if a.slot != nil {
		a.slot.Ended(total)
	}
}

// sides is a server's view of the path of a connection.
type sides struct {
	mu     sync.Mutex
	writer Writer // nil: none
}

// propose answers the exchange of a path.
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
	side := n.queue.follow(made) // before the lock is released: then it can be lost
	n.wg.Go(func() { n.writeSide(side) })
	return answer, nil
}

// sideLost handles a dialer's word that the path is lost.
func (n *session) sideLost() error {
	if n.dropSide(); !n.idle.Allow() {
		return errLostFlood
	}
	return nil
}

// drop ends the path, and tells the peer if it may not know. The caller holds n.side.mu.
func (n *session) drop(tell bool) {
	if w := n.side.writer; w != nil {
		n.side.writer = nil
		w.Close()
		n.queue.lost(tell)
	}
}

// dropSide ends the path if there is one.
func (n *session) dropSide() {
	n.side.mu.Lock()
	defer n.side.mu.Unlock()
	n.drop(false)
}

// writeSide writes the answers that have slots, until the path is lost.
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
		if err != nil { // it is lost, and Link.Lost is called
			select {
			case <-f.lost:
			case <-n.ctx.Done():
			}
			return
		}
	}
}
