package scheduler

import (
	"cmp"
	"slices"
	"time"

	"github.com/starling-kv/starling/internal/heap"
)

// item is an Item that is not done, or that has answers being verified.
type item struct {
	Item
	seq     uint64 // order of Add
	group   *group
	asked   int        // number of requests
	copies  []*request // in flight or being verified, in order of sending
	closed  bool       // done or dropped: no longer requested
	ordered int        // position in group.order
	sized   int        // position in group.fresh
}

// group is a group with items, or one that a connected peer claims.
type group struct {
	id      Group
	live    int              // items neither done nor dropped
	holders int              // connected peers
	order   heap.Heap[*item] // open items: refetches first, then by seq
	fresh   heap.Heap[*item] // the open items that were never requested, smallest first
	parts   int              // holders that have only a part
	index   *index           // of order and fresh; nil while parts is 0
	opened  uint64           // number of items that became open, plus 1
}

// phase of a request.
type phase int

const (
	flying phase = iota
	verifying
	ended
)

// request is a request, from Ask until its memory is freed.
type request struct {
	id    RequestID
	peer  *peer
	item  *item
	phase phase
	probe bool // sent when the peer was not trusted

	asked     time.Duration
	queue     uint64        // bytes that the peer owed when the request was sent, including its own
	delivered uint64        // bytes that the peer had delivered when the request was sent
	got       uint64        // bytes received
	heard     time.Duration // when the last byte arrived; asked, if none
	sample    uint64        // delivery rate, set when received

	timer   timer         // of the next check
	checked time.Duration // last check
	work    uint64        // bytes ahead of it at the last check, including its own
	moved   time.Duration // when work last shrank
	late    bool          // its item may be requested again
	stuck   bool          // may be cancelled if its memory is needed
	well    time.Duration // when it was last not stuck; asked, if never

	eta        time.Duration // scratch of the end game
	prev, next *request      // list of requests in flight, in order of sending
}

func (r *request) left() uint64 { return r.item.Bytes - r.got }

// group returns the group with the given ID, and creates it if necessary.
func (s *Scheduler) group(id Group) *group {
	g := s.groups[id]
	if g == nil {
		g = &group{
			id: id, opened: 1,
			order: heap.Heap[*item]{
				Before: func(a, b *item) bool {
					if (a.asked > 0) != (b.asked > 0) {
						return a.asked > 0
					}
					return a.seq < b.seq
				},
				Place: func(it *item) *int { return &it.ordered },
			},
			fresh: heap.Heap[*item]{
				Before: func(a, b *item) bool { return cmp.Or(cmp.Compare(a.Bytes, b.Bytes), cmp.Compare(a.seq, b.seq)) < 0 },
				Place:  func(it *item) *int { return &it.sized },
			},
		}
		s.groups[id] = g
	}
	return g
}

// release removes a group without holders and live items.
func (s *Scheduler) release(g *group) {
	if g.live == 0 && g.holders == 0 {
		delete(s.groups, g.id)
	}
}

func byGroupID(g *group, id Group) int { return cmp.Compare(g.id, id) }

func (s *Scheduler) add(items []Item) {
	for _, i := range items {
		if s.items[i.ID] != nil {
			continue
		}
		s.seq++
		it := &item{Item: i, seq: s.seq, group: s.group(i.Group)}
		s.items[i.ID] = it
		s.live++
		s.added++
		s.addedBytes += i.Bytes
		s.owing = true
		if it.group.live++; it.group.live == 1 {
			at, _ := slices.BinarySearchFunc(s.wanted, i.Group, byGroupID)
			s.wanted = slices.Insert(s.wanted, at, it.group)
		}
		s.place(it)
	}
}

// unlive removes an item from the counts of live items.
func (s *Scheduler) unlive(it *item) {
	s.live--
	if it.group.live--; it.group.live == 0 {
		at, _ := slices.BinarySearchFunc(s.wanted, it.group.id, byGroupID)
		s.wanted = slices.Delete(s.wanted, at, at+1)
		s.release(it.group)
	}
}

func (s *Scheduler) drop(ids []ItemID) {
	for _, id := range ids {
		it := s.items[id]
		if it == nil || it.closed {
			continue
		}
		s.added--
		s.addedBytes -= it.Bytes
		s.close(it)
	}
}

// close cancels the requests for an item that is done or dropped. Answers that are being verified
// remain: they may prove a fault.
func (s *Scheduler) close(it *item) {
	it.closed = true
	for i := len(it.copies) - 1; i >= 0; i-- {
		if it.copies[i].phase == flying {
			s.cancel(it.copies[i])
		}
	}
	s.place(it)
	s.unlive(it)
	s.forget(it)
}

// forget deletes a closed item once its last answer has been handled.
func (s *Scheduler) forget(it *item) {
	if it.closed && len(it.copies) == 0 {
		delete(s.items, it.ID)
	}
}

// open reports whether an item may be requested: no answer has arrived, all its requests are late,
// and there are fewer than the limit.
func (s *Scheduler) open(it *item) bool {
	return !it.closed && len(it.copies) < s.limits.copies &&
		!slices.ContainsFunc(it.copies, func(r *request) bool { return r.phase != flying || !r.late })
}

// place adds an item to the queues of its group or removes it from them. It must be called after
// every change that affects open.
func (s *Scheduler) place(it *item) {
	g := it.group
	if open := s.open(it); open == g.order.Has(it) {
		return
	} else if open {
		g.enqueue(it)
		return
	}
	g.dequeue(it)
}

func (g *group) enqueue(it *item) {
	g.opened++
	g.order.Push(it)
	if it.asked == 0 {
		g.fresh.Push(it)
	}
	if g.index != nil {
		g.index.add(it)
	}
}

func (g *group) dequeue(it *item) {
	g.order.Remove(it)
	g.fresh.Discard(it)
	if g.index != nil {
		g.index.remove(it)
	}
}
