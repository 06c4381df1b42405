package fastsync

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/scheduler"
	"github.com/starling-kv/starling/transport"
)

// The way of an item, in the order in which it happens. The functions below are in the same order.
//
//	add       the scheduler gets it                                    loop
//	ask       a peer is asked, and a buffer of the length lent         loop ──► goroutine of the call
//	answered  the answer is here, or the reason why there is none      loop ◄──
//	check     it is verified, and the chunk that it completes written  loop ──► worker
//	checked   it is counted; the scheduler hears: done, or a lie       loop ◄──

// request is an item that was asked of a peer, until it has ended. Fields are the loop's unless
// their comment says otherwise.
type request struct {
	id       scheduler.RequestID
	item     *item
	peer     scheduler.PeerID
	cancel   context.CancelFunc
	received atomic.Int64 // bytes of the answer so far: the transport writes it, the loop reads it
	told     int64        // how many of these the scheduler knows of
	answer   []byte       // from its arrival until a worker takes it
	// unproved: somebody else than the peer may have sent the answer.
	unproved bool
}

// add gives items to the scheduler. They must be of the present round.
func (j *joiner) add(items ...*item) {
	if len(items) == 0 {
		return
	}
	list := make([]scheduler.Item, 0, len(items))
	for _, it := range items {
		j.lastItem++
		it.id = j.lastItem
		j.items[it.id] = it
		list = append(list, scheduler.Item{ID: it.id, Group: it.r.group, At: it.k, Bytes: it.bytes, Exact: it.exact()})
	}
	j.step(scheduler.Add{Items: list})
}

// ask sends a request. It returns false if its peer, or its item, is no longer there.
func (j *joiner) ask(a scheduler.Ask) bool {
	it, conn := j.items[a.Item], j.conns[a.Peer]
	if it == nil || conn == nil {
		return false
	}
	ctx, cancel := context.WithCancel(it.r.ctx)
	r := &request{id: a.Request, item: it, peer: a.Peer, cancel: cancel}
	j.requests[r.id] = r
	j.o.View.asked(it, r.peer)
	call := it.call()
	call.Received = &r.received
	call.Proved = j.doubted[r.peer] || j.doubts[r.peer] >= maxDoubts
	j.wg.Go(func() {
		defer cancel()
		if it.exact() { // not in the loop: clearing new memory takes time
			call.Into = j.buffers.take(int(it.bytes))
		}
		answer, err := conn.Call(ctx, call)
		if err != nil {
			j.buffers.give(call.Into)
		}
		// Only what lands in a buffer that was lent can come past TLS.
		unproved := !call.Proved && call.Into != nil && transport.Unproved(conn)
		j.mail.Put(answered{r, answer, err, unproved})
	})
	return true
}

// tellProgress tells the scheduler how much of each answer under way has arrived.
func (j *joiner) tellProgress() {
	for _, r := range j.requests {
		if n := r.received.Load(); n > r.told {
			r.told = n
			j.step(scheduler.Progress{Request: r.id, Bytes: uint64(n)})
		}
	}
}

// answered is the end of a call: its answer, or why there is none.
type answered struct {
	r        *request
	answer   []byte
	err      error
	unproved bool
}

func (e answered) handle(j *joiner) {
	r := e.r
	if j.requests[r.id] == nil {
		return // the request was cancelled
	}
	if e.err != nil {
		if isLie(e.err) {
			j.o.View.lied(r.item)
		}
		j.end(r)
		j.step(scheduler.Failed{Request: r.id, Reason: reasonOf(e.err), Detail: e.err.Error()})
		return
	}
	if r.unproved = e.unproved; r.unproved && r.item.exact() && uint64(len(e.answer)) != r.item.bytes {
		j.doubt(r)
		return
	}
	r.answer = e.answer
	j.step(scheduler.Received{Request: r.id, Bytes: uint64(len(e.answer))})
	if r.answer != nil { // no Verify: its length alone proves a lie
		j.o.View.lied(r.item)
		j.end(r)
	}
}

