package ask

import (
	"fmt"
	"slices"
	"time"

	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/hedge"
)

// Machine decides whom to ask. Create it with New. It must not be used concurrently.
type Machine struct {
	ranges *dsm.Ranges
	policy Policy
	now    time.Duration

	fetches  []*fetch // in the order of their beginning
	requests map[RequestID]*request
	nodes    map[dsm.Node]*node // all of ranges
	asked    RequestID          // the last one
	actions  []Action
}

// fetch is a Fetch that has not ended.
type fetch struct {
	id     FetchID
	height int64
	rounds int     // maximum; 0: no limit
	parts  []*part // those that were done are taken out at the end of each step
	failed []int   // numbers of the ranges that were given up
	told   []int   // numbers of the ranges that are said to be unserved
}

// part is what one request asks for.
type part struct {
	fetch *fetch
	shard int // number of the range
	wants []dsm.Want
	done  bool       // it has ended: it is no part of the fetch any more
	large int        // replicas that said it is too large
	round int        // rounds that have ended
	out   []*request // in the order of asking

	search *hedge.Machine // of the round that is under way; nil: wake is when the next begins
	began  time.Duration  // of the round
	joined []bool         // by replica: it is a candidate of the round
	wake   time.Duration
	tried  []Trial       // in this round or, between rounds, in the last
	since  time.Duration // when the first round began
}

// request is a question to one replica.
type request struct {
	id   RequestID
	part *part
	node *node
	at   time.Duration
}

// New returns a Machine at time 0.
func New(ranges *dsm.Ranges, policy Policy) *Machine {
	m := &Machine{ranges: ranges, policy: policy, requests: map[RequestID]*request{}, nodes: map[dsm.Node]*node{}}
	for _, n := range ranges.Nodes() {
		m.nodes[n] = &node{id: n, gone: map[int]absence{}, small: map[int]time.Duration{}}
	}
	return m
}

// Step takes an event and returns the actions that follow, in order. now is the time since New, and
// must not decrease. The caller owns the returned slice.
func (m *Machine) Step(now time.Duration, e Event) []Action {
	m.actions = nil
	m.now = max(m.now, now)
	m.handle(e)
	m.due()
	m.conclude()
	return m.actions
}

// Next returns the time at which Step must be called with Tick if no event comes before. ok is
// false if there is no such time.
func (m *Machine) Next() (at time.Duration, ok bool) {
	earliest := func(t time.Duration) {
		if !ok || t < at {
			at, ok = t, true
		}
	}
	for p := range m.parts() {
		if p.search == nil {
			earliest(p.wake)
			continue
		}
		if t, has := p.search.Next(); has {
			earliest(p.began + t)
		}
		for _, r := range p.out {
			earliest(r.at + m.policy.GiveUp)
		}
		for i, n := range m.replicas(p) {
			if !p.joined[i] {
				earliest(n.free())
			}
		}
	}
	return at, ok
}

// Waiting returns the ranges that fetches wait for although all replicas were asked, in the order
// of fetches, each once for a fetch.
func (m *Machine) Waiting() (waits []Wait) {
	for p := range m.parts() {
		w := Wait{p.fetch.id, p.fetch.height, m.rangeOf(p), p.since, slices.Clone(p.tried)}
		same := func(other Wait) bool { return other.Fetch == w.Fetch && other.Range.Equal(w.Range) }
		if p.round > 0 && !slices.ContainsFunc(waits, same) {
			waits = append(waits, w)
		}
	}
	return waits
}

func (m *Machine) act(a Action) { m.actions = append(m.actions, a) }

// parts yields all parts that are not done. Parts that are added meanwhile are yielded, too.
func (m *Machine) parts() func(yield func(*part) bool) {
	return func(yield func(*part) bool) {
		for _, f := range m.fetches {
			for i := 0; i < len(f.parts); i++ {
				if p := f.parts[i]; !p.done && !yield(p) {
					return
				}
			}
		}
	}
}

func (m *Machine) rangeOf(p *part) dsm.Range { return m.ranges.Shard(p.shard).Range }

// replicas returns the replicas of a part's range. Their order is that of hedge's candidates.
func (m *Machine) replicas(p *part) []*node {
	names := m.ranges.Shard(p.shard).Replicas
	list := make([]*node, len(names))
	for i, name := range names {
		list[i] = m.nodes[name]
	}
	return list
}

func (m *Machine) handle(e Event) {
	switch e := e.(type) {
	case Fetch:
		m.begin(e)
	case Drop:
		if i := slices.IndexFunc(m.fetches, func(f *fetch) bool { return f.id == e.ID }); i >= 0 {
			for _, p := range m.fetches[i].parts {
				m.stop(p)
			}
			m.fetches = slices.Delete(m.fetches, i, i+1)
		}
	case Proved:
		if r := m.requests[e.Request]; r != nil {
			m.proved(r)
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
			m.up(n)
		}
	case Tick:
	}
}

