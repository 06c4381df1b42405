package tcp

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/transport"
)

const (
	shortBody = 4 << 10 // bodies up to this length do not count toward maxBodies
	// leastWork is the minimum charge for a request, in bytes; workRate is the charge for each
	// second of a handler: see turns. Encoding a chunk is charged about as much as its bytes.
	leastWork = maxPiece
	workRate  = 100 << 20
	// idleFrames is the limit per second of frames that cause no work: pings, cancels of settled
	// requests, and reports that a path is lost.
	idleFrames = 100
)

// session is an authenticated connection at the server. It has one reading and one writing
// goroutine, and one for each request under way.
type session struct {
	server     *Server
	tls        *tls.Conn
	wire       *wire
	guest      *guest
	proto      transport.Request // the fields that all its requests share
	restricted bool              // the peer does not know the chain id
	idle       *rate.Limiter     // limits pings, cancels of settled requests, and lost paths
	// turns identifies this connection in turns, which remember it after it has ended.
	turns *byte

	ctx   context.Context
	end   context.CancelCauseFunc
	queue *queue
	side  sides
	wg    sync.WaitGroup
}

func newSession(s *Server, t *tls.Conn, w *wire, g *guest, h hello, proto transport.Request) *session {
	n := &session{
		server: s, tls: t, wire: w, guest: g, proto: proto, restricted: h.chainID == "",
		idle: rate.NewLimiter(idleFrames, idleFrames), queue: newQueue(s, g), turns: new(byte),
	}
	n.ctx, n.end = context.WithCancelCause(s.ctx)
	return n
}

// run serves until the connection ends, and returns the reason.
func (n *session) run() error {
	n.wg.Go(func() { n.stop(n.write()) })
	n.stop(n.read(bufio.NewReaderSize(n.tls, readBuffer)))
	n.wg.Wait()
	n.dropSide()
	n.queue.close()
	return context.Cause(n.ctx)
}

func (n *session) stop(why error) {
	n.end(why)
	n.wire.Conn.Close()
}

func (n *session) read(br *bufio.Reader) error {
	for {
		if err := n.tls.SetReadDeadline(time.Now().Add(n.server.o.idleTimeout)); err != nil {
			return err
		}
		if err := n.readFrame(br); err != nil {
			return err
		}
	}
}

func (n *session) readFrame(br *bufio.Reader) error {
	h, err := readHeader(br)
	if err != nil {
		return err
	}
	switch h.kind {
	case frameRequest:
		return n.request(br, h)
	case frameLent, frameCarried:
		if n.server.o.Sides != nil {
			return n.request(br, h)
		}
	case frameLost:
		if n.server.o.Sides != nil {
			return n.sideLost()
		}
	case frameCancel:
		return n.cancel(h.id)
	case framePing:
		n.queue.pong()
		if !n.idle.Allow() {
			return fmt.Errorf("%w: a flood of pings", transport.ErrProtocol)
		}
		return nil
	}
	return fmt.Errorf("%w: a dialer sent a frame of type %d", transport.ErrProtocol, h.kind)
}

func (n *session) cancel(id uint64) error {
	known, err := n.queue.cancel(id)
	if err == nil && !known && !n.idle.Allow() {
		err = fmt.Errorf("%w: a flood of cancels", transport.ErrProtocol)
	}
	return err
}

// request reads a request and starts serving it.
func (n *session) request(br *bufio.Reader, h header) error {
	var slot, lent uint32
	var past *carried // the body, if it bypasses TLS
	if h.kind == frameCarried {
		var err error
		if past, err = n.carried(br); err != nil {
			return err
		}
		h.n -= carriedHeader
	}
	if h.kind != frameRequest {
		b, err := br.Peek(lentHeader)
		if err != nil {
			return unexpected(err)
		}
		slot, lent = binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
		if _, err := br.Discard(lentHeader); err != nil {
			return err
		}
		h.n -= lentHeader
	}
	method, err := br.ReadByte()
	if err != nil {
		return unexpected(err)
	}
	ctx, cancel := context.WithCancel(n.ctx)
	if err := n.queue.open(h.id, cancel); err != nil {
		cancel()
		return err
	}
	if lent > 0 {
		n.queue.lent(h.id, slot, int(lent))
	}
	r := n.proto
	r.Method = transport.Method(method)
	body := body{length: h.n - 1, guest: n.guest, budget: &n.server.bodies}
	if err := pass(br, body.length, body.add); err != nil {
		body.release()
		return err
	}
	if body.refused {
		n.queue.refuse(h.id, transport.ErrBusy, 0)
		return nil
	}
	var from Body
	if past != nil {
		from = n.expect(past)
	}
	n.wg.Go(func() {
		if past != nil {
			if err := past.fetch(ctx, from, &body); err != nil {
				body.release()
				n.queue.refuse(h.id, err, 0)
				return
			}
		}
		r.Body = body.bytes
		answer, reserved, err := n.serve(ctx, h.id, r)
		// This precedes the sending of the answer, because the peer may then send another body of
		// that size.
		body.release()
		if err != nil {
			n.queue.refuse(h.id, err, reserved)
			return
		}
		n.queue.answer(h.id, answer, reserved)
	})
	return nil
}

