package feed

import (
	"slices"

	"github.com/starling-kv/starling/dsm"
)

// change replaces the map of the ranges.
func (m *Machine) change(e Change) {
	type edges struct{ first, after string }
	old := map[edges]*queue{}
	for _, q := range m.inOrder() {
		old[edges{string(q.keys.First), string(q.keys.After)}] = q
		for _, r := range q.replicas {
			m.sends.Discard(r) // its order depends on the numbers of the replicas
		}
	}
	for s, next := range e.Ranges.All(e.Next) {
		key := edges{string(s.Range.First), string(s.Range.After)}
		q := old[key]
		if q == nil {
			q = &queue{shard: len(m.queues), keys: s.Range, first: m.head + 1, forgotten: m.head}
			m.queues = append(m.queues, q)
		}
		delete(old, key)
		q.next = next
		m.assign(q, s.Replicas)
	}
	for _, q := range old {
		m.assign(q, nil)
		m.kept -= q.total - q.dropped
		m.spare.Discard(q)
		m.blocked.Discard(q)
		m.slowest.Discard(q)
		m.queues[q.shard] = nil
		q.touched = true // no further Step visits it
	}
	for name, n := range m.byName {
		if len(n.replicas) == 0 {
			m.polls.Discard(n)
			delete(m.byName, name)
		}
	}
	number := 0
	for _, q := range m.inOrder() {
		for _, r := range q.replicas {
			r.number = number
			number++
		}
		m.count(q)
	}
	m.touch(m.queues...)
}

// assign sets the replicas of a queue. Those that stay keep their states.
func (m *Machine) assign(q *queue, names []dsm.NodeID) {
	for _, r := range q.replicas {
		if !slices.Contains(names, r.node.name) {
			r.node.replicas = slices.DeleteFunc(r.node.replicas, func(o *replica) bool { return o == r })
		}
	}
	replicas := make([]*replica, len(names))
	for i, name := range names {
		n := m.byName[name]
		if n == nil {
			n = &node{name: name}
			m.byName[name] = n
			m.planPoll(n)
		}
		if replicas[i] = q.replica(name); replicas[i] == nil {
			replicas[i] = &replica{node: n, queue: q, start: m.head, durable: m.head, needs: m.head + 1, given: map[int64]bool{}}
			n.replicas = append(n.replicas, replicas[i])
		}
	}
	q.replicas = replicas
}
