package scheduler

import (
	"fmt"
	"slices"
	"time"
)

// ask creates a request. The caller has checked that there is room for it.
func (s *Scheduler) ask(p *peer, it *item) {
	if len(it.copies) >= s.limits.copies {
		s.giveUp(slices.MinFunc(it.copies, worse))
	}
	if g := it.group; g.order.Has(it) { // before asked changes, which determines its order
		g.dequeue(it)
	}
	s.lastRequest++
	r := &request{
		id: s.lastRequest, peer: p, item: it, probe: !p.trusted(),
		asked: s.now, heard: s.now, checked: s.now, moved: s.now, well: s.now, delivered: p.speed.delivered,
	}
	r.timer.request = r
	s.requests[r.id] = r
	s.used += charge(it)
	if r.probe {
		s.probing += charge(it)
	}
	p.flying = append(p.flying, r)
	p.remaining += it.Bytes
	p.asked = r.id
	r.queue, r.work = p.remaining, p.remaining
	s.link(r)
	it.copies = append(it.copies, r)
	it.asked++
	s.asked++
	if it.asked > 1 {
		s.refetched++
	}
	s.place(it)
	s.startTimer(&r.timer, s.now+patience)
	s.do(Ask{r.id, p.id, it.ID})
}

// land removes a request from those in flight: its answer has arrived or will not arrive.
func (s *Scheduler) land(r *request) {
	p := r.peer
	p.flying = slices.Delete(p.flying, slices.Index(p.flying, r), slices.Index(p.flying, r)+1)
	p.remaining -= r.left()
	if r.late {
		p.late--
	}
	if r.probe {
		s.probing -= charge(r.item)
	}
	s.unlink(r)
	s.stopTimer(&r.timer)
}

// end frees the memory of a request. wasted reports whether its bytes were useless.
func (s *Scheduler) end(r *request, wasted bool) {
	switch r.phase {
	case flying:
		s.land(r)
	case verifying:
		r.peer.verifying--
		s.verifying--
		s.unverified -= r.got
	}
	r.phase = ended
	if wasted {
		r.peer.wasted += r.got
		s.wasted += r.got
	}
	delete(s.requests, r.id)
	s.used -= charge(r.item)
	it := r.item
	if i := slices.Index(it.copies, r); i >= 0 {
		it.copies = slices.Delete(it.copies, i, i+1)
	}
	s.place(it)
	s.forget(it)
}

// cancel ends a request that is no longer needed.
func (s *Scheduler) cancel(r *request) {
	s.do(Cancel{r.id})
	s.end(r, true)
}

// giveUp cancels a stalled request. Its peer is not asked for a while, and gets more time for the
// next request.
func (s *Scheduler) giveUp(r *request) {
	if s.strike(r.peer, r.asked) {
		r.peer.timeouts++
	}
	s.cancel(r)
}

// arrived records the total number of bytes received of an answer.
func (s *Scheduler) arrived(r *request, total uint64) {
	total = min(total, r.item.Bytes)
	if total <= r.got {
		return
	}
	p := r.peer
	if r.got == 0 {
		p.speed.firstByte(s.now - r.asked)
	}
	if p.heard > r.asked { // otherwise the peer was idle
		p.speed.between(s.now - p.heard)
	}
	p.speed.delivered += total - r.got
	p.remaining -= total - r.got
	r.got = total
	r.heard, p.heard = s.now, s.now
}

func (s *Scheduler) received(r *request, n uint64) {
	s.arrived(r, n)
	if it := r.item; n > it.Bytes || it.Exact && n < it.Bytes {
		s.lied(r, fmt.Sprintf("answer of %d bytes, want %d", n, it.Bytes))
		return
	}
	r.sample = rateOf(r.peer.speed.delivered-r.delivered, s.now-r.asked)
	if r.peer.speed.rtt == 0 { // an empty answer
		r.peer.speed.firstByte(s.now - r.asked)
	}
	s.land(r)
	r.phase = verifying
	r.peer.verifying++
	s.verifying++
	s.unverified += r.got
	s.place(r.item)
	s.do(Verify{r.id})
}

func (s *Scheduler) verified(r *request) {
	p, it := r.peer, r.item
	p.verified++
	p.verifiedBytes += r.got
	p.failures, p.timeouts = 0, 0
	if r.asked > p.struck { // otherwise it may still be busy
		p.until = s.now
	}
	p.proven = !p.banned
	p.speed.sample(r.sample)
	s.refKnown = false
	if it.closed {
		s.end(r, true)
		return
	}
	s.done++
	s.doneBytes += it.Bytes
	s.close(it)
	s.end(r, false)
}

// lied ends a request whose answer proves a fault.
func (s *Scheduler) lied(r *request, reason string) {
	s.end(r, true)
	s.ban(r.peer, reason)
}

func (s *Scheduler) failed(r *request, why Reason, detail string) {
	switch why {
	case Lied:
		if detail == "" {
			detail = "an answer of impossible length"
		}
		s.lied(r, detail)
		return
	case Gone:
		s.gone(r.peer, r.item.group)
	default:
		s.strike(r.peer, r.asked)
	}
	s.end(r, true)
}

// link appends a request to the list of those in flight; unlink removes it.
func (s *Scheduler) link(r *request) {
	r.prev = s.newest
	if r.prev != nil {
		r.prev.next = r
	} else {
		s.oldest = r
	}
	s.newest = r
	s.inFlight++
}

func (s *Scheduler) unlink(r *request) {
	if r.prev != nil {
		r.prev.next = r.next
	} else {
		s.oldest = r.next
	}
	if r.next != nil {
		r.next.prev = r.prev
	} else {
		s.newest = r.prev
	}
	r.prev, r.next = nil, nil
	s.inFlight--
}

// timer is the time of the next check of a request or a peer.
type timer struct {
	at      time.Duration
	n       uint64 // breaks ties
	place   int    // position in Scheduler.timers
	request *request
	peer    *peer
}

func (s *Scheduler) startTimer(t *timer, at time.Duration) {
	s.stopTimer(t)
	s.lastTimer++
	t.at, t.n = at, s.lastTimer
	s.timers.Push(t)
}

func (s *Scheduler) stopTimer(t *timer) {
	s.timers.Discard(t)
}
