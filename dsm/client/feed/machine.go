package feed

import (
	"cmp"
	"slices"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/internal/heap"
)

// Machine decides which updates to send to which replicas. Create it with New. It must not be used
// concurrently.
type Machine struct {
	policy Policy
	now    time.Duration

	validators, self int
	head             int64    // of the last block
	queues           []*queue // by number; nil: the range is gone
	byName           map[dsm.NodeID]*node
	kept             uint64 // bytes of the updates of all queues
	actions          []Action

	// An event touches the queues that it concerns, and Step visits only these and what is due:
	// there can be thousands of ranges, each with events of its own.
	touched []*queue            // by the current Step
	polls   heap.Heap[*node]    // the nodes that are not being polled, by pollAt
	sends   heap.Heap[*replica] // the replicas with an update to be sent, by sendAt
	spare   heap.Heap[*queue]   // the queues whose first update no replica needs, by height
	blocked heap.Heap[*queue]   // the queues with too few replicas within the lag
	slowest heap.Heap[*queue]   // the queues of current ranges, by durable height
	visits  int                 // of a replica, by all Steps: their cost, for tests
}

// queue holds the updates of one range that some replica may need, in height order up to the
// Machine's head.
type queue struct {
	shard    int
	keys     avlstar.KeyRange
	next     bool     // no block waits for it
	updates  []update // of heights first, first + 1, …
	first    int64
	dropped  uint64 // bytes of all updates before first
	total    uint64 // bytes of all updates
	replicas []*replica

	unpinned  int64 // no replica needs the updates up to this height
	forgotten int64 // the last Forget
	durable   int64 // height that MinAcks replicas report as durable, at most the head; 0: unknown
	touched   bool  // it is in Machine.touched
	// positions in Machine.spare, blocked and slowest
	sparePlace, blockedPlace, slowestPlace int
}

type update struct {
	total uint64        // bytes of all updates up to this one
	at    time.Duration // when the block was committed
}

// replica is a node's copy of one range.
type replica struct {
	node   *node
	queue  *queue
	number int // over all ranges, in key order: determines the order of senders

	state   State
	start   int64          // Machine.head when the replica was added
	durable int64          // as last reported; Unheard: start
	needs   int64          // as last reported; 0: it accepts no updates
	since   time.Duration  // when needs last changed
	asked   int64          // updates up to this height, reported missing, are due at once
	given   map[int64]bool // heights above needs whose updates it has
	top     int64          // greatest height that it has received from this validator
	ready   time.Duration  // since when this validator can send to it
	silent  []silence      // by the index of a validator; nil: none is

	sending   int64 // the height of the Send in flight; 0: none
	late      bool  // as mayMiss reported when it began
	sentAt    time.Duration
	sendAt    time.Duration
	sendPlace int // position in Machine.sends
	failures
}

type node struct {
	name     dsm.NodeID
	replicas []*replica
	heard    time.Duration // when it last reported on all its ranges
	polled   bool          // it has reported at least once
	polling  bool

	pollAt    time.Duration
	pollPlace int // position in Machine.polls
	failures
}

// failures counts the failures since the last success.
type failures struct {
	count int
	until time.Duration // no requests before this time
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
	if err := policy.Check(ranges, nil); err != nil {
		return nil, err
	}
	m := &Machine{
		policy: policy, validators: 1, head: head, byName: map[dsm.NodeID]*node{},
		polls: heap.Heap[*node]{
			Before: func(a, b *node) bool { return cmp.Or(cmp.Compare(a.pollAt, b.pollAt), cmp.Compare(a.name, b.name)) < 0 },
			Place:  func(n *node) *int { return &n.pollPlace },
		},
		sends: heap.Heap[*replica]{
			Before: func(a, b *replica) bool {
				return cmp.Or(cmp.Compare(a.sendAt, b.sendAt), cmp.Compare(a.number, b.number)) < 0
			},
			Place: func(r *replica) *int { return &r.sendPlace },
		},
		spare: heap.Heap[*queue]{
			Before: func(a, b *queue) bool {
				return cmp.Or(cmp.Compare(a.first, b.first), cmp.Compare(a.shard, b.shard)) < 0
			},
			Place: func(q *queue) *int { return &q.sparePlace },
		},
		blocked: heap.Heap[*queue]{
			Before: func(a, b *queue) bool { return a.shard < b.shard },
			Place:  func(q *queue) *int { return &q.blockedPlace },
		},
		slowest: heap.Heap[*queue]{
			Before: func(a, b *queue) bool {
				return cmp.Or(cmp.Compare(a.durable, b.durable), cmp.Compare(a.shard, b.shard)) < 0
			},
			Place: func(q *queue) *int { return &q.slowestPlace },
		},
	}
	m.change(Change{Ranges: ranges})
	return m, nil
}