// maxDoubts is how many wrong answers of a peer are excused in a join because they came unproved.
const maxDoubts = 4

// doubt ends a request whose answer is wrong and came unproved. The peer is asked over a path that
// proves who sends, one request at a time, until it has given a right answer there. After maxDoubts
// it is asked so for the rest of the join, since a liar can give right answers there and wrong ones
// otherwise.
func (j *joiner) doubt(r *request) {
	if conn := j.conns[r.peer]; conn != nil {
		transport.Doubt(conn)
	}
	j.doubted[r.peer] = true
	j.doubts[r.peer]++
	j.end(r)
	j.step(scheduler.Doubt{Peer: r.peer})
	j.step(scheduler.Failed{Request: r.id, Reason: scheduler.Broken})
}

// reasonOf translates an error of a call for the scheduler.
func reasonOf(err error) scheduler.Reason {
	switch {
	case isLie(err):
		return scheduler.Lied
	case errors.Is(err, transport.ErrGone):
		return scheduler.Gone
	case errors.Is(err, transport.ErrBusy):
		return scheduler.Busy
	case errors.Is(err, transport.ErrRefused):
		return scheduler.Refused
	}
	return scheduler.Broken
}

// check lets a worker verify an answer and write the chunk that it completes. The answer is the
// worker's from then on.
func (j *joiner) check(r *request) {
	answer := r.answer
	r.answer = nil
	j.o.View.arrived(r.item, r.peer)
	j.wg.Go(func() {
		j.workers <- struct{}{}
		defer func() { <-j.workers }()
		fresh, delta, err := r.item.verify(answer)
		j.mail.Put(checked{r, fresh, delta, err})
	})
}

// checked is what a worker has found. An err that is avlstar.ErrInvalidChunk or
// avlstar.ErrInvalidManifest proves a lie; any other is our own failure.
type checked struct {
	r     *request
	fresh bool         // it is the first right answer for its item
	delta *deltaAnswer // what is to be done for the delta that it belongs to; nil: nothing
	err   error
}

func (e checked) handle(j *joiner) {
	r := e.r
	wrong := errors.Is(e.err, avlstar.ErrInvalidChunk) || errors.Is(e.err, avlstar.ErrInvalidManifest)
	switch {
	case wrong && r.unproved:
		j.doubt(r)
		return
	case wrong:
		j.o.View.lied(r.item)
		j.end(r)
		j.step(scheduler.Rejected{Request: r.id, Reason: e.err.Error()})
		return
	case errors.Is(e.err, statesync.ErrOver): // its round has ended, and its item was dropped
	case e.err != nil:
		j.fail(e.err)
		return
	default:
		if !r.unproved && j.doubted[r.peer] {
			delete(j.doubted, r.peer)
			j.step(scheduler.Doubt{Peer: r.peer, Over: true})
		}
		j.verified(e)
	}
	j.end(r)
	delete(j.items, r.item.id)
	j.step(scheduler.Verified{Request: r.id})
}

// verified counts an answer that is right. Items that a delta still needs are added here, before
// the scheduler hears that this one is done: else it would say Done.
func (j *joiner) verified(e checked) {
	it, peer := e.r.item, transport.ID(e.r.peer)
	j.round.verified, j.round.stall = time.Now(), firstStall
	j.o.Peers.Useful(peer, int(it.bytes))
	if it.r != j.round || !e.fresh {
		return
	}
	j.count.verified(it)
	if it.kind == wholeChunk {
		j.o.Metrics.ChunkVerified(int(it.bytes))
	}
	if it.kind == wholeChunk || e.delta != nil && e.delta.done {
		j.o.View.stored(it, peer)
	}
	if e.delta != nil {
		j.deltaAnswer(it, e.delta)
	}
}

// end forgets a request, and cancels its call if that is still under way.
func (j *joiner) end(r *request) {
	r.cancel()
	j.o.View.ended(r.item)
	delete(j.requests, r.id)
}
