package ask

import (
	"slices"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
)

// Machine decides which nodes to ask. Create it with New. It must not be used concurrently.
type Machine struct {
	ranges *dsm.Ranges
	policy Policy
	now    time.Duration

	fetches  []*fetch // in the order of their start
	requests map[RequestID]*request
	nodes    map[dsm.NodeID]*node // all storage nodes, and helpers
	helpers  int                  // number of helpers in nodes
	useful   dsm.NodeID           // last helper with a useful answer: asked first next time
	needed   map[int]bool         // ranges that were last served by helpers and not by replicas
	asked    RequestID            // last RequestID
	steps    uint64               // number of calls of Step
	actions  []Action             // of the current step
}

// fetch is a Fetch that has not ended.
type fetch struct {
	Fetch
	began    time.Duration
	came     int           // bytes received
	deadline time.Duration // 0: no answer yet
	legs     []*leg
}

// request is a request to one node. It has several parts if it asks for the upper tree, or for the
// wants of several ranges.
type request struct {
	id    RequestID
	parts []*part
	node  *node
	at    time.Duration

	step                      uint64 // in which it was sent: further parts join only then
	action                    int    // index of its Ask in Machine.actions during that step
	height                    int64
	wants, heldHashes, length int  // of the encoded request
	shared                    bool // it was sent for more ranges than one; parts may be fewer now
}

// New returns a Machine at time 0.
func New(ranges *dsm.Ranges, policy Policy) *Machine {
	m := &Machine{ranges: ranges, policy: policy, requests: map[RequestID]*request{}, nodes: map[dsm.NodeID]*node{}, needed: map[int]bool{}}
	for _, n := range ranges.Nodes() {
		m.nodes[n] = newNode(n, false)
	}
	return m
}

// Step takes an event and returns the resulting actions, in order. now is the time since New and
// must not decrease. The caller owns the returned slice.
func (m *Machine) Step(now time.Duration, e Event) []Action {
	m.actions = nil
	m.steps++
	m.now = max(m.now, now)
	m.handle(e)
	m.due()
	m.conclude()
	return m.actions
}

// Next returns the time by which Step must be called with Tick if no event comes earlier. ok is
// false if there is no such time.
func (m *Machine) Next() (at time.Duration, ok bool) {
	earliest := func(t time.Duration) {
		if !ok || t < at {
			at, ok = t, true
		}
	}
	for _, f := range m.fetches {
		if f.deadline > 0 {
			earliest(f.deadline)
		}
		for _, l := range f.legs {
			if l.stage == claiming {
				earliest(l.began + m.policy.Claim)
			}
			if l.mayHelp() && !f.Upper {
				earliest(l.began + m.policy.Help)
			}
			for p := range l.all() {
				if p.search == nil {
					continue
				}
				if t, has := p.search.Next(); has {
					earliest(p.began + t)
				}
				for _, r := range p.out {
					earliest(r.at + m.policy.GiveUp)
				}
				for i, n := range p.candidates {
					if !p.joined[i] {
						earliest(n.free())
					}
				}
			}
		}
	}
	return at, ok
}

func (m *Machine) act(a Action) { m.actions = append(m.actions, a) }

func (m *Machine) handle(e Event) {
	switch e := e.(type) {
	case Fetch:
		m.begin(e)
	case Drop:
		if i := slices.IndexFunc(m.fetches, func(f *fetch) bool { return f.ID == e.ID }); i >= 0 {
			for _, l := range m.fetches[i].legs {
				if !l.over {
					m.stopAll(l)
					m.miss(l, Late)
				}
			}
			m.fetches = slices.Delete(m.fetches, i, i+1)
		}
	case Proved:
		if r := m.requests[e.Request]; r != nil {
			m.proved(r, e)
		}
	case Refuted:
		if r := m.requests[e.Request]; r != nil {
			m.refuted(r, e)
		}
	case Failed:
		if r := m.requests[e.Request]; r != nil {
			m.failed(r, e.Reason)
		}
	case Claimed:
		if n := m.nodes[e.Node]; n != nil {
			n.claims = slices.Clone(e.Claims)
			clear(n.gone)
		}
	case Up:
		if n := m.nodes[e.Node]; n != nil {
			n.failures, n.until, n.alone = 0, 0, false
			clear(n.gone)
		}
	case Tick:
	}
}

func (m *Machine) begin(e Fetch) {
	f := &fetch{Fetch: e, began: m.now}
	m.fetches = append(m.fetches, f)
	if e.Upper {
		for i := range m.ranges.Len() {
			f.legs = append(f.legs, &leg{fetch: f, shard: i, began: m.now})
		}
		return
	}
	for i, p := range e.Parts {
		l := &leg{fetch: f, shard: p.Shard, wants: p.Wants, began: m.now}
		if i < len(e.Held) {
			l.held = e.Held[i]
		}
		f.legs = append(f.legs, l)
	}
}

// came counts an answer of a fetch. The remaining answers get as much time as the first one took.
func (m *Machine) came(f *fetch, bytes int) {
	f.came += bytes
	if f.deadline == 0 && !f.Upper {
		f.deadline = m.now + max(m.now-f.began, m.policy.Grace)
	}
}

