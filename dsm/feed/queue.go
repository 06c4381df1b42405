package feed

import "time"

// This file decides who is in step, what is kept, and what is sent next.

// lag returns how far a replica is behind the last block.
func (m *Machine) lag(r *replica) (blocks int64, bytes uint64) {
	q, before := r.queue, r.queue.dropped
	switch {
	case r.durable >= m.head:
		return 0, 0
	case r.durable >= q.first:
		before = q.updates[r.durable-q.first].total
	}
	return m.head - r.durable, q.total - before
}

// isWithin reports whether a replica is in step and within the lag that is allowed.
func (m *Machine) isWithin(r *replica) bool { return r.state == InStep && !m.beyond(r) }

func (m *Machine) within(q *queue) (n int) {
	for _, r := range q.replicas {
		if m.isWithin(r) {
			n++
		}
	}
	return n
}

// standing lets replicas come back to the queue and leave it. One leaves only while enough others
// are within the lag: otherwise blocks wait, so the queue does not grow.
func (m *Machine) standing(q *queue) {
	for _, r := range q.replicas {
		if r.state == Lagging && r.needs >= q.first && !m.beyond(r) {
			r.state = InStep
			m.act(Back{r.node.name, q.shard})
		}
	}
	if m.within(q) < m.policy.MinAcks {
		return
	}
	for _, r := range q.replicas {
		if r.state != Lagging && m.beyond(r) {
			r.state = Lagging
			m.act(Left{r.node.name, q.shard, r.durable, m.head})
		}
	}
}

// beyond reports whether the lag of a replica is above the limit: of one that was not heard of,
// counted from the start.
func (m *Machine) beyond(r *replica) bool {
	blocks, bytes := m.lag(r)
	return blocks > m.policy.MaxLagBlocks || bytes > m.policy.MaxLagBytes
}

// shorten gives up the updates that all replicas in step have logged, unless they are kept for
// those that come back.
func (m *Machine) shorten(q *queue) {
	to := m.head
	for _, r := range q.replicas {
		switch r.state {
		case Unheard:
			to = min(to, m.start)
		case InStep:
			to = min(to, r.durable)
		case Lagging:
		}
	}
	n, dropped := 0, q.dropped
	for h := q.first; h <= to && (m.head-h >= m.policy.KeepBlocks || q.total-dropped > m.policy.KeepBytes); h++ {
		dropped = q.updates[n].total
		n++
	}
	if n == 0 {
		return
	}
	q.dropped = dropped
	q.updates = append(q.updates[:0], q.updates[n:]...)
	q.first += int64(n)
	m.act(Forget{q.shard, q.first - 1})
}

// pollAt returns when a node is asked for its claims.
func (m *Machine) pollAt(n *node) time.Duration {
	if !n.polled {
		return n.until
	}
	return max(n.until, n.heard+m.policy.Poll)
}

func (m *Machine) poll(n *node) {
	if !n.polling && m.now >= m.pollAt(n) {
		n.polling = true
		m.act(Poll{n.name})
	}
}

// send sends a replica what is due.
func (m *Machine) send(r *replica) {
	if height, at, any := m.next(r); any && m.now >= max(at, r.until) {
		r.sending = height
		m.act(Send{r.node.name, r.queue.shard, height, height <= r.top || m.rank(r, height) != 0})
	}
}

// next returns the update that a replica is sent next, and when that is due: of those that are due,
// the lowest.
func (m *Machine) next(r *replica) (height int64, at time.Duration, any bool) {
	if r.state != InStep || r.sending > 0 || r.needs == 0 {
		return 0, 0, false
	}
	for h := max(r.needs, r.queue.first); h <= m.head; h++ {
		if r.given[h] {
			continue
		}
		due := m.due(r, h)
		if !any || due < at {
			height, at, any = h, due, true
		}
		if due <= m.now {
			break
		}
	}
	return height, at, any
}

// due returns when the update of a height is to be sent to a replica: at once if it was asked for,
// otherwise when our turn among the validators comes. That is counted from when the replica's need
// changed, so that those whose turn it is not stay out of it while there is progress.
func (m *Machine) due(r *replica, height int64) time.Duration {
	at := r.queue.updates[height-r.queue.first].at
	if height <= r.asked {
		return at
	}
	return max(at, r.since) + m.delay(m.rank(r, height))
}

// delay returns how long a validator leaves an update to those before it in the order.
func (m *Machine) delay(rank int) time.Duration {
	senders := m.policy.Senders
	if rank < senders {
		return time.Duration(rank) * m.policy.Stagger
	}
	return time.Duration(senders)*m.policy.Stagger + time.Duration(rank/senders)*m.policy.Patience
}

// rank returns our place in the order in which validators send the update of a height to a replica.
func (m *Machine) rank(r *replica, height int64) int {
	if m.self < 0 || m.self >= m.validators {
		return m.validators
	}
	first := (uint64(height) + uint64(r.number)) % uint64(m.validators)
	return (m.self - int(first) + m.validators) % m.validators
}
