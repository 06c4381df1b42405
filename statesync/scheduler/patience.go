package scheduler

import (
	"cmp"
	"time"

	"github.com/starling-kv/starling/internal/backoff"
)

// How long a request may take is not a constant. It is compared with what its peer did before, and
// with what other peers do. The bytes ahead of it are compared after every patience. They have
// shrunk by
//
//	                           new peer      proven peer
//	nothing                    late, stuck   late, stuck
//	less than ref/16           late, stuck
//	less than min(own, ref)/4                late, stuck
//	something, no ref yet      late
//	enough                     well          well
//
// late: its item is requested from another peer, and its peer gets no other request. stuck: it is
// cancelled if its memory is needed. own is the rate of the peer, ref the median rate of the proven
// peers. The bytes ahead of a request are its own and those of the peer's earlier requests. So a
// peer that answers in order is not late because of its queue, but a peer that withholds an item
// and sends all others is.

const (
	newTolerance    = 16
	provenTolerance = 4
	maxDoublings    = 16
)

// check compares a request with its expected progress since the last check.
func (s *Scheduler) check(r *request) {
	p, elapsed := r.peer, s.now-r.checked
	var work uint64
	for _, other := range p.flying {
		work += other.left()
		if other == r {
			break
		}
	}
	moved := r.work - min(r.work, work)
	r.work, r.checked = work, s.now
	if moved > 0 {
		r.moved = s.now
	} else if s.now-r.moved >= s.lastChance(r) {
		s.giveUp(r)
		return
	}
	late, stuck := s.compare(r, moved, elapsed)
	s.judge(r, late, stuck)
	s.startTimer(&r.timer, s.now+patience)
}

// lastChance returns how long a request may make no progress while its memory is not needed.
func (s *Scheduler) lastChance(r *request) time.Duration {
	d := backoff.Doubled(giveUp, min(r.peer.timeouts, maxDoublings), forever/16)
	if r.peer.proven { // progress may be reported rarely
		d = max(d, provenTolerance*timeFor(r.item.Bytes, r.peer.speed.rate))
	}
	return d
}

func (s *Scheduler) compare(r *request, moved uint64, elapsed time.Duration) (late, stuck bool) {
	if moved == 0 {
		return true, true
	}
	now := rateOf(moved, elapsed)
	ref, _, known := s.reference()
	switch {
	case r.peer.proven:
		slow := now < min(r.peer.speed.rate, ref)/provenTolerance
		return slow, slow
	case known:
		slow := now < ref/newTolerance
		return slow, slow
	}
	return true, false
}

func (s *Scheduler) judge(r *request, late, stuck bool) {
	if r.stuck = stuck; stuck {
		s.noRoomUntil = 0
	} else {
		r.well = s.now
	}
	if late == r.late {
		return
	}
	r.late = late
	if late {
		r.peer.late++
	} else {
		r.peer.late--
	}
	s.place(r.item)
}

// cancellable reports whether a request has been stuck for so long that its memory may be given to
// another peer. The time doubles with the failures of both peers, so that one of them eventually
// gets through, however slow; but a peer that always fails cannot keep out a peer that seldom fails
// for long.
func (s *Scheduler) cancellable(r *request, p *peer) bool {
	return r.stuck && s.now-r.well >= backoff.Doubled(patience, min(r.peer.timeouts, p.failures), forever/16)
}

// worse orders requests by which to cancel first: the one that has received the least.
func worse(a, b *request) int {
	return cmp.Or(cmp.Compare(a.got, b.got), cmp.Compare(a.id, b.id))
}

// eta returns how long a request in flight is expected to take, or forever if it seems to stall.
// ahead is the number of bytes that its peer owes before it, including its own.
func (s *Scheduler) eta(r *request, ahead uint64) time.Duration {
	p := r.peer
	rate, rtt := p.speed.rate, p.speed.rtt
	if !p.proven {
		var known bool
		if rate, rtt, known = s.reference(); !known {
			if r.late || s.now-r.heard >= patience/4 {
				return forever
			}
			return 0
		}
	}
	slack := horizon
	pause := 2 * (rtt + timeFor(r.item.Bytes, rate))
	if p.proven && p.speed.gap > 0 {
		pause = min(pause, 2*(rtt+p.speed.gap))
	}
	age := s.now - r.asked
	switch {
	case r.late, s.quiet(r) > pause+slack, age > 4*(rtt+timeFor(r.queue, rate))+slack:
		return forever
	case r.got > 0 && !p.proven:
		return timeFor(r.left(), rateOf(r.got, age))
	case r.got > 0:
		return timeFor(ahead, rate)
	}
	return max(0, rtt-age) + timeFor(ahead, rate)
}

// quiet returns how long there has been no sign of an answer: no byte of it or, from a proven peer,
// of any answer.
func (s *Scheduler) quiet(r *request) time.Duration {
	if r.peer.proven {
		return s.now - max(r.heard, r.peer.heard)
	}
	return s.now - r.heard
}

// measureQueues must be called before calling ahead for the requests in flight, the oldest first.
func (s *Scheduler) measureQueues() {
	for _, p := range s.connected {
		p.ahead = 0
	}
}

func (s *Scheduler) ahead(r *request) uint64 {
	r.peer.ahead += r.left()
	return r.peer.ahead
}