func (m *Machine) begin(e Fetch) {
	f := &fetch{id: e.ID, height: e.Height, rounds: e.Rounds}
	m.fetches = append(m.fetches, f)
	for _, of := range e.Parts {
		for _, wants := range dsm.Split(of.Wants, m.policy.Wants, 0) {
			f.parts = append(f.parts, &part{fetch: f, shard: of.Shard, wants: wants, wake: m.now, since: m.now})
		}
	}
}

// proved ends a part.
func (m *Machine) proved(r *request) {
	r.node.answered(m.now, m.now-r.at, m.policy.Forget)
	m.end(r)
	m.stop(r.part)
	m.remove(r.part)
}

// remove takes a part off its fetch.
func (m *Machine) remove(p *part) { p.done = true }

func (m *Machine) refuted(r *request, e Refuted) {
	p := r.part
	until := r.node.lied(m.now, r.at, m.policy)
	m.act(Lied{r.node.id, m.rangeOf(p), e.Verdict, until})
	if e.Left != nil {
		p.wants = slices.DeleteFunc(slices.Clone(p.wants), func(w dsm.Want) bool { return !slices.ContainsFunc(e.Left, w.Equal) })
	}
	if len(p.wants) == 0 { // it lied, and yet all is open
		m.end(r)
		m.stop(p)
		m.remove(p)
		return
	}
	m.unanswered(r, "lied: "+string(e.Verdict))
}

func (m *Machine) failed(r *request, why Reason) {
	switch why {
	case TooLarge:
		p := r.part
		r.node.small[p.shard] = m.now + m.policy.MaxRetry
		if p.large++; p.large > 1 || len(m.replicas(p)) == 1 {
			m.end(r)
			m.stop(p)
			m.halve(p)
			return
		}
	case Gone:
		r.node.gone[r.part.shard] = absence{r.part.fetch.height, m.now + m.policy.MaxRetry}
	default:
		r.node.failed(m.now, r.at, m.policy)
	}
	m.unanswered(r, why.String())
}

// halve makes two parts of one that is too large for an answer, and of which no request is in
// flight. A range of keys is cut in the middle. What has no halves is given up.
func (m *Machine) halve(p *part) {
	p.done = true
	l, r, ok := halves(p.wants)
	if !ok {
		m.act(Oversized{p.fetch.id, m.rangeOf(p), p.wants[0]})
		p.fetch.failed = append(p.fetch.failed, p.shard)
		return
	}
	for _, wants := range [][]dsm.Want{l, r} {
		p.fetch.parts = append(p.fetch.parts, &part{fetch: p.fetch, shard: p.shard, wants: wants, round: p.round, wake: m.now, since: p.since})
	}
}

func halves(wants []dsm.Want) (l, r []dsm.Want, ok bool) {
	if n := len(wants) / 2; n > 0 {
		return wants[:n:n], wants[n:], true
	}
	a, b, ok := wants[0].Halves()
	return []dsm.Want{a}, []dsm.Want{b}, ok
}

// up forgets the failures of a node, and wakes the parts that it may serve.
func (m *Machine) up(n *node) {
	n.failures, n.until = 0, 0
	clear(n.gone)
	for p := range m.parts() {
		if p.search == nil && slices.Contains(m.replicas(p), n) {
			p.wake = min(p.wake, m.now)
		}
	}
}

// unanswered notes what came of a request that ended without an answer, and tells hedge, which may
// ask another replica.
func (m *Machine) unanswered(r *request, why string) {
	r.part.tried = append(r.part.tried, Trial{r.node.id, why})
	m.end(r)
	m.drive(r.part, hedge.Failed{ID: m.idOf(r)})
}

// end takes a request out of flight.
func (m *Machine) end(r *request) {
	delete(m.requests, r.id)
	r.node.owes--
	r.part.out = slices.DeleteFunc(r.part.out, func(other *request) bool { return other == r })
}

// stop cancels the requests of a part, and ends its round.
func (m *Machine) stop(p *part) {
	for len(p.out) > 0 {
		r := p.out[0]
		m.act(Cancel{r.id})
		r.node.passed(m.now, m.now-r.at, m.policy)
		m.end(r)
	}
	p.search = nil
}

// conclude ends the fetches that have no parts left.
func (m *Machine) conclude() {
	m.fetches = slices.DeleteFunc(m.fetches, func(f *fetch) bool {
		f.parts = slices.DeleteFunc(f.parts, func(p *part) bool { return p.done })
		if len(f.parts) > 0 {
			return false
		}
		if len(f.failed) == 0 {
			m.act(Done{f.id})
			return true
		}
		slices.Sort(f.failed)
		gave := GaveUp{Fetch: f.id}
		for _, i := range slices.Compact(f.failed) {
			gave.Ranges = append(gave.Ranges, m.ranges.Shard(i).Range)
		}
		m.act(gave)
		return true
	})
}

// trial names what keeps a node from being asked now.
func (n *node) trial(now time.Duration) Trial {
	if n.avoided > now {
		return Trial{n.id, fmt.Sprintf("avoided for %v more, since it lied", n.avoided-now)}
	}
	return Trial{n.id, fmt.Sprintf("left alone for %v more, since it failed", max(n.until-now, 0))}
}