// Step takes an event and returns the resulting actions, in order. now is the time since New and
// must not decrease. The caller owns the returned slice.
func (m *Machine) Step(now time.Duration, e Event) []Action {
	for _, q := range m.touched {
		q.touched = false
	}
	m.touched, m.actions = m.touched[:0], nil
	m.now = max(m.now, now)
	m.handle(e)
	m.settle()
	m.poll()
	m.send()
	return m.actions
}

// Next returns the time by which Step must be called with Tick if no event comes earlier.
func (m *Machine) Next() (at time.Duration, ok bool) {
	if n, any := m.polls.First(); any {
		at, ok = n.pollAt, true
	}
	if r, any := m.sends.First(); any && (!ok || r.sendAt < at) {
		at, ok = r.sendAt, true
	}
	return at, ok
}

// Blocked returns the ranges that the next block must wait for: fewer than MinAcks of their
// replicas are within the lag. If it is empty, the block need not wait.
func (m *Machine) Blocked() (blocks []Block) {
	queues := slices.Clone(m.blocked.All())
	slices.SortFunc(queues, byShard)
	for _, q := range queues {
		blocks = append(blocks, m.block(q))
	}
	return blocks
}

// FirstBlocked returns the first range of Blocked, if there is one. Unlike Blocked, it is cheap
// while many ranges are blocked.
func (m *Machine) FirstBlocked() (b Block, ok bool) {
	q, ok := m.blocked.First()
	if ok {
		b = m.block(q)
	}
	return b, ok
}

func (m *Machine) block(q *queue) Block {
	return Block{q.keys, m.Lags(q.shard)}
}

// Lags returns how far the replicas of a range are behind, in configuration order.
func (m *Machine) Lags(shard int) (lags []Lag) {
	q := m.queues[shard]
	for _, r := range q.replicas {
		blocks, bytes := m.lag(r)
		lags = append(lags, Lag{r.node.name, r.state, r.durable, blocks, bytes, m.isWithin(r)})
	}
	return lags
}

// Queued returns the size of the queued updates of a range, in bytes.
func (m *Machine) Queued(shard int) uint64 { return m.queues[shard].total - m.queues[shard].dropped }

// Kept returns the size of the queued updates of all ranges, in bytes.
func (m *Machine) Kept() uint64 { return m.kept }

// Durable returns the height that MinAcks replicas of a range report as durable, at most the height
// of the last block; 0 if fewer have reported.
func (m *Machine) Durable(shard int) int64 { return m.queues[shard].durable }

// Shards returns the ranges, in the order of their keys.
func (m *Machine) Shards() (shards []Shard) {
	for _, q := range m.inOrder() {
		s := Shard{Placement: dsm.Placement{Range: q.keys}, Number: q.shard, Next: q.next}
		for _, r := range q.replicas {
			s.Replicas = append(s.Replicas, r.node.name)
		}
		shards = append(shards, s)
	}
	return shards
}

// Numbers returns the number of ranges that there have been: the length of Committed.Bytes.
func (m *Machine) Numbers() int { return len(m.queues) }

// inOrder returns the queues in the order of their keys.
func (m *Machine) inOrder() []*queue {
	queues := slices.DeleteFunc(slices.Clone(m.queues), func(q *queue) bool { return q == nil })
	slices.SortFunc(queues, func(a, b *queue) int { return dsm.CompareRanges(a.keys, b.keys) })
	return queues
}

// AllDurable returns the lowest Durable of all current ranges.
func (m *Machine) AllDurable() int64 {
	q, _ := m.slowest.First() // there is at least one range
	return q.durable
}

// Touched returns the ranges for which Durable, Lags and Queued may have changed in the last Step.
func (m *Machine) Touched() []int {
	shards := make([]int, len(m.touched))
	for i, q := range m.touched {
		shards[i] = q.shard
	}
	return shards
}

func byShard(a, b *queue) int { return cmp.Compare(a.shard, b.shard) }

func (m *Machine) touch(queues ...*queue) {
	for _, q := range queues {
		if q != nil && !q.touched {
			q.touched = true
			m.touched = append(m.touched, q)
		}
	}
}

