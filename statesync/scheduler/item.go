package scheduler

import (
	"cmp"
	"slices"
	"time"
)

// item is an Item that is not done, or that has answers being verified.
type item struct {
	Item
	seq     uint64 // order of Add
	group   *group
	asked   int        // times
	copies  []*request // in flight or being verified, in the order asked
	closed  bool       // done or dropped: it is not requested any more
	ordered int        // place in group.order
	sized   int        // place in group.fresh
}

// group is a group that has items, or that a connected peer claims.
type group struct {
	id      Group
	live    int         // items neither done nor dropped
	holders int         // connected peers
	order   heap[*item] // open items: refetches first, then by seq
	fresh   heap[*item] // of these the ones never requested, smallest first
	parts   int         // of holders, those that have a part only
	index   *index      // of order and fresh; nil while parts is 0
	opened  uint64      // counts the items that became open; begins with 1
}

// phase of a request.
type phase int

const (
	flying phase = iota
	verifying
	ended
)

// request is a request, from Ask until its memory is free.
type request struct {
	id    RequestID
	peer  *peer
	item  *item
	phase phase
	probe bool // asked when the peer was not trusted

	asked     time.Duration
	queue     uint64        // bytes that the peer owed when it was asked, including these
	delivered uint64        // by the peer when it was asked
	got       uint64        // bytes here
	heard     time.Duration // when the last of them came; asked, if none
	sample    uint64        // rate, once received

	timer   timer         // runs until the next check
	checked time.Duration // last check
	work    uint64        // bytes still ahead of it then, including its own
	moved   time.Duration // when work was last seen to shrink
	late    bool          // its item may be requested a second time
	stuck   bool          // may be cancelled if its memory is needed
	well    time.Duration // when it was last seen not to be stuck; asked, if never

	eta        time.Duration // scratch of the end game
	prev, next *request      // in flight, in the order asked
}

func (r *request) left() uint64 { return r.item.Bytes - r.got }

// group returns the group with that id. It makes it if there is none.
func (s *Scheduler) group(id Group) *group {
	g := s.groups[id]
	if g == nil {
		g = &group{
			id: id, opened: 1,
			order: heap[*item]{
				less: func(a, b *item) bool {
					if (a.asked > 0) != (b.asked > 0) {
						return a.asked > 0
					}
					return a.seq < b.seq
				},
				at: func(it *item) *int { return &it.ordered },
			},
			fresh: heap[*item]{
				less: func(a, b *item) bool { return cmp.Or(cmp.Compare(a.Bytes, b.Bytes), cmp.Compare(a.seq, b.seq)) < 0 },
				at:   func(it *item) *int { return &it.sized },
			},
		}
		s.groups[id] = g
	}
	return g
}

// release forgets a group that no peer has and that is not wanted.
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

// unlive takes an item out of the count of items to be done.
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

// close ends the requests for an item that is done or dropped. Answers that are being verified
// remain: they may prove a lie.
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

// forget deletes a closed item once its last answer is dealt with.
func (s *Scheduler) forget(it *item) {
	if it.closed && len(it.copies) == 0 {
		delete(s.items, it.ID)
	}
}

// open reports whether the item is to be requested: no answer is here, all peers that are asked are
// late, and they are fewer than the limit.
func (s *Scheduler) open(it *item) bool {
	return !it.closed && len(it.copies) < s.limits.copies &&
		!slices.ContainsFunc(it.copies, func(r *request) bool { return r.phase != flying || !r.late })
}

// place puts an item into the queues of its group, or takes it out. It must be called after every
// change of what open depends on.
func (s *Scheduler) place(it *item) {
	g := it.group
	if open := s.open(it); open == g.order.has(it) {
		return
	} else if open {
		g.enqueue(it)
		return
	}
	g.dequeue(it)
}

func (g *group) enqueue(it *item) {
	g.opened++
	g.order.push(it)
	if it.asked == 0 {
		g.fresh.push(it)
	}
	if g.index != nil {
		g.index.add(it)
	}
}

func (g *group) dequeue(it *item) {
	g.order.remove(it)
	if g.fresh.has(it) {
		g.fresh.remove(it)
	}
	if g.index != nil {
		g.index.remove(it)
	}
}