func (m *Machine) proved(r *request, e Proved) {
	r.node.answered(m.now, m.now-r.at, m.policy.Forget)
	parts := r.parts
	m.end(r)
	if r.node.helper {
		m.useful = r.node.id
	}
	if parts[0].kind != Path {
		m.came(parts[0].leg.fetch, e.Bytes)
	}
	for _, p := range parts {
		l := p.leg
		if slices.Contains(e.Nothing, p.shard) {
			m.openedNothing(p, r.node)
			m.lost(p, r.node, Nothing.String())
			continue
		}
		m.stop(p)
		if p.kind == Path {
			l.sawLeaves(e.Leaves)
			continue
		}
		l.came = true
		if l.fetch.Upper && r.node.helper { // its upper tree covers all ranges, possibly with stubs
			for _, other := range l.fetch.legs {
				m.stopAll(other)
				other.came, other.over = true, true
			}
			continue
		}
		m.served(l, r.node.helper)
	}
}

// served records whether helpers or replicas opened something for a leg, and stops asking the
// others.
func (m *Machine) served(l *leg, byHelper bool) {
	if byHelper {
		m.needed[l.shard] = true
		m.stopParts(l.parts)
		l.stage, l.why = helping, 0
		return
	}
	delete(m.needed, l.shard)
	m.stopParts(l.help)
	l.helped = true
}

func (m *Machine) refuted(r *request, e Refuted) {
	if r.node.helper && e.Verdict == Omits { // helpers send what they have, which may be incomplete
		m.proved(r, Proved{Request: e.Request, Bytes: e.Bytes, Nothing: e.Nothing})
		return
	}
	until := r.node.lied(m.now, r.at, m.policy)
	parts := r.parts
	m.end(r)
	opened := e.Left != nil && parts[0].kind != Path
	if opened {
		m.came(parts[0].leg.fetch, e.Bytes)
	}
	about := parts[0].shard // the first range with wants that are left
	for i := len(parts) - 1; i >= 0 && opened; i-- {
		p := parts[i]
		if slices.Contains(e.Nothing, p.shard) {
			continue
		}
		left := slices.DeleteFunc(slices.Clone(p.wants), func(w avlstar.Want) bool { return !slices.ContainsFunc(e.Left, w.Equal) })
		p.leg.came = p.leg.came || !r.shared || len(left) < len(p.wants)
		if p.wants = left; len(left) > 0 {
			about = p.shard
		}
	}
	m.act(Lied{r.node.id, about, e.Verdict, until})
	for _, p := range parts {
		if len(p.wants) == 0 && opened {
			m.stop(p)
			m.served(p.leg, r.node.helper)
		} else {
			m.lost(p, r.node, "invalid answer: "+string(e.Verdict))
		}
	}
}

// openedNothing records that a node has a height, and that nothing opens there for a part.
func (m *Machine) openedNothing(p *part, n *node) {
	if n.helper {
		return
	}
	at, _ := m.at(p, n)
	if p.nothing == 0 || nearest(p.leg.fetch.Height, at, p.nothing) < 0 {
		p.nothing = at
	}
}

func (m *Machine) failed(r *request, why Reason) {
	p := r.parts[0]
	if r.shared && (why == TooLarge || !r.node.helper && (why == Gone || why == Refused)) {
		r.node.alone = r.node.alone || why == Refused
		m.apart(r)
		return
	}
	switch why {
	case TooLarge:
		r.node.small[p.shard] = m.now + m.policy.Doubt
		if p.large++; !r.node.helper && p.kind != Upper && (p.large > 1 || len(p.candidates) == 1) {
			m.end(r)
			m.stop(p)
			m.halve(p)
			return
		}
	case Gone:
		for _, p := range r.parts {
			r.node.gone[p.shard] = absence{p.leg.fetch.Height, m.now + m.policy.Doubt}
		}
	case Nothing:
		r.node.answered(m.now, m.now-r.at, m.policy.Forget)
		for _, p := range r.parts {
			m.openedNothing(p, r.node)
		}
	default:
		r.node.failed(m.now, r.at, m.policy)
	}
	m.unanswered(r, why.String())
}

// conclude ends the fetches that have enough or have no legs left.
func (m *Machine) conclude() {
	m.fetches = slices.DeleteFunc(m.fetches, func(f *fetch) bool {
		late := f.deadline > 0 && m.now >= f.deadline || f.MaxBytes > 0 && f.came >= f.MaxBytes
		for _, l := range f.legs {
			if late && !l.over {
				m.stopAll(l)
				m.miss(l, Late)
			}
		}
		if slices.ContainsFunc(f.legs, func(l *leg) bool { return !l.over }) {
			return false
		}
		m.act(Done{f.ID})
		return true
	})
	const most = 256
	if m.helpers > most { // the number of helper names is unbounded
		for id, n := range m.nodes {
			if n.helper && n.owes == 0 && m.now >= n.avoided+m.policy.MaxAvoid {
				delete(m.nodes, id)
				m.helpers--
			}
		}
	}
}
