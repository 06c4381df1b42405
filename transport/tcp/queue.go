package tcp

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	"github.com/starling-kv/starling/internal/wake"
	"github.com/starling-kv/starling/transport"
)

// queue holds the requests under way of a connection and decides which bytes to send next. It picks
// the answer with the fewest bytes left, so that a header overtakes chunks. Every fourth time it
// picks the oldest answer, so that no answer starves.
//
//	open ──► room ──► (handler) ──► answer, refuse ──► next … next ──► settled
//
// A long answer is made only when there is room for it, which means that the peer has read most of
// the previous answers. So a peer that requests much and reads nothing does not use up the turns of
// others.
type queue struct {
	server *Server
	guest  *guest
	wake   chan struct{} // has an element if there is something to send

	mu struct {
		sync.Mutex
		lastID uint64
		open   map[uint64]*request
		ready  []*request // answered but not sent completely; in the order of answers
		pong   bool       // a pong is due
		side   *sideQueue // answers over the path that bypasses TLS; nil: no path
		// tellLost is set if the peer must be told that the path is lost.
		tellLost bool
		turn     int // counter of pick
		// backlog is the number of unsent bytes of the answers that are ready, and the estimated
		// size of the answers that are being made.
		backlog int64
		waiting []*waiter // requests that wait for room, in order
		head    []byte    // header of the piece being sent
	}
}

// request is a request under way. Guarded by queue.mu.
type request struct {
	id        uint64
	cancel    context.CancelFunc
	cancelled bool
	ready     bool   // answered
	code      byte   // not 0: the answer is this error
	answer    []byte // the bytes of the answer, if code is 0
	sent      int    // number of bytes sent
	started   bool   // the first frame was sent
	weight    int64  // share of backlog, until answered
	side      onSide
}

// waiter is a request that waits for room. Guarded by queue.mu.
type waiter struct {
	*request
	weight  int64
	granted chan struct{} // closed when there is room
}

// maxBacklog is the backlog of a connection, in bytes, above which no answer longer than a piece is
// made: about two chunks, so that one is made while another is sent.
const maxBacklog = 2 << 20

// piece is a frame to be sent. head is valid until the next call of next.
type piece struct {
	head  []byte
	bytes []byte
}

func newQueue(s *Server, g *guest) *queue {
	q := &queue{server: s, guest: g, wake: make(chan struct{}, 1)}
	q.mu.open = make(map[uint64]*request)
	return q
}

func (q *queue) poke() { wake.Up(q.wake) }

// open registers a request. cancel is called when it is settled or no longer needed.
func (q *queue) open(id uint64, cancel context.CancelFunc) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if id <= q.mu.lastID {
		return fmt.Errorf("%w: request %d after %d", transport.ErrProtocol, id, q.mu.lastID)
	}
	if len(q.mu.open) >= q.server.o.maxCalls {
		return fmt.Errorf("%w: more requests under way than we allow", transport.ErrProtocol)
	}
	q.mu.lastID = id
	q.mu.open[id] = &request{id: id, cancel: cancel}
	q.guest.use.count(1)
	return nil
}

// room waits until the answer to a request, of about weight bytes, may be made. It fails with ctx's
// error. The caller then answers or refuses the request.
func (q *queue) room(ctx context.Context, id uint64, weight int64) error {
	w := q.wait(id, weight)
	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.waiting = slices.DeleteFunc(q.mu.waiting, func(o *waiter) bool { return o == w })
	q.admit()
	return ctx.Err()
}

func (q *queue) wait(id uint64, weight int64) *waiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := &waiter{q.mu.open[id], weight, make(chan struct{})}
	if weight <= maxPiece {
		close(w.granted) // short answers do not wait
		return w
	}
	q.mu.waiting = append(q.mu.waiting, w)
	q.admit()
	return w
}

// admit grants room as long as there is some. A connection without backlog has room for an answer
// of any size. The caller holds q.mu.
func (q *queue) admit() {
	for len(q.mu.waiting) > 0 {
		w := q.mu.waiting[0]
		if q.mu.backlog > 0 && q.mu.backlog+w.weight > maxBacklog {
			return
		}
		w.request.weight = w.weight
		q.mu.backlog += w.weight
		q.mu.waiting = slices.Delete(q.mu.waiting, 0, 1)
		close(w.granted)
	}
}