func (m *Machine) act(a Action) { m.actions = append(m.actions, a) }

func (m *Machine) handle(e Event) {
	switch e := e.(type) {
	case Validators:
		m.validators, m.self = max(e.Count, 1), e.Self
		for _, q := range m.inOrder() {
			for _, r := range q.replicas {
				r.silent = nil // the indices have changed
			}
		}
		m.touch(m.queues...)
	case Committed:
		m.committed(e)
	case Change:
		m.change(e)
	case Sent:
		if r := m.replica(e.Node, e.Shard); r != nil && r.sending > 0 {
			m.sent(r, e)
		}
	case NotSent:
		if r := m.replica(e.Node, e.Shard); r != nil && r.sending > 0 {
			r.sending, r.ready = 0, m.now
			r.failures.add(m.now, m.policy)
			m.planSend(r)
		}
	case Claimed:
		if n := m.byName[e.Node]; n != nil {
			m.claimed(n, e.Claims)
		}
	case NotPolled:
		if n := m.byName[e.Node]; n != nil && n.polling {
			n.polling = false
			n.failures.add(m.now, m.policy)
			m.planPoll(n)
		}
	case Up:
		if n := m.byName[e.Node]; n != nil {
			n.failures.reset()
			m.planPoll(n)
			for _, r := range n.replicas {
				r.failures.reset()
				r.ready = m.now
				m.planSend(r)
			}
		}
	case Tick:
	}
}

// replica returns nil if a node does not keep a range.
func (m *Machine) replica(name dsm.NodeID, shard int) *replica {
	if shard < 0 || shard >= len(m.queues) || m.queues[shard] == nil {
		return nil
	}
	return m.queues[shard].replica(name)
}

func (q *queue) replica(name dsm.NodeID) *replica {
	i := slices.IndexFunc(q.replicas, func(r *replica) bool { return r.node.name == name })
	if i < 0 {
		return nil
	}
	return q.replicas[i]
}

// committed panics if a height or an update is missing: the caller has lost track of the chain.
func (m *Machine) committed(e Committed) {
	if e.Height != m.head+1 || len(e.Bytes) != len(m.queues) {
		panic("feed: a block does not follow the last one, or has no update for each range")
	}
	m.head = e.Height
	for i, q := range m.queues {
		if q != nil {
			q.total += e.Bytes[i]
			m.kept += e.Bytes[i]
			q.updates = append(q.updates, update{q.total, m.now})
		}
	}
	m.touch(m.queues...)
}

func (m *Machine) sent(r *replica, e Sent) {
	height := r.sending
	r.sending = 0
	if e.Missing && e.Complete && r.late && m.now-r.sentAt < m.policy.Stagger {
		m.missed(r, height)
	}
	if e.Complete {
		r.given[height] = true
		r.top = max(r.top, height)
	}
	m.heard(r, e.Answer.Durable, e.Answer.Needs)
	switch {
	case r.needs == height, !e.Complete && r.needs > 0 && r.needs < r.queue.first:
		// The replica has the update and waits for it, or it accepts neither the update nor earlier
		// ones that are still queued. Back off, lest both sides repeat this forever.
		r.failures.add(m.now, m.policy)
		return
	case r.needs > 0 && r.needs < height:
		r.asked = max(r.asked, height)
	}
	r.failures.reset()
}

// claimed applies a node's claims. The node does not have ranges that it does not name.
func (m *Machine) claimed(n *node, claims []dsm.Claim) {
	n.polling, n.polled, n.heard = false, true, m.now
	n.failures.reset()
	m.planPoll(n)
	for _, r := range n.replicas {
		i, found := slices.BinarySearchFunc(claims, r.queue.keys, func(c dsm.Claim, of avlstar.KeyRange) int { return dsm.CompareRanges(c.Range, of) })
		if !found {
			m.heard(r, 0, 0)
			continue
		}
		m.heard(r, claims[i].Durable, claims[i].Needs)
	}
}

// heard applies a replica's report. The replica may be ahead while this node catches up with the
// chain.
func (m *Machine) heard(r *replica, durable, needs int64) {
	m.touch(r.queue)
	if r.state == Unheard {
		r.state, r.ready = InStep, m.now
	}
	if r.needs == 0 {
		r.ready = m.now
	}
	if needs != r.needs {
		r.since = m.now
	}
	r.durable, r.needs = durable, needs
	for h := range r.given { // if it had the update that it waits for, it has lost it
		if h <= needs || needs == 0 {
			delete(r.given, h)
		}
	}
}
