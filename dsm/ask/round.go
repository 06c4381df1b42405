package ask

import (
	"cmp"
	"slices"
	"time"

	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/hedge"
)

// This file runs the rounds of a part. In each, hedge asks the replicas: one at the start, another
// at once where one failed, and beside those that are slow as many more as were asked so far.

// due carries out everything that is due by now.
func (m *Machine) due() {
	for p := range m.parts() {
		for _, r := range slices.Clone(p.out) {
			if m.requests[r.id] == r && m.now >= r.at+m.policy.GiveUp {
				m.act(Cancel{r.id})
				r.node.failed(m.now, r.at, m.policy)
				m.unanswered(r, "silent")
			}
		}
		switch {
		case p.done:
		case p.search == nil && m.now >= p.wake:
			m.round(p)
		case p.search != nil:
			m.join(p)
			m.drive(p, hedge.Tick{})
		}
	}
}

// round begins a round of a part. Without anybody to ask it is over at once.
func (m *Machine) round(p *part) {
	p.search = hedge.New(hedge.Policy{Pace: hedge.Doubling, Start: 1, Most: m.policy.Copies, After: m.policy.Slow})
	p.began, p.joined, p.tried = m.now, make([]bool, len(m.replicas(p))), nil
	if !m.join(p) {
		p.search = nil
		m.over(p)
	}
}

// join makes those replicas candidates of a round that may be asked by now, the best first. It
// reports whether there were any.
func (m *Machine) join(p *part) bool {
	replicas := m.replicas(p)
	var ids []hedge.ID
	for i, n := range replicas {
		if !p.joined[i] && m.now >= n.free() {
			p.joined[i] = true
			ids = append(ids, hedge.ID(i))
		}
	}
	if len(ids) == 0 {
		return false
	}
	// Among equals the turn passes with each request.
	turn := int(m.asked % RequestID(len(replicas)))
	rank := func(i hedge.ID) int { return (int(i) - turn + len(replicas)) % len(replicas) }
	slices.SortFunc(ids, func(a, b hedge.ID) int {
		return cmp.Or(m.worse(p, replicas[a], replicas[b]), cmp.Compare(rank(a), rank(b)))
	})
	m.drive(p, hedge.Add{IDs: ids})
	return true
}

// worse compares two replicas: whom to ask first is less.
func (m *Machine) worse(p *part, a, b *node) int {
	of := m.rangeOf(p)
	return cmp.Or(
		cmp.Compare(min(a.lies, 1), min(b.lies, 1)),
		byBool(m.now < a.small[p.shard], m.now < b.small[p.shard]),
		byBool(!a.hasHeight(of, p.shard, p.fetch.height, m.now), !b.hasHeight(of, p.shard, p.fetch.height, m.now)),
		cmp.Compare(a.expected(m.now, m.policy), b.expected(m.now, m.policy)),
	)
}

func byBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// drive gives hedge an event and carries out what follows.
func (m *Machine) drive(p *part, e hedge.Event) {
	if p.search == nil {
		return
	}
	for _, a := range p.search.Step(m.now-p.began, e) {
		switch a := a.(type) {
		case hedge.Ask:
			n := m.replicas(p)[a.ID]
			if m.now < n.free() { // since it joined the round, it failed or lied elsewhere
				p.tried = append(p.tried, n.trial(m.now))
				m.drive(p, hedge.Failed{ID: a.ID})
				continue
			}
			m.ask(p, n)
		case hedge.End: // answers end a part without hedge: here, nobody answered
			p.search = nil
			m.over(p)
		}
	}
}

func (m *Machine) ask(p *part, n *node) {
	m.asked++
	r := &request{id: m.asked, part: p, node: n, at: m.now}
	m.requests[r.id] = r
	p.out = append(p.out, r)
	n.owes++
	m.act(Ask{r.id, p.fetch.id, n.id, p.fetch.height, m.rangeOf(p), p.wants})
}

func (m *Machine) idOf(r *request) hedge.ID {
	return hedge.ID(slices.Index(m.ranges.Shard(r.part.shard).Replicas, r.node.id))
}

