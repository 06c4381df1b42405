package scheduler

import (
	"cmp"
	"slices"
	"strings"
)

// assign hands out items: first to trusted peers, the fastest first, in the order of Add; then one
// item to each of the other peers; then, to idle peers, items that others were asked for.
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
	slices.SortFunc(probes, func(a, b *peer) int { // the one that has waited longest first
		return cmp.Or(cmp.Compare(a.failures, b.failures), cmp.Compare(a.asked, b.asked), strings.Compare(string(a.id), string(b.id)))
	})
	s.idle = s.idle[:0]
	if s.serve(trusted) && s.probe(probes) && len(s.idle) > 0 {
		s.endGame(s.idle)
	}
}

// serve gives trusted peers one item each, in rounds, until they have enough. It returns false if
// memory runs out. Then the other peers get nothing either, since they would take the memory that
// the next trusted peer waits for.
func (s *Scheduler) serve(peers []*peer) bool {
	for len(peers) > 0 {
		more := peers[:0]
		for _, p := range peers {
			if !s.room(p) { // another peer's makeRoom has cancelled its request
				continue
			}
			it := s.next(p, false)
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

// next returns the most urgent item that a peer has and is not asked for yet, or the smallest fresh
// item if fresh is set. It returns nil if there is none.
func (s *Scheduler) next(p *peer, fresh bool) (best *item) {
	for _, g := range s.wanted {
		queue := &g.order
		if fresh {
			queue = &g.fresh
		}
		if _, some := queue.First(); !some {
			continue
		}
		h := p.holding(g)
		if h == nil {
			continue
		}
		if it := h.first(p, fresh); it != nil && (best == nil || queue.Before(it, best)) {
			best = it
		}
	}
	return best
}

// urgent returns the first item in order that the peer is not asked for. It temporarily removes the
// few items that the peer is asked for.
func (g *group) urgent(p *peer) *item {
	var held []*item
	defer func() {
		for _, it := range held {
			g.order.Push(it)
		}
	}()
	for {
		it, ok := g.order.First()
		if !ok || !p.holds(it) {
			return it
		}
		g.order.Remove(it)
		held = append(held, it)
	}
}

// probe gives one item to each untrusted peer. New peers get the smallest item that was never
// requested: an item that has failed once waits for proven peers as long as there is other work.
func (s *Scheduler) probe(peers []*peer) bool {
	for _, p := range peers {
		if !s.room(p) {
			continue
		}
		var it *item
		if !p.proven {
			it = s.next(p, true)
		}
		if it == nil {
			it = s.next(p, false)
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
