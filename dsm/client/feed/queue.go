package feed

import (
	"cmp"
	"slices"
	"time"

	"github.com/starling-kv/starling/internal/heap"
)

// This file decides which replicas are in step, which updates are kept, and which is sent next.

// settle decides about the replicas of the touched queues, and which updates are kept.
func (m *Machine) settle() {
	slices.SortFunc(m.touched, byShard)
	for _, q := range m.touched {
		m.standing(q)
		m.unpin(q)
	}
	m.shorten()
	slices.SortFunc(m.touched, byShard)
	for _, q := range m.touched {
		if q.forgotten < q.first-1 {
			q.forgotten = q.first - 1
			m.act(Forget{q.shard, q.forgotten})
			m.standing(q) // the lag in bytes is counted from the first update
			m.unpin(q)
		}
		m.count(q)
		for _, r := range q.replicas {
			m.planSend(r)
		}
	}
}

// count updates the indices of a queue.
func (m *Machine) count(q *queue) {
	if blocked := !q.next && m.within(q) < m.policy.MinAcks; blocked != m.blocked.Has(q) {
		if blocked {
			m.blocked.Push(q)
		} else {
			m.blocked.Remove(q)
		}
	}
	if durable := m.durable(q); durable != q.durable || q.next == m.slowest.Has(q) {
		m.slowest.Discard(q)
		q.durable = durable
		if !q.next {
			m.slowest.Push(q)
		}
	}
}

func (m *Machine) durable(q *queue) int64 {
	var heights []int64
	for _, r := range q.replicas {
		if r.state != Unheard {
			heights = append(heights, min(r.durable, m.head))
		}
	}
	if len(heights) < m.policy.MinAcks {
		return 0
	}
	slices.Sort(heights)
	return heights[len(heights)-m.policy.MinAcks]
}

// lag returns how far a replica is behind the last block.
func (m *Machine) lag(r *replica) (blocks int64, bytes uint64) {
	m.visits++
	q, before := r.queue, r.queue.dropped
	switch {
	case r.durable >= m.head:
		return 0, 0
	case r.durable >= q.first:
		before = q.updates[r.durable-q.first].total
	}
	return m.head - r.durable, q.total - before
}

// isWithin reports whether a replica is in step and within the allowed lag.
func (m *Machine) isWithin(r *replica) bool { return r.state == InStep && !m.beyond(r) }

func (m *Machine) within(q *queue) (n int) {
	for _, r := range q.replicas {
		if m.isWithin(r) {
			n++
		}
	}
	return n
}

// standing moves replicas into and out of the queue. A replica of a current range leaves only while
// enough others are within the lag; otherwise blocks wait, so the queue does not grow.
func (m *Machine) standing(q *queue) {
	for _, r := range q.replicas {
		if r.state == Lagging && r.needs >= q.first && !m.beyond(r) {
			r.state = InStep
			m.act(Back{r.node.name, q.shard})
		}
	}
	if !q.next && m.within(q) < m.policy.MinAcks {
		return
	}
	for _, r := range q.replicas {
		if r.state != Lagging && m.beyond(r) {
			r.state = Lagging
			m.act(Left{r.node.name, q.shard, r.durable, m.head})
		}
	}
}

// beyond reports whether the lag of a replica exceeds the limit. The lag of an unheard replica
// counts from the start.
func (m *Machine) beyond(r *replica) bool {
	blocks, bytes := m.lag(r)
	return blocks > m.policy.MaxLagBlocks || bytes > m.policy.MaxLagBytes
}

