package fetch

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/starling-kv/starling/statesync/scheduler"
	"github.com/starling-kv/starling/transport"
)

// The life of a request. The functions below are in the same order.
//
//	ask       the request is sent                                    loop ──► goroutine of the call
//	answered  the answer has arrived, or an error                    loop ◄──
//	check     it is verified, and what it completes is stored        loop ──► worker
//	checked   the result goes to Work, then to the scheduler         loop ◄──

// Request is a request for an item to a peer. Its fields do not change after ask, unless their
// comments say otherwise.
type Request[I any] struct {
	Item I
	Peer scheduler.PeerID
	// Received counts the bytes of the answer. The goroutine of the call writes it, the loop reads
	// it.
	Received atomic.Int64
	// Proved: the answer must prove its sender (transport.Call.Proved).
	Proved bool

	id     scheduler.RequestID
	spec   scheduler.Item
	cancel context.CancelFunc

	// Used by the loop only.
	seen     int64 // Received, at the last tick
	told     int64 // bytes reported to the scheduler
	answer   Answer
	arrived  bool // answer is set, and no worker has taken it
	unproved bool // another sender may have forged the answer
}

// Answer is a peer's answer to a request for an item.
type Answer struct {
	Data     []byte // owned by the worker that verifies it
	Bytes    uint64 // length of the answer; at most that of the item
	Unproved bool   // another sender may have forged it (transport.Unproved)
}

// ask sends a request. It returns false if its peer or its item is gone.
func (l *Loop[I, F]) ask(a scheduler.Ask) bool {
	item, wanted := l.items[a.Item]
	conn := l.conns[a.Peer]
	if !wanted || conn == nil {
		return false
	}
	ctx, cancel := context.WithCancel(l.ctx)
	doubts, _ := l.doubts.Get(a.Peer)
	r := &Request[I]{Item: item, Peer: a.Peer, Proved: doubts.MustProve(), id: a.Request, cancel: cancel, spec: l.work.Spec(item)}
	r.spec.ID = a.Item
	l.requests[r.id] = r
	l.work.At(r, Asked)
	l.wg.Go(func() {
		defer cancel()
		answer, err := l.work.Call(ctx, conn, r)
		l.mail.Put(func() { l.answered(r, answer, err) })
	})
	return true
}

// answered handles the end of a call: an answer or an error.
func (l *Loop[I, F]) answered(r *Request[I], a Answer, err error) {
	if l.requests[r.id] == nil {
		return // the request was cancelled
	}
	var own *OwnError
	switch {
	case errors.As(err, &own):
		l.Fail(own.Err)
		return
	case err != nil:
		reason := l.reasonOf(err)
		if reason == scheduler.Lied {
			l.work.At(r, Wrong)
		}
		l.end(r)
		l.step(scheduler.Failed{Request: r.id, Reason: reason, Detail: err.Error()})
		return
	}
	r.unproved = a.Unproved
	if r.unproved && r.spec.Exact && a.Bytes != r.spec.Bytes {
		l.doubt(r)
		return
	}
	r.answer, r.arrived = a, true
	l.step(scheduler.Received{Request: r.id, Bytes: a.Bytes})
	if r.arrived { // no Verify: its length alone proves the answer wrong
		l.work.At(r, Wrong)
		l.end(r)
	}
}

// doubt ends a request whose answer is wrong and unproved (transport.Doubts).
func (l *Loop[I, F]) doubt(r *Request[I]) {
	if conn := l.conns[r.Peer]; conn != nil {
		transport.Doubt(conn)
	}
	d, _ := l.doubts.Get(r.Peer)
	d.Wrong()
	l.doubts.Set(r.Peer, d)
	l.end(r)
	l.step(scheduler.Doubt{Peer: r.Peer})
	l.step(scheduler.Failed{Request: r.id, Reason: scheduler.Broken})
}

// reasonOf translates the error of a call for the scheduler.
func (l *Loop[I, F]) reasonOf(err error) scheduler.Reason {
	switch {
	case transport.IsViolation(err), l.work.Invalid(err):
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

// check makes a worker verify an answer and store what it completes.
func (l *Loop[I, F]) check(r *Request[I]) {
	a := r.answer
	r.answer, r.arrived = Answer{}, false
	l.work.At(r, Arrived)
	l.wg.Go(func() {
		l.workers <- struct{}{}
		defer func() { <-l.workers }()
		found, err := l.work.Verify(r, a)
		l.mail.Put(func() { l.checked(r, found, err) })
	})
}

// checked handles the result of a worker.
func (l *Loop[I, F]) checked(r *Request[I], found F, err error) {
	switch wrong := err != nil && l.work.Invalid(err); {
	case wrong && r.unproved:
		l.doubt(r)
		return
	case wrong:
		l.work.At(r, Wrong)
		l.end(r)
		l.step(scheduler.Rejected{Request: r.id, Reason: err.Error()})
		return
	case errors.Is(err, ErrOver):
	case err != nil:
		l.Fail(err)
		return
	default:
		if d, ok := l.doubts.Get(r.Peer); ok && d.Right(r.unproved) {
			l.doubts.Set(r.Peer, d)
			l.step(scheduler.Doubt{Peer: r.Peer, Over: true})
		}
		l.work.Verified(r, found)
	}
	l.end(r)
	delete(l.items, r.spec.ID)
	l.step(scheduler.Verified{Request: r.id})
}

// end removes a request and cancels its call if that is still in progress.
func (l *Loop[I, F]) end(r *Request[I]) {
	r.cancel()
	l.work.At(r, Ended)
	delete(l.requests, r.id)
}