// cancel cancels a request. known is false if the request is already settled or cancelled.
func (q *queue) cancel(id uint64) (known bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if id > q.mu.lastID {
		return false, fmt.Errorf("%w: cancel of request %d, the last is %d", transport.ErrProtocol, id, q.mu.lastID)
	}
	r := q.mu.open[id]
	if r == nil || r.cancelled {
		return false, nil
	}
	r.cancelled = true
	r.cancel()
	switch {
	case r.side.listed:
		if r.side.under == 0 {
			q.leaveSide(r)
		}
	case r.ready && r.side.written == 0:
		q.drop(r)
		r.code = codeCancelled
	}
	return true, nil
}

// drop releases the unsent bytes of an answer. The caller holds q.mu.
func (q *queue) drop(r *request) {
	q.sent(left(r))
	r.answer, r.sent = nil, 0
}

// sent subtracts bytes that no longer wait. The caller holds q.mu.
func (q *queue) sent(bytes int) {
	q.count(-int64(bytes))
	q.mu.backlog -= int64(bytes)
	q.admit()
}

func (q *queue) count(bytes int64) { q.server.unsent.count(q.guest.from, bytes) }

// answer queues an answer. Its bytes replace those reserved for it.
func (q *queue) answer(id uint64, bytes []byte, reserved int64) { q.ready(id, bytes, 0, reserved) }

// refuse queues an error and releases the bytes reserved for an answer.
func (q *queue) refuse(id uint64, err error, reserved int64) {
	q.ready(id, nil, codeOf(err), reserved)
}

func (q *queue) ready(id uint64, bytes []byte, code byte, reserved int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	r := q.mu.open[id]
	r.cancel()
	if r.cancelled {
		bytes, code = nil, codeCancelled
	}
	r.ready, r.answer, r.code = true, bytes, code
	q.count(int64(len(bytes)) - reserved)
	q.mu.backlog += int64(len(bytes)) - r.weight
	q.admit()
	if q.takeSide(r) {
		return
	}
	q.mu.ready = append(q.mu.ready, r)
	q.poke()
}

// pong queues one pong for all unanswered pings.
func (q *queue) pong() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.pong = true
	q.poke()
}

// next returns the next frame to send; false if there is none.
func (q *queue) next() (piece, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.pong {
		q.mu.pong = false
		q.mu.head = appendHeader(q.mu.head[:0], framePong, 0, 0)
		return piece{head: q.mu.head}, true
	}
	if q.mu.tellLost {
		q.mu.tellLost = false
		q.mu.head = appendHeader(q.mu.head[:0], frameLost, 0, 0)
		return piece{head: q.mu.head}, true
	}
	if len(q.mu.ready) == 0 {
		return piece{}, false
	}
	at := q.pick()
	r := q.mu.ready[at]
	rest := r.answer[r.sent:]
	bytes := rest[:min(len(rest), maxPiece)]
	switch {
	case r.code != 0:
		q.mu.head = append(appendHeader(q.mu.head[:0], frameError, r.id, 1), r.code)
	case r.side.written > 0:
		q.mu.head = binary.BigEndian.AppendUint64(appendHeader(q.mu.head[:0], frameWritten, r.id, 8), uint64(r.side.written))
	case !r.started:
		q.mu.head = appendStart(q.mu.head[:0], r.id, len(r.answer), len(bytes))
	default:
		q.mu.head = appendHeader(q.mu.head[:0], frameMore, r.id, len(bytes))
	}
	r.started = true
	r.sent += len(bytes)
	q.sent(len(bytes))
	if r.sent == len(r.answer) { // or an error
		q.mu.ready = append(q.mu.ready[:at], q.mu.ready[at+1:]...)
		delete(q.mu.open, r.id)
		q.guest.use.count(-1)
	}
	return piece{q.mu.head, bytes}, true
}

// pick returns the index of the answer to send next. The caller holds q.mu.
func (q *queue) pick() int {
	q.mu.turn++
	if q.mu.turn%4 == 0 {
		return 0
	}
	best := 0
	for i, r := range q.mu.ready {
		if left(r) < left(q.mu.ready[best]) {
			best = i
		}
	}
	return best
}

func left(r *request) int { return len(r.answer) - r.sent }

// close releases everything. It must be called after all handlers have returned.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, r := range q.mu.ready {
		q.drop(r)
	}
	for _, r := range q.mu.open {
		r.cancel()
	}
	q.mu.ready, q.mu.open = nil, nil
}
