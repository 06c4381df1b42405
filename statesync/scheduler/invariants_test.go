package scheduler

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/starling-kv/starling/internal/heap"
)

// checkInvariants recounts all counters from scratch and returns the first error.
func (s *Scheduler) checkInvariants() error {
	c := recount{late: map[*peer]int{}, verifying: map[*peer]int{}, remaining: map[*peer]uint64{}, holders: map[*group]int{}, parts: map[*group]int{}}
	return cmp.Or(s.checkRequests(&c), s.checkInFlight(), s.checkPeers(&c), s.checkItems(&c), s.timers.Check())
}

// recount holds the totals over requests and peers.
type recount struct {
	late, verifying map[*peer]int
	remaining       map[*peer]uint64
	holders, parts  map[*group]int
}

func (s *Scheduler) checkRequests(c *recount) error {
	var used, probing, unverified uint64
	var inFlight, verify int
	for id, r := range s.requests {
		it := r.item
		used += charge(it)
		if id != r.id || id > s.lastRequest {
			return fmt.Errorf("request %d is known as %d", r.id, id)
		}
		if s.items[it.ID] != it {
			return fmt.Errorf("request %d is for item %d, which is forgotten", id, it.ID)
		}
		if r.got > it.Bytes {
			return fmt.Errorf("request %d has %d bytes of %d", id, r.got, it.Bytes)
		}
		if has := slices.Contains(it.copies, r); has != (r.phase == flying || r.phase == verifying) {
			return fmt.Errorf("request %d in phase %d: among the copies of item %d: %v", id, r.phase, it.ID, has)
		}
		if running := s.timers.Has(&r.timer); running != (r.phase == flying) {
			return fmt.Errorf("request %d in phase %d: timer %v", id, r.phase, running)
		}
		switch r.phase {
		case flying:
			inFlight++
			if r.probe {
				probing += charge(it)
			}
			if !slices.Contains(r.peer.flying, r) || !r.peer.connected || r.peer.banned || it.closed {
				return fmt.Errorf("request %d should not be in flight", id)
			}
			if r.late {
				c.late[r.peer]++
			}
			c.remaining[r.peer] += r.left()
		case verifying:
			verify++
			unverified += r.got
			c.verifying[r.peer]++
		default:
			return fmt.Errorf("request %d in phase %d", id, r.phase)
		}
	}
	if used != s.used || probing != s.probing {
		return fmt.Errorf("memory: %d and %d of new peers counted, %d and %d found", s.used, s.probing, used, probing)
	}
	if unverified != s.unverified {
		return fmt.Errorf("%d bytes counted of answers being verified, %d found", s.unverified, unverified)
	}
	if budget := uint64(s.limits.memory); used > budget && len(s.requests) > 1 {
		return fmt.Errorf("memory: %d bytes in %d requests, %d allowed", used, len(s.requests), budget)
	}
	if inFlight != s.inFlight || verify != s.verifying {
		return fmt.Errorf("in flight %d, verifying %d counted; %d, %d found", s.inFlight, s.verifying, inFlight, verify)
	}
	return nil
}

func (s *Scheduler) checkInFlight() error {
	linked, last := 0, RequestID(0)
	for r := s.oldest; r != nil; r = r.next {
		if linked++; r.id <= last || r.phase != flying || linked > s.inFlight {
			return fmt.Errorf("request %d is out of order", r.id)
		}
		last = r.id
	}
	if linked != s.inFlight {
		return fmt.Errorf("%d requests in order, %d in flight", linked, s.inFlight)
	}
	return nil
}

func (s *Scheduler) checkPeers(c *recount) error {
	var wasted uint64
	for id, p := range s.peers {
		wasted += p.wasted
		if p.id != id || p.connected != slices.Contains(s.connected, p) || p.connected == slices.Contains(s.lost, p) {
			return fmt.Errorf("peer %s is neither connected nor lost", id)
		}
		if p.late != c.late[p] || p.remaining != c.remaining[p] || p.verifying != c.verifying[p] {
			return fmt.Errorf("peer %s: late %d, remaining %d, verifying %d counted; %d, %d, %d found",
				id, p.late, p.remaining, p.verifying, c.late[p], c.remaining[p], c.verifying[p])
		}
		if len(p.flying) > s.limits.perPeer || !p.proven && len(p.flying)+p.verifying > 1 && !p.banned {
			return fmt.Errorf("peer %s, proven %v: %d requests in flight, %d being verified", id, p.proven, len(p.flying), p.verifying)
		}
		if p.banned && (p.connected || p.proven) || !p.connected && len(p.groups)+len(p.flying) > 0 {
			return fmt.Errorf("peer %s is not gone", id)
		}
		for _, r := range p.flying {
			if s.requests[r.id] != r {
				return fmt.Errorf("peer %s: request %d is forgotten", id, r.id)
			}
		}
		for i, h := range p.groups {
			c.holders[h.group]++
			if h.spans != nil {
				c.parts[h.group]++
			}
			if s.groups[h.id] != h.group || i > 0 && p.groups[i-1].id >= h.id {
				return fmt.Errorf("peer %s: group %d is forgotten, or there twice", id, h.id)
			}
			if err := h.checkNone(); err != nil {
				return fmt.Errorf("peer %s: group %d: %w", id, h.id, err)
			}
		}
	}
	if len(s.peers) <= maxLost && wasted != s.wasted {
		return fmt.Errorf("%d bytes wasted, %d by peers", s.wasted, wasted)
	}
	return nil
}