// body is the body of a request as it arrives. It takes memory for at most twice the bytes that
// have arrived, which counts toward maxBodies.
type body struct {
	length  int // as announced
	bytes   []byte
	guest   *guest
	budget  *budget
	held    int64 // bytes taken from the budget
	refused bool  // there is no room: the rest is skipped
}

func (b *body) add(p []byte) {
	if need := len(b.bytes) + len(p); need > cap(b.bytes) && !b.refused {
		b.grow(min(b.length, max(2*need, shortBody)))
	}
	if !b.refused {
		b.bytes = append(b.bytes, p...)
	}
}

func (b *body) grow(size int) {
	if size > shortBody {
		more := int64(size) - b.held
		if b.refused = !b.budget.take(b.guest.from, more); b.refused {
			b.release()
			return
		}
		b.held += more
	}
	b.bytes = append(make([]byte, 0, size), b.bytes...)
}

func (b *body) release() {
	b.budget.count(b.guest.from, -b.held)
	b.bytes, b.held = nil, 0
}

// serve calls the handler once there is room for the answer and it is the request's turn. reserved
// is the part of maxUnsent that was taken for the answer.
func (n *session) serve(ctx context.Context, id uint64, r transport.Request) (answer []byte, reserved int64, err error) {
	weight := transport.Weigh(n.server.o.Handler, r)
	if err := n.queue.room(ctx, id, weight); err != nil {
		return nil, 0, err
	}
	workers := n.server.workers
	if lane := n.server.lanes[r.Method]; lane != nil {
		workers = lane
	}
	turn, err := workers.wait(ctx, n.guest.from, n.turns)
	if err != nil {
		return nil, 0, err
	}
	began := time.Now()
	switch {
	case n.restricted && !slices.Contains(n.server.o.OpenMethods, r.Method):
		err = fmt.Errorf("method %d requires a chain id: %w", r.Method, transport.ErrRefused)
	case !n.server.unsent.take(n.guest.from, weight):
		err = fmt.Errorf("too many answers wait to be sent: %w", transport.ErrBusy)
	case n.server.o.Sides != nil && r.Method == n.server.o.Sides.Method():
		reserved = weight
		answer, err = n.propose(r.Body)
	default:
		reserved = weight
		answer, err = n.server.o.Handler.Serve(ctx, r)
	}
	took := time.Since(began)
	workers.done(turn, max(reserved, int64(len(answer)))+int64(took.Seconds()*workRate))
	if hook := n.server.o.Hooks.Served; hook != nil {
		hook(r, len(answer), took, err)
	}
	return answer, reserved, err
}

// coalesce is the length, in bytes, up to which pieces are copied into a TLS record with others.
const coalesce = 4 << 10

// write sends the pieces of the queue.
func (n *session) write() error {
	batch := make([]byte, 0, 16<<10)
	for {
		p, ok := n.queue.next()
		if !ok { // nothing more to send: flush
			if err := n.send(&batch, nil, true); err != nil {
				return err
			}
			select {
			case <-n.queue.wake:
				continue
			case <-n.ctx.Done():
				return n.ctx.Err()
			}
		}
		if err := n.pace(&batch, len(p.bytes)); err != nil {
			return err
		}
		batch = append(batch, p.head...)
		if len(p.bytes) <= coalesce {
			batch = append(batch, p.bytes...)
			p.bytes = nil
		}
		if p.bytes != nil || len(batch) > cap(batch)-coalesce-64 {
			if err := n.send(&batch, p.bytes, false); err != nil {
				return err
			}
		}
	}
}

// send writes the batch and a piece. With flush, everything written is sent to the peer.
func (n *session) send(batch *[]byte, piece []byte, flush bool) error {
	for _, b := range [][]byte{*batch, piece} {
		if len(b) > 0 {
			if _, err := n.tls.Write(b); err != nil {
				return err
			}
		}
	}
	*batch = (*batch)[:0]
	if flush {
		return n.wire.Flush()
	}
	return nil
}

// pace waits until the caps allow a piece of that length. It flushes the batch before it waits. The
// connections of a host share one cap, and hosts take turns in the cap of all.
func (n *session) pace(batch *[]byte, bytes int) error {
	if bytes == 0 || n.guest.sent == nil && n.server.rate == nil {
		return nil
	}
	if err := n.delay(batch, n.guest.sent, bytes); err != nil || n.server.rate == nil {
		return err
	}
	if err := n.send(batch, nil, true); err != nil {
		return err
	}
	turn, err := n.server.sending.wait(n.ctx, n.guest.from, n.turns)
	if err != nil {
		return err
	}
	defer n.server.sending.done(turn, int64(bytes))
	return n.delay(batch, n.server.rate, bytes)
}

// delay waits until a cap, if it is not nil, allows a piece.
func (n *session) delay(batch *[]byte, l *rate.Limiter, bytes int) error {
	if l == nil {
		return nil
	}
	now := time.Now()
	wait := l.ReserveN(now, bytes).DelayFrom(now)
	if wait == 0 {
		return nil
	}
	if err := n.send(batch, nil, true); err != nil {
		return err
	}
	return sleep.For(n.ctx, wait)
}
