package feed

import (
	"slices"
	"time"

	"github.com/starling-kv/starling/dsm"
)

// Machine decides what to send to whom. Create it with New. It must not be used concurrently.
type Machine struct {
	ranges *dsm.Ranges
	policy Policy
	now    time.Duration

	validators, self int
	start            int64 // the height at New: updates are at hand from the next one on
	head             int64 // of the last block; >= start
	queues           []*queue
	nodes            []*node // in order of names
	byName           map[dsm.Node]*node
	actions          []Action
}

// queue has the updates of one range that some replica may need, in the order of heights, up to the
// Machine's head.
type queue struct {
	shard    int
	updates  []update // of heights first, first + 1, …
	first    int64
	dropped  uint64 // bytes of all updates before first
	total    uint64 // bytes of all updates
	replicas []*replica
}

type update struct {
	total uint64        // bytes of all updates up to this one
	at    time.Duration // when the block was committed
}

// replica is a node's part in one range.
type replica struct {
	node   *node
	queue  *queue
	number int // over all ranges: who sends to it follows from that

	state   State
	durable int64          // as it said last; Unheard: the Machine's start
	needs   int64          // likewise; 0: it takes none
	since   time.Duration  // when needs became what it is
	asked   int64          // updates up to this height are due at once: it lacks them
	given   map[int64]bool // heights above needs of which it has the update
	top     int64          // the greatest height that it ever had from us

	sending int64 // the height of the Send in flight; 0: none
	failures
}

type node struct {
	name     dsm.Node
	replicas []*replica
	heard    time.Duration // when it last said anything of all its ranges
	polled   bool          // ever heard
	polling  bool
	failures
}

// failures count those since the last success.
type failures struct {
	count int
	until time.Duration // it is left alone
}

func (f *failures) add(now time.Duration, p Policy) {
	d := p.BackOff
	for i := 0; i < f.count && d < p.MaxBackOff; i++ {
		d *= 2
	}
	f.count++
	f.until = now + min(d, p.MaxBackOff)
}

func (f *failures) reset() { *f = failures{} }

// New returns a Machine at time 0, for blocks above height head.
func New(ranges *dsm.Ranges, policy Policy, head int64) (*Machine, error) {
	if err := policy.check(ranges); err != nil {
		return nil, err
	}
	m := &Machine{ranges: ranges, policy: policy, validators: 1, start: head, head: head, byName: map[dsm.Node]*node{}}
	for _, name := range ranges.Nodes() {
		n := &node{name: name}
		m.nodes = append(m.nodes, n)
		m.byName[name] = n
	}
	number := 0
	for i := range ranges.Len() {
		q := &queue{shard: i, first: head + 1}
		for _, name := range ranges.Shard(i).Replicas {
			r := &replica{node: m.byName[name], queue: q, number: number, durable: head, needs: head + 1, given: map[int64]bool{}}
			number++
			q.replicas = append(q.replicas, r)
			r.node.replicas = append(r.node.replicas, r)
		}
		m.queues = append(m.queues, q)
	}
	return m, nil
}

// Step takes an event and returns the actions that follow, in order. now is the time since New, and
// must not decrease. The caller owns the returned slice.
func (m *Machine) Step(now time.Duration, e Event) []Action {
	m.actions = nil
	m.now = max(m.now, now)
	m.handle(e)
	for _, q := range m.queues {
		m.standing(q)
		m.shorten(q)
	}
	for _, n := range m.nodes {
		m.poll(n)
	}
	for _, q := range m.queues {
		for _, r := range q.replicas {
			m.send(r)
		}
	}
	return m.actions
}

// Next returns the time at which Step must be called with Tick if no event comes before.
func (m *Machine) Next() (at time.Duration, ok bool) {
	earliest := func(t time.Duration) {
		if !ok || t < at {
			at, ok = t, true
		}
	}
	for _, n := range m.nodes {
		if !n.polling {
			earliest(m.pollAt(n))
		}
	}
	for _, q := range m.queues {
		for _, r := range q.replicas {
			if _, at, any := m.next(r); any {
				earliest(max(at, r.until))
			}
		}
	}
	return at, ok
}

// Blocked returns the ranges that the next block must wait for: fewer than MinAcks of their
// replicas are within the lag. It is empty if the block need not wait.
func (m *Machine) Blocked() (blocks []Block) {
	for _, q := range m.queues {
		if m.within(q) < m.policy.MinAcks {
			blocks = append(blocks, Block{m.ranges.Shard(q.shard).Range, m.Lags(q.shard)})
		}
	}
	return blocks
}

