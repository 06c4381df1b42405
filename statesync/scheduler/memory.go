package scheduler

import "slices"

// charge returns how much memory a request takes, in bytes.
func charge(it *item) uint64 { return max(it.Bytes, 1) }

// allowed reports whether memory allows one more request.
func (s *Scheduler) allowed(p *peer, it *item) bool {
	return s.affords(p, it, s.used, s.probing, len(s.requests))
}

// affords implements allowed for given memory use and number of requests. Untrusted peers together
// get half of the memory, or one item.
func (s *Scheduler) affords(p *peer, it *item, used, probing uint64, alive int) bool {
	budget, n := uint64(s.limits.memory), charge(it)
	if alive > 0 && (used > budget || n > budget-used) {
		return false
	}
	return p.trusted() || probing == 0 || probing <= budget/2 && n <= budget/2-probing
}

// makeRoom cancels stalled requests to free memory for a new request. It returns false, without
// cancelling anything, if that is not enough.
//
// A trusted peer may also replace a request that needs eight times as long. And any peer may
// replace a request that is old and will take longer still, even if that peer was never faster:
// otherwise a few deliberately slow peers could occupy a small memory forever. The age that counts
// as old doubles with the failures of both sides, so that this comes to an end.
func (s *Scheduler) makeRoom(p *peer, it *item) bool {
	const muchSlower = 8
	if s.now < s.noRoomUntil {
		return false
	}
	s.measureQueues()
	var victims []*request
	for r := s.oldest; r != nil; r = r.next {
		ahead := s.ahead(r)
		if r.peer == p {
			continue
		}
		age, eta := s.now-r.asked, s.eta(r, ahead)
		slow := p.trusted() && eta/muchSlower > p.took(it.Bytes) && age >= patience/4 &&
			(eta < forever || s.quiet(r) >= patience/4)
		if s.cancellable(r, p) || slow || s.old(age, eta, min(r.peer.timeouts, p.failures)) {
			victims = append(victims, r)
		}
	}
	slices.SortFunc(victims, func(a, b *request) int {
		if a.stuck != b.stuck {
			if a.stuck {
				return -1
			}
			return 1
		}
		return worse(a, b)
	})
	used, probing, alive := s.used, s.probing, len(s.requests)
	enough := func() bool { return s.affords(p, it, used, probing, alive) }
	n := 0
	for ; n < len(victims) && !enough(); n++ {
		used -= charge(victims[n].item)
		alive--
		if victims[n].probe {
			probing -= charge(victims[n].item)
		}
	}
	if !enough() {
		s.noRoomUntil = s.now + horizon
		return false
	}
	for _, r := range victims[:n] {
		s.giveUp(r)
	}
	return true
}
