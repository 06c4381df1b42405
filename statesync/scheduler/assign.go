package scheduler

import (
	"cmp"
	"slices"
	"strings"
)

// assign hands out what can be handed out: first to trusted peers, the fastest first, in the order
// of Add; then one item to each of the others; then, to peers that nothing is left for, what others
// were asked for.
func (s *Scheduler) assign() {
	s.wake = 0
	if len(s.wanted) == 0 {
		return
	}
	trusted, probes := s.trusted[:0], s.probes[:0]
	for _, p := range s.connected {
		switch {
		case !s.room(p):
		case p.trusted():
			trusted = append(trusted, p)
		default:
			probes = append(probes, p)
		}
	}
	s.trusted, s.probes = trusted, probes
	slices.SortFunc(trusted, func(a, b *peer) int {
		return cmp.Or(cmp.Compare(b.speed.rate, a.speed.rate), strings.Compare(string(a.id), string(b.id)))
	})
	slices.SortFunc(probes, func(a, b *peer) int { // the one that has waited longest
		return cmp.Or(cmp.Compare(a.failures, b.failures), cmp.Compare(a.asked, b.asked), strings.Compare(string(a.id), string(b.id)))
	})
	s.idle = s.idle[:0]
	if s.serve(trusted) && s.probe(probes) && len(s.idle) > 0 {
		s.endGame(s.idle)
	}
}

// serve gives trusted peers one item each, in turns, until they have enough. It returns false where
// the memory does not allow that. The other peers get nothing then either: they would take what the
// next trusted one waits for.
func (s *Scheduler) serve(peers []*peer) bool {
	for len(peers) > 0 {
		more := peers[:0]
		for _, p := range peers {
			if !s.room(p) { // another peer's need of memory has taken it
				continue
			}
			it := s.next(p)
			if it == nil {
				s.idle = append(s.idle, p)
				continue
			}
			if !s.allowed(p, it) && !s.makeRoom(p, it) {
				return false
			}
			s.ask(p, it)
			more = append(more, p)
		}
		peers = more
	}
	return true
}

// next returns the most urgent item that a peer has and is not asked for already; nil if there is
// none.
func (s *Scheduler) next(p *peer) *item {
	var best *item
	for _, g := range s.wanted {
		if len(g.order.v) == 0 {
			continue
		}
		h := p.holding(g)
		if h == nil {
			continue
		}
		if it := h.first(p, false); it != nil && (best == nil || g.order.less(it, best)) {
			best = it
		}
	}
	return best
}

// urgent returns the first item in order that the peer is not asked for. It puts aside those that
// it is asked for, which are few.
func (g *group) urgent(p *peer) *item {
	var held []*item
	defer func() {
		for _, it := range held {
			g.order.push(it)
		}
	}()
	for {
		it, ok := g.order.first()
		if !ok || !p.holds(it) {
			return it
		}
		g.order.remove(it)
		held = append(held, it)
	}
}

// probe gives one item to each of the other peers. New ones get the smallest that no peer was asked
// for yet: an item that has failed once waits for proven peers, while there is other work.
func (s *Scheduler) probe(peers []*peer) bool {
	for _, p := range peers {
		if !s.room(p) {
			continue
		}
		it := s.smallest(p)
		if it == nil {
			it = s.next(p)
		}
		if it == nil {
			s.idle = append(s.idle, p)
			continue
		}
		if !s.allowed(p, it) && !s.makeRoom(p, it) {
			return false
		}
		s.ask(p, it)
	}
	return true
}

// smallest returns the item that a new peer is tried with; nil if no item is fresh, or the peer is
// not new.
func (s *Scheduler) smallest(p *peer) (it *item) {
	if p.proven {
		return nil
	}
	for _, g := range s.wanted {
		if len(g.fresh.v) == 0 {
			continue
		}
		h := p.holding(g)
		if h == nil {
			continue
		}
		if first := h.first(p, true); first != nil && (it == nil || g.fresh.less(first, it)) {
			it = first
		}
	}
	return it
}
