package tcp

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/starling-kv/starling/transport"
)

const (
	shortBody = 4 << 10 // bodies up to this length do not count for maxBodies
	// idleFrames is the limit per second of frames that cause no work: pings, and cancels of
	// settled requests.
	idleFrames = 100
)

// session is an authenticated connection at the server. One goroutine reads, one writes, and each
// request under way has one.
type session struct {
	server     *Server
	tls        *tls.Conn
	wire       *wire
	guest      *guest
	proto      transport.Request // the fields that all its requests have in common
	restricted bool              // the peer does not know the chain id
	idle       *rate.Limiter     // of pings, and of cancels of settled requests

	ctx   context.Context
	end   context.CancelCauseFunc
	queue *queue
	wg    sync.WaitGroup
}

func newSession(s *Server, t *tls.Conn, w *wire, v *guest, h hello, proto transport.Request) *session {
	n := &session{
		server: s, tls: t, wire: w, guest: v, proto: proto, restricted: h.chainID == "",
		idle: rate.NewLimiter(idleFrames, idleFrames), queue: newQueue(s),
	}
	n.ctx, n.end = context.WithCancelCause(s.ctx)
	return n
}

// run serves until the connection ends, and returns why it does.
func (n *session) run() error {
	n.wg.Go(func() { n.stop(n.write()) })
	n.stop(n.read(bufio.NewReaderSize(n.tls, readBuffer)))
	n.wg.Wait()
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
	case frameCancel:
		return n.cancel(h.id)
	case framePing:
		n.queue.pong()
		if !n.idle.Allow() {
			return fmt.Errorf("%w: a flood of pings", transport.ErrProtocol)
		}
		return nil
	}
	return fmt.Errorf("%w: frame of type %d from a dialer", transport.ErrProtocol, h.kind)
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
	method, err := br.ReadByte()
	if err != nil {
		return unexpected(err)
	}
	ctx, cancel := context.WithCancel(n.ctx)
	if err := n.queue.open(h.id, cancel); err != nil {
		cancel()
		return err
	}
	r := n.proto
	r.Method = transport.Method(method)
	length := h.n - 1
	long := int64(0)
	if length > shortBody {
		long = int64(length)
		if n.server.bodies.Add(long) > n.server.o.maxBodies {
			n.server.bodies.Add(-long)
			n.queue.refuse(h.id, transport.ErrBusy)
			return pass(br, length, nil)
		}
	}
	if length > 0 {
		r.Body = make([]byte, 0, min(length, shortBody))
	}
	if err := pass(br, length, func(b []byte) { r.Body = append(r.Body, b...) }); err != nil {
		n.server.bodies.Add(-long)
		return err
	}
	n.wg.Go(func() {
		answer, err := n.serve(ctx, r)
		// Before the answer is sent: the peer may then send as long a body again.
		n.server.bodies.Add(-long)
		if err != nil {
			n.queue.refuse(h.id, err)
			return
		}
		n.queue.answer(h.id, answer)
	})
	return nil
}

// serve lets the handler answer a request, once a worker is free.
func (n *session) serve(ctx context.Context, r transport.Request) ([]byte, error) {
	select {
	case n.server.workers <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	began := time.Now()
	answer, err := n.handle(ctx, r)
	<-n.server.workers
	if hook := n.server.o.Hooks.Served; hook != nil {
		hook(r, len(answer), time.Since(began), err)
	}
	return answer, err
}

func (n *session) handle(ctx context.Context, r transport.Request) ([]byte, error) {
	if n.restricted && !slices.Contains(n.server.o.OpenMethods, r.Method) {
		return nil, fmt.Errorf("method %d is not open to strangers: %w", r.Method, transport.ErrRefused)
	}
	if n.server.unsent.Load() > n.server.o.maxUnsent && n.queue.unsent() > 0 {
		return nil, fmt.Errorf("too many answers wait to be sent: %w", transport.ErrBusy)
	}
	return n.server.o.Handler.Serve(ctx, r)
}

// coalesce is the length, in bytes, up to which a piece is copied into one TLS record with others.
const coalesce = 4 << 10

// write sends what the queue gives it.
func (n *session) write() error {
	batch := make([]byte, 0, 16<<10)
	for {
		p, ok := n.queue.next()
		if !ok { // nothing more to send: what was gathered is flushed
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
		if wait := n.delay(len(p.bytes)); wait > 0 {
			if err := n.send(&batch, nil, true); err != nil {
				return err
			}
			if err := sleep(n.ctx, wait); err != nil {
				return err
			}
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

// send writes the batch and a piece. flush: all that was written leaves this host.
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

// delay returns how long the caps delay a piece of that length. It reserves the bytes: peers, and
// the connections of a peer, take turns.
func (n *session) delay(bytes int) time.Duration {
	var wait time.Duration
	now := time.Now()
	for _, l := range [...]*rate.Limiter{n.server.rate, n.guest.peer.rate} {
		if l != nil && bytes > 0 {
			wait = max(wait, l.ReserveN(now, bytes).DelayFrom(now))
		}
	}
	return wait
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