// unpin determines which updates of a queue all replicas in step have logged, and drops those that
// are too old for a replica that comes back.
func (m *Machine) unpin(q *queue) {
	q.unpinned = m.head
	inStep := 0
	for _, r := range q.replicas {
		switch r.state {
		case Unheard:
			q.unpinned = min(q.unpinned, r.start)
		case InStep:
			inStep++
			q.unpinned = min(q.unpinned, r.durable)
		case Lagging:
		}
	}
	if inStep < m.policy.MinAcks {
		// Replicas that fetch the range continue from the last blocks. Blocks may wait for them, so
		// there would be no later ones.
		q.unpinned = min(q.unpinned, m.head-minLagBlocks)
	}
	m.spare.Discard(q)
	for q.first <= q.unpinned && m.head-q.first >= m.policy.KeepBlocks {
		m.drop(q)
	}
	if q.first <= q.unpinned {
		m.spare.Push(q)
	}
}

// shorten drops updates that no replica needs, the oldest first, while all of them have too many
// bytes.
func (m *Machine) shorten() {
	for m.kept > m.policy.KeepBytes {
		q, any := m.spare.First()
		if !any {
			return
		}
		m.spare.Remove(q)
		m.drop(q)
		if q.first <= q.unpinned {
			m.spare.Push(q)
		}
	}
}

// drop drops the first update of a queue that is not in spare.
func (m *Machine) drop(q *queue) {
	to := q.updates[0].total
	m.kept -= to - q.dropped
	q.dropped = to
	q.updates = q.updates[1:]
	q.first++
	m.touch(q)
}

// planPoll schedules the next Poll of a node.
func (m *Machine) planPoll(n *node) {
	m.polls.Discard(n)
	if n.polling {
		return
	}
	n.pollAt = n.until
	if n.polled {
		n.pollAt = max(n.until, n.heard+m.policy.Poll)
	}
	m.polls.Push(n)
}

// planSend schedules the next Send to a replica.
func (m *Machine) planSend(r *replica) {
	m.sends.Discard(r)
	if _, at, any := m.next(r); any {
		r.sendAt = max(at, r.until)
		m.sends.Push(r)
	}
}

// take removes the elements that are due from a heap that is ordered by time.
func take[T any](h *heap.Heap[T], isDue func(T) bool) (due []T) {
	for t, any := h.First(); any && isDue(t); t, any = h.First() {
		h.Remove(t)
		due = append(due, t)
	}
	return due
}

func (m *Machine) poll() {
	due := take(&m.polls, func(n *node) bool { return n.pollAt <= m.now })
	slices.SortFunc(due, func(a, b *node) int { return cmp.Compare(a.name, b.name) })
	for _, n := range due {
		n.polling = true
		m.act(Poll{n.name})
	}
}

func (m *Machine) send() {
	due := take(&m.sends, func(r *replica) bool { return r.sendAt <= m.now })
	slices.SortFunc(due, func(a, b *replica) int { return cmp.Compare(a.number, b.number) })
	for _, r := range due {
		height, _, _ := m.next(r)
		r.sending, r.sentAt, r.late = height, m.now, m.mayMiss(r, height)
		m.act(Send{r.node.name, r.queue.shard, height, height <= r.top || m.rank(r, height) != 0})
	}
}

// next returns the update that is sent to a replica next, and when it is due. If several are due,
// it returns the lowest.
func (m *Machine) next(r *replica) (height int64, at time.Duration, any bool) {
	m.visits++
	if r.state != InStep || r.sending > 0 || r.needs == 0 {
		return 0, 0, false
	}
	for h := max(r.needs, r.queue.first); h <= m.head; h++ {
		turns := m.turns(r, h)
		if any && turns >= at {
			break // so are those of all later heights
		}
		if r.given[h] {
			continue
		}
		due := turns
		if h > r.asked {
			due += m.delay(m.position(r, h))
		}
		if !any || due < at {
			height, at, any = h, due, true
		}
		if due <= m.now {
			break
		}
	}
	return height, at, any
}

// turns returns when the turns of the validators to send an update to a replica begin, which
// increases with the height. The first turn counts from the last change of the replica's need, so
// later validators stay idle while there is progress. An update that the replica asked for is sent
// at once.
func (m *Machine) turns(r *replica, height int64) time.Duration {
	at := r.queue.updates[height-r.queue.first].at
	if height <= r.asked {
		return at
	}
	return max(at, r.since)
}