// Lags returns where the replicas of a range stand, in the order of the configuration.
func (m *Machine) Lags(shard int) (lags []Lag) {
	q := m.queues[shard]
	for _, r := range q.replicas {
		blocks, bytes := m.lag(r)
		lags = append(lags, Lag{r.node.name, r.state, r.durable, blocks, bytes, m.isWithin(r)})
	}
	return lags
}

// Queued returns how many bytes the updates of a range have that are kept.
func (m *Machine) Queued(shard int) uint64 { return m.queues[shard].total - m.queues[shard].dropped }

func (m *Machine) act(a Action) { m.actions = append(m.actions, a) }

func (m *Machine) handle(e Event) {
	switch e := e.(type) {
	case Validators:
		m.validators, m.self = max(e.Count, 1), e.Self
	case Committed:
		m.committed(e)
	case Sent:
		if r := m.replica(e.Node, e.Shard); r != nil && r.sending > 0 {
			m.sent(r, e)
		}
	case NotSent:
		if r := m.replica(e.Node, e.Shard); r != nil && r.sending > 0 {
			r.sending = 0
			r.failures.add(m.now, m.policy)
		}
	case Claimed:
		if n := m.byName[e.Node]; n != nil {
			m.claimed(n, e.Claims)
		}
	case NotPolled:
		if n := m.byName[e.Node]; n != nil && n.polling {
			n.polling = false
			n.failures.add(m.now, m.policy)
		}
	case Up:
		if n := m.byName[e.Node]; n != nil {
			n.failures.reset()
			for _, r := range n.replicas {
				r.failures.reset()
			}
		}
	case Tick:
	}
}

// replica returns nil if a node does not keep a range.
func (m *Machine) replica(name dsm.Node, shard int) *replica {
	if shard < 0 || shard >= len(m.queues) {
		return nil
	}
	i := slices.IndexFunc(m.queues[shard].replicas, func(r *replica) bool { return r.node.name == name })
	if i < 0 {
		return nil
	}
	return m.queues[shard].replicas[i]
}

// committed panics if a height is left out, or an update: the caller has lost track of the chain.
func (m *Machine) committed(e Committed) {
	if e.Height != m.head+1 || len(e.Bytes) != len(m.queues) {
		panic("feed: a block does not follow the last one, or has no update for each range")
	}
	m.head = e.Height
	for i, q := range m.queues {
		q.total += e.Bytes[i]
		q.updates = append(q.updates, update{q.total, m.now})
	}
}

func (m *Machine) sent(r *replica, e Sent) {
	height := r.sending
	r.sending = 0
	if e.Complete {
		r.given[height] = true
		r.top = max(r.top, height)
	}
	m.heard(r, e.Answer.Durable, e.Answer.Needs)
	switch {
	case r.needs == height, !e.Complete && r.needs > 0 && r.needs < r.queue.first:
		// It has the update and waits for it, or it takes neither that nor what we have: it is left
		// alone for a while, lest both sides do nothing else.
		r.failures.add(m.now, m.policy)
		return
	case r.needs > 0 && r.needs < height:
		r.asked = max(r.asked, height)
	}
	r.failures.reset()
}

// claimed takes what a node says of its ranges. A range that it does not name, it does not have.
func (m *Machine) claimed(n *node, claims []dsm.Claim) {
	n.polling, n.polled, n.heard = false, true, m.now
	n.failures.reset()
	for _, r := range n.replicas {
		of := m.ranges.Shard(r.queue.shard).Range
		i := slices.IndexFunc(claims, func(c dsm.Claim) bool { return c.Range.Covers(of) })
		if i < 0 {
			m.heard(r, 0, 0)
			continue
		}
		m.heard(r, claims[i].Durable, claims[i].Needs)
	}
}

// heard takes what a replica says. It may be ahead of us, where we catch up with the chain.
func (m *Machine) heard(r *replica, durable, needs int64) {
	if r.state == Unheard {
		r.state = InStep
	}
	if needs != r.needs {
		r.since = m.now
	}
	r.durable, r.needs = durable, needs
	for h := range r.given { // if it had the one that it waits for, it lost it
		if h <= needs || needs == 0 {
			delete(r.given, h)
		}
	}
}