// over ends a round in which nobody answered.
func (m *Machine) over(p *part) {
	if p.large > 0 { // nobody else could say more
		m.halve(p)
		return
	}
	for i, n := range m.replicas(p) {
		if !p.joined[i] {
			p.tried = append(p.tried, n.trial(m.now))
		}
	}
	slices.SortFunc(p.tried, func(a, b Trial) int { return cmp.Compare(a.Node, b.Node) })
	if !slices.Contains(p.fetch.told, p.shard) {
		p.fetch.told = append(p.fetch.told, p.shard)
		m.act(Unserved{p.fetch.id, p.fetch.height, m.rangeOf(p), slices.Clone(p.tried)})
	}
	p.round++
	p.wake = m.now + doubled(m.policy.Retry, p.round-1, m.policy.MaxRetry)
	if p.fetch.rounds > 0 && p.round >= p.fetch.rounds {
		p.fetch.failed = append(p.fetch.failed, p.shard)
		m.remove(p)
	}
}

// doubled returns d doubled n times, at most limit.
func doubled(d time.Duration, n int, limit time.Duration) time.Duration {
	for ; n > 0 && d < limit; n-- {
		d *= 2
	}
	return min(d, limit)
}

// node is what is known of a storage node, whatever the fetch.
type node struct {
	id     dsm.Node
	owes   int // requests in flight
	claims []dsm.Claim
	gone   map[int]absence       // by number of the range
	small  map[int]time.Duration // by number of the range: asked after others until then

	took      time.Duration // what its answers took lately; 0: unknown
	tookSince time.Duration // when that was measured

	failures int           // since the last answer
	failedAt time.Duration // when the last one was counted
	until    time.Duration // it is left alone
	lies     int
	liedAt   time.Duration // when the last one was counted
	avoided  time.Duration // until then, for lying
}

// absence is a height that a node did not have.
type absence struct {
	height int64
	until  time.Duration // when that is forgotten
}

// free returns when a node may be asked again.
func (n *node) free() time.Duration { return max(n.until, n.avoided) }

// answered notes a good answer and how long it took.
func (n *node) answered(now, took, forget time.Duration) {
	n.failures = 0
	took = max(took, 1)
	if n.took > 0 {
		took = max((3*n.estimate(now, forget)+took)/4, 1)
	}
	n.took, n.tookSince = took, now
}

// passed notes that an answer was not there after so long, when it was not needed any more.
func (n *node) passed(now, after time.Duration, policy Policy) {
	if after >= policy.Slow && after > n.estimate(now, policy.Forget) {
		n.took, n.tookSince = after, now
	}
}

// failed notes the failure of a request that was asked at that time. What was asked before the last
// failure counts with that: sixteen requests that are lost at once are one failure.
func (n *node) failed(now, asked time.Duration, policy Policy) {
	if n.failures > 0 && asked <= n.failedAt {
		return
	}
	n.failures++
	n.failedAt = now
	n.until = now + doubled(policy.BackOff, n.failures-1, policy.MaxBackOff)
}

// lied notes a lie, likewise, and returns until when the node is avoided.
func (n *node) lied(now, asked time.Duration, policy Policy) (until time.Duration) {
	if n.lies == 0 || asked > n.liedAt {
		n.lies++
		n.liedAt = now
		n.avoided = now + doubled(policy.Avoid, n.lies-1, policy.MaxAvoid)
	}
	return n.avoided
}

// estimate returns what an answer takes: the less sure, the less, so that a slow node is tried
// again.
func (n *node) estimate(now, forget time.Duration) time.Duration {
	return n.took >> min(int64((now-n.tookSince)/forget), 40)
}

// expected returns when one more request would be answered. A node that has not answered yet gets
// one at once, and others as if it were slow.
func (n *node) expected(now time.Duration, policy Policy) time.Duration {
	if n.took == 0 {
		return time.Duration(n.owes) * policy.Slow
	}
	return n.estimate(now, policy.Forget) * time.Duration(1+n.owes)
}

// hasHeight reports whether nothing that a node said lets one doubt that it has a height of a
// range.
func (n *node) hasHeight(of dsm.Range, shard int, height int64, now time.Duration) bool {
	if g, is := n.gone[shard]; is && g.height == height && now < g.until {
		return false
	}
	if n.claims == nil {
		return true
	}
	return slices.ContainsFunc(n.claims, func(c dsm.Claim) bool {
		return c.Range.Covers(of) && c.Oldest <= height && height <= c.Newest
	})
}