func (s *Scheduler) checkItems(c *recount) error {
	live := map[*group]int{}
	for id, it := range s.items {
		g := it.group
		if it.closed {
			if len(it.copies) == 0 {
				return fmt.Errorf("item %d is not forgotten", id)
			}
		} else {
			live[g]++
		}
		if s.groups[it.Group] != g && !it.closed {
			return fmt.Errorf("item %d: group %d is forgotten", id, it.Group)
		}
		if s.open(it) != g.order.Has(it) || g.fresh.Has(it) != (s.open(it) && it.asked == 0) {
			return fmt.Errorf("item %d: open %v, asked %d, queued %v, fresh %v", id, s.open(it), it.asked, g.order.Has(it), g.fresh.Has(it))
		}
		for _, r := range it.copies {
			if s.requests[r.id] != r || r.item != it {
				return fmt.Errorf("item %d: request %d is forgotten", id, r.id)
			}
		}
		if len(it.copies) > s.limits.copies {
			return fmt.Errorf("item %d: %d copies", id, len(it.copies))
		}
	}
	sum := 0
	for id, g := range s.groups {
		sum += live[g]
		if g.id != id || g.live != live[g] || g.holders != c.holders[g] || (g.live > 0) != slices.Contains(s.wanted, g) {
			return fmt.Errorf("group %d: %d live, %d holders counted; %d, %d found", id, g.live, g.holders, live[g], c.holders[g])
		}
		if g.parts != c.parts[g] || (g.parts > 0) != (g.index != nil) {
			return fmt.Errorf("group %d: %d parts counted, %d found", id, g.parts, c.parts[g])
		}
		if err := g.checkIndex(); err != nil {
			return fmt.Errorf("group %d: %w", id, err)
		}
		for _, h := range []*heap.Heap[*item]{&g.order, &g.fresh} {
			if err := h.Check(); err != nil {
				return fmt.Errorf("group %d: %w", id, err)
			}
		}
	}
	if sum != s.live {
		return fmt.Errorf("%d items live, %d found", s.live, sum)
	}
	return nil
}

// checkIndex compares the index with the heaps.
func (g *group) checkIndex() error {
	if g.index == nil {
		return nil
	}
	n := 0
	for b, bucket := range g.index.buckets {
		n += len(bucket)
		for _, it := range bucket {
			if it.At/bucketPlaces != uint32(b) || !g.order.Has(it) {
				return fmt.Errorf("item %d at %d is in bucket %d", it.ID, it.At, b)
			}
		}
		all := Span{0, math.MaxUint32}
		if g.index.order.v[len(g.index.buckets)+b] != g.index.order.of(bucket, all) || g.index.fresh.v[len(g.index.buckets)+b] != g.index.fresh.of(bucket, all) {
			return fmt.Errorf("bucket %d has another first item", b)
		}
	}
	if n != len(g.order.All()) {
		return fmt.Errorf("the index has %d items, the heap %d", n, len(g.order.All()))
	}
	for _, t := range []*tournament{&g.index.order, &g.index.fresh} {
		for i := 1; i < len(t.v)/2; i++ {
			if t.v[i] != t.better(t.v[2*i], t.v[2*i+1]) {
				return fmt.Errorf("the index is broken at %d of %d", i, len(t.v))
			}
		}
	}
	return nil
}

// checkNone checks that a peer recorded as having nothing to request has nothing.
func (h *holding) checkNone() error {
	if h.spans == nil || h.none != h.opened {
		return nil
	}
	for _, it := range h.order.All() {
		if h.covers(it) {
			return fmt.Errorf("item %d at %d is overlooked", it.ID, it.At)
		}
	}
	return nil
}
