package scheduler

import "slices"

// charge is how much of the memory a request takes, in bytes.
func charge(it *item) uint64 { return max(it.Bytes, 1) }

// allowed reports whether the memory allows one more request.
func (s *Scheduler) allowed(p *peer, it *item) bool {
	return s.affords(p, it, s.used, s.probing, len(s.requests))
}

// affords is allowed with so much memory in use by so many requests alive. Peers that are not
// trusted get half of the memory together, or one item.
func (s *Scheduler) affords(p *peer, it *item, used, probing uint64, alive int) bool {
	budget, n := uint64(s.limits.memory), charge(it)
	if alive > 0 && (used > budget || n > budget-used) {
		return false
	}
	return p.trusted() || probing == 0 || probing <= budget/2 && n <= budget/2-probing
}

// makeRoom cancels as much of what stalls as is needed for a request that is to be made. It returns
// false if that is not enough; then nothing was cancelled.
//
// A trusted peer may also take the place of a request that needs eight times as long. And every
// peer may take the place of a request that is old and will take longer still, even if it never was
// faster: else a few peers that are slow on purpose could fill a small memory for ever. What counts
// as old doubles with the failures of either side, so that this comes to an end.
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
