package tcp

import (
	"slices"

	"github.com/starling-kv/starling/internal/wake"
)

// sideQueue holds the answers of a connection that are written over one path that bypasses TLS.
//
//	ready ──► open ──► nextSide … nextSide ──► arrived ──► written (frame 10) ──► settled
//	            └─ cancelled, or the path is lost ──► error 5 (code cancelled) ──► settled
type sideQueue struct {
	writer Writer
	wake   chan struct{} // has an element if there is something to write
	lost   chan struct{} // closed when the path is lost

	// Guarded by queue.mu.
	open  []*request // in the order of answers
	turn  int        // counter of nextSide
	under int        // pieces returned by nextSide that have not arrived
	// held is the number of delayed endings, and heldBytes the size of their slots; see
	// tellWritten.
	held, heldBytes int
}

// onSide is the state of a request in a sideQueue. Guarded by queue.mu.
type onSide struct {
	lent    int // size of the slot that the peer has lent; 0: none
	slot    uint32
	listed  bool // in sideQueue.open
	under   int  // pieces that have been posted and have not arrived
	arrived int  // bytes
	written int  // length of the answer, if it was written bypassing TLS and has arrived
}

// sidePiece is a piece of an answer that has a slot.
type sidePiece struct {
	request *request
	slot    uint32
	at      int
	bytes   []byte
	last    bool
}

// follow gives the queue a new path. The previous one must have been lost.
func (q *queue) follow(w Writer) *sideQueue {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, r := range q.mu.open {
		r.side.lent = 0 // it was lent for an earlier path
	}
	q.mu.side = &sideQueue{writer: w, wake: make(chan struct{}, 1), lost: make(chan struct{})}
	return q.mu.side
}

// lent records the slot of a request.
func (q *queue) lent(id uint64, slot uint32, length int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if r := q.mu.open[id]; q.mu.side != nil {
		r.side.slot, r.side.lent = slot, length
	}
}

// takeSide queues an answer for the path, if the path can take it. The caller holds q.mu.
func (q *queue) takeSide(r *request) bool {
	f, n := q.mu.side, len(r.answer)
	if f == nil || r.code != 0 || n < leastLent || n > r.side.lent || !f.writer.Takes(r.side.slot, n) {
		return false
	}
	r.side.listed = true
	f.open = append(f.open, r)
	f.poke()
	return true
}

func (f *sideQueue) poke() { wake.Up(f.wake) }

// nextSide returns the next piece to write; false if there is none.
func (q *queue) nextSide(f *sideQueue) (sidePiece, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f.turn++
	var best *request
	for _, r := range f.open {
		if r.cancelled || left(r) == 0 {
			continue
		}
		if best == nil || f.turn%4 != 0 && left(r) < left(best) {
			best = r
		}
	}
	if best == nil || q.mu.side != f {
		return sidePiece{}, false
	}
	p := sidePiece{request: best, slot: best.side.slot, at: best.sent}
	p.bytes = best.answer[best.sent:min(len(best.answer), best.sent+MaxSidePiece)]
	best.sent += len(p.bytes)
	best.side.under++
	f.under++
	p.last = left(best) == 0
	return p, true
}

// arrived records that a piece has arrived at the peer's device.
func (q *queue) arrived(f *sideQueue, p sidePiece) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.side != f {
		return // settled by lost
	}
	r := p.request
	r.side.under--
	f.under--
	r.side.arrived += len(p.bytes)
	q.sent(len(p.bytes))
	switch {
	case r.side.under > 0:
	case r.cancelled:
		q.leaveSide(r)
	case left(r) == 0:
		r.side.written = len(r.answer)
		q.endSide(r)
		q.tellWritten(f, r)
	}
}

// Limits of delayed endings: their number, a share of the connection's calls, because the dialer
// can have that many fewer calls under way, and the bytes of their slots, which the dialer cannot
// lend again.
const (
	heldEndings  = 4
	maxHeldBytes = 2 << 20
)

// tellWritten schedules the ending of an answer that was written bypassing TLS. While more pieces
// are under way, endings are delayed and several are sent in one record. Nothing depends on them,
// since the caller has its answer when the last piece lands. But each record costs both sides more
// CPU time than writing a short answer. The caller holds q.mu.
func (q *queue) tellWritten(f *sideQueue, r *request) {
	if f.under > 0 && f.held < q.server.o.maxCalls/heldEndings && f.heldBytes+r.side.lent <= maxHeldBytes {
		f.held++
		f.heldBytes += r.side.lent
		return
	}
	f.held, f.heldBytes = 0, 0
	q.poke()
}

// leaveSide queues and sends the ending of a request whose writing has stopped. The caller holds
// q.mu.
func (q *queue) leaveSide(r *request) {
	q.endSide(r)
	q.poke()
}

// endSide queues the ending of a request whose writing has stopped. The caller holds q.mu.
func (q *queue) endSide(r *request) {
	q.sent(len(r.answer) - r.side.arrived)
	if r.answer, r.sent = nil, 0; r.cancelled {
		r.side.written, r.code = 0, codeCancelled
	}
	r.side.listed = false
	q.mu.side.open = slices.DeleteFunc(q.mu.side.open, func(o *request) bool { return o == r })
	q.mu.ready = append(q.mu.ready, r)
}

// lost cancels all requests with slots; the peer repeats them. With tell, the peer must be
// informed.
func (q *queue) lost(tell bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f := q.mu.side
	if f == nil {
		return
	}
	for _, r := range q.mu.open {
		if r.side.lent == 0 || r.ready && !r.side.listed {
			continue // its answer goes over TLS: an ending or a short answer
		}
		r.side.lent, r.cancelled = 0, true
		r.cancel()
	}
	for _, r := range slices.Clone(f.open) {
		q.leaveSide(r)
	}
	close(f.lost)
	q.mu.side = nil
	q.mu.tellLost = q.mu.tellLost || tell
	q.poke()
}
