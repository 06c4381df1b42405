package scheduler

import (
	"cmp"
	"slices"
	"time"

	"github.com/starling-kv/starling/internal/backoff"
)

// outstanding is an item whose copies are all in flight.
type outstanding struct {
	item *item
	eta  time.Duration // of the copy that will arrive first
	age  time.Duration // of the youngest copy
}

// old reports whether a request of the given age may be replaced, or at least duplicated, by an
// idle peer that is not known to be faster. A peer that has failed must wait longer, so that
// replacements by useless peers come to an end.
func (s *Scheduler) old(age, eta time.Duration, failures int) bool {
	return eta > age && age >= backoff.Doubled(4*patience, failures, forever/16)
}

// endGameEvery is the minimum time between two end games: each scans everything in flight, and near
// the end every answer leaves a peer idle.
const endGameEvery = 2 * time.Millisecond

// endGame asks idle peers for items that others were asked for: trusted peers if they are expected
// to be twice as fast, and all peers for items that stall.
func (s *Scheduler) endGame(idle []*peer) {
	if s.now < s.endGameAt {
		s.wake = s.endGameAt
		return
	}
	s.endGameAt = s.now + endGameEvery
	list, youngest := s.outstanding(), forever
	slices.SortFunc(list, func(a, b outstanding) int {
		return cmp.Or(cmp.Compare(b.eta, a.eta), cmp.Compare(a.item.seq, b.item.seq))
	})
	for _, p := range idle {
		if p.stalls {
			continue
		}
		for i := range list {
			o := &list[i]
			if o.item == nil || p.holds(o.item) || !p.has(o.item) {
				continue
			}
			if !s.room(p) || s.soon(p, o.eta) {
				break
			}
			if s.worthCopy(p, o) && (s.allowed(p, o.item) || s.makeRoom(p, o.item)) {
				s.ask(p, o.item)
				o.item = nil
			}
		}
	}
	for _, o := range list {
		if o.item != nil {
			youngest = min(youngest, o.age)
		}
	}
	if youngest < forever {
		// A stall only shows as time passes. The older the requests are, the less often it is worth
		// checking.
		s.wake = s.now + max(horizon, youngest/2)
	}
}

// soon reports that a copy is not worthwhile, whatever the item.
func (s *Scheduler) soon(p *peer, eta time.Duration) bool {
	return eta < 4*patience && !(p.trusted() && p.took(0) < eta/2)
}

func (s *Scheduler) outstanding() []outstanding {
	for _, p := range s.connected {
		p.stalls = false
	}
	s.measureQueues()
	for r := s.oldest; r != nil; r = r.next {
		r.eta = s.eta(r, s.ahead(r))
		r.peer.stalls = r.peer.stalls || r.eta == forever
	}
	s.list = s.list[:0]
	for r := s.oldest; r != nil; r = r.next {
		if r.item.copies[0] != r {
			continue
		}
		o := outstanding{r.item, forever, forever}
		for _, c := range r.item.copies {
			if c.phase != flying { // an answer has arrived
				o.item = nil
				break
			}
			o.eta, o.age = min(o.eta, c.eta), min(o.age, s.now-c.asked)
		}
		if o.item != nil {
			s.list = append(s.list, o)
		}
	}
	return s.list
}

// worthCopy reports whether a peer should be asked for an item that others were asked for. A
// trusted peer should be if it is expected to be twice as fast, unless a trusted peer was already
// asked for a second copy and makes progress. Any peer should be if the others stall. A third copy
// is for old requests. If the limit of copies is reached, the new copy replaces the one that has
// received the least.
func (s *Scheduler) worthCopy(p *peer, o *outstanding) bool {
	n := len(o.item.copies)
	if p.trusted() && p.took(o.item.Bytes) < o.eta/2 {
		trusted := slices.ContainsFunc(o.item.copies, func(r *request) bool { return r.peer.trusted() })
		if !trusted || n < s.limits.copies && (n == 1 || o.eta == forever) {
			return true
		}
	}
	if n >= s.limits.copies {
		victim := slices.MinFunc(o.item.copies, worse)
		return s.cancellable(victim, p) || s.old(o.age, o.eta, min(victim.peer.timeouts, p.failures))
	}
	if n == 1 && o.eta == forever && !p.trusted() {
		// A trusted peer would be better. If there is one, it will soon be idle.
		if _, _, known := s.reference(); !known || o.age >= patience {
			return true
		}
	}
	return s.old(o.age, o.eta, p.failures)
}
