package ask

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/internal/hedge"
)

// stage is the phase of a leg.
type stage int

const (
	claiming stage = iota // waits for the first claim of a height
	opening               // parts ask for the wants
	beside                // parts ask for the paths to neighbours
	finding               // parts ask which leaves those are
	helping               // replicas are exhausted; only helpers remain
)

const (
	// maxSteps limits how many neighbours of a key are tried in each direction. maxKeys limits for
	// how many keys neighbours are tried.
	maxSteps, maxKeys = 64, 64
)

// leg is the part of a fetch that concerns one range.
//
//	claiming ─► opening ─┬─────────────────────────────────────────► something opened: over
//	                     ├─ nothing there ─► neighbours ⇄ finding ─►       〃
//	                     └─ no answer ────────┴─────────────► helping ─►   〃          or Missed
//	         helpers join after Policy.Help, or at once if the range needed them last time
type leg struct {
	fetch *fetch
	shard int // number of the range
	wants []avlstar.Want
	held  int
	began time.Duration

	stage  stage
	parts  []*part // of the current stage, asked of replicas
	help   []*part // asked of helpers
	helped bool    // helpers are being asked, or are not needed
	came   bool    // something was opened
	over   bool
	why    Why // of the first part that failed; 0: none has
	tried  []Trial
	height int64 // where neighbours are searched, because replicas opened nothing there

	keys  [][]byte // keys whose neighbours are tried
	found [][]byte // leaves next to keys
	above bool     // neighbours are the next higher leaves
	steps int      // steps taken in this direction
}

// part is the content of one request, or of a part of it.
type part struct {
	leg        *leg
	kind       Kind
	shard      int   // number of the range
	height     int64 // 0: the height nearest to the fetch's that each candidate claims
	wants      []avlstar.Want
	candidates []*node
	help       bool // the candidates are helpers
	alone      bool // it shares no request
	done       bool
	large      int        // number of "too large" answers from replicas
	nothing    int64      // best height at which a replica opened nothing
	out        []*request // in the order of sending

	search *hedge.Machine // nil before the search begins and after it ends
	began  time.Duration
	joined []bool // by candidate
	tried  []Trial
}

// all yields the parts that are not done.
func (l *leg) all() func(yield func(*part) bool) {
	return func(yield func(*part) bool) {
		for _, list := range []*[]*part{&l.parts, &l.help} {
			for i := 0; i < len(*list); i++ {
				if p := (*list)[i]; !p.done && !yield(p) {
					return
				}
			}
		}
	}
}

func (l *leg) mayHelp() bool { return !l.over && !l.helped && len(l.fetch.Helpers) > 0 }

// due performs everything that is due.
func (m *Machine) due() {
	for _, f := range m.fetches {
		for _, l := range f.legs {
			for {
				m.give(l)
				if !m.advance(l) {
					break
				}
			}
		}
	}
}

// give times out silent requests and drives the searches of a leg.
func (m *Machine) give(l *leg) {
	if l.mayHelp() && !l.fetch.Upper && (m.needed[l.shard] || m.now >= l.began+m.policy.Help) {
		m.beginHelp(l)
	}
	for p := range l.all() {
		for _, r := range slices.Clone(p.out) {
			if m.requests[r.id] == r && m.now >= r.at+m.policy.GiveUp {
				m.act(Cancel{r.id})
				r.node.failed(m.now, r.at, m.policy)
				m.unanswered(r, "silent")
			}
		}
		switch {
		case p.done:
		case p.search == nil:
			m.search(p)
		default:
			m.join(p)
			m.drive(p, hedge.Tick{})
		}
	}
}

// advance moves a leg to its next stage once all parts of the current stage are done. It returns
// true if there may be more to do.
func (m *Machine) advance(l *leg) bool {
	if l.over || slices.ContainsFunc(l.parts, func(p *part) bool { return !p.done }) {
		return false
	}
	switch l.stage {
	case claiming:
		if !l.fetch.Upper && !m.isClaimed(l.shard) && m.now < l.began+m.policy.Claim {
			return false
		}
		l.stage = opening
		if l.fetch.Upper {
			l.parts = []*part{{leg: l, kind: Upper, shard: l.shard, height: l.fetch.Height, candidates: m.replicas(l.shard)}}
			return true
		}
		l.parts = m.partsOf(l, Open, 0, []dsm.Part{{Shard: l.shard, Wants: l.wants}}, l.held)
		return true
	case opening, beside:
		if l.came {
			return m.finish(l)
		}
		switch {
		case l.why > 0 && l.why != Elsewhere:
			return m.unhelped(l)
		case l.stage == opening:
			l.steps, l.above, l.keys = 0, false, l.wantedKeys()
			return m.tryNeighbors(l)
		}
		l.stage, l.found = finding, make([][]byte, len(l.keys))
		l.parts = m.partsOf(l, Path, l.height, m.neighbors(l), 0)
		return true
	case finding:
		l.keys = slices.DeleteFunc(l.found, func(key []byte) bool { return key == nil })
		l.steps++
		l.why = 0
		return m.tryNeighbors(l)
	case helping:
		return m.unhelped(l)
	}
	return false
}

// partsOf returns parts for routed wants. Each part fits into a request together with held hashes.
func (m *Machine) partsOf(l *leg, kind Kind, height int64, routed []dsm.Part, held int) (parts []*part) {
	l.why = 0
	for _, of := range routed {
		for _, wants := range dsm.Split(of.Wants, m.policy.Wants, held) {
			parts = append(parts, &part{leg: l, kind: kind, shard: of.Shard, height: height, wants: wants, candidates: m.replicas(of.Shard)})
		}
	}
	return parts
}

// replicas returns the replicas of a range.
func (m *Machine) replicas(shard int) []*node {
	names := m.ranges.Shard(shard).Replicas
	list := make([]*node, len(names))
	for i, name := range names {
		list[i] = m.nodes[name]
	}
	return list
}

// tryNeighbors asks for the paths to the neighbours of keys. At an older height, the path to a key
// leads into another subtree if the key or its neighbours were deleted since. The leaf before the
// key is in the wanted subtree unless it was deleted too; then the leaf before that one is tried.
// At the left edge of the tree, which has no leaf before it, the leaf above is tried.
func (m *Machine) tryNeighbors(l *leg) bool {
	for {
		if l.steps < maxSteps {
			if parts := m.neighbors(l); len(parts) > 0 {
				l.stage = beside
				l.parts = m.partsOf(l, Neighbor, l.height, parts, l.held)
				return true
			}
		}
		if l.above {
			l.why = Elsewhere
			return m.unhelped(l)
		}
		l.steps, l.above, l.keys = 0, true, l.wantedKeys()
	}
}

func (l *leg) wantedKeys() (keys [][]byte) {
	for _, w := range l.wants[:min(len(l.wants), maxKeys)] {
		keys = append(keys, w.Key)
	}
	return keys
}

// neighbors returns wants for the paths to the neighbours of keys, which may be in other ranges.
func (m *Machine) neighbors(l *leg) []dsm.Part {
	var wants []avlstar.Want
	for _, key := range l.keys {
		if !l.above {
			if below := justBelow(key); below != nil {
				wants = append(wants, avlstar.Want{Key: below})
			}
		} else if len(key) < avlstar.MaxKeyBytes {
			wants = append(wants, avlstar.Want{Key: key, Next: true})
		}
	}
	parts, err := m.ranges.Route(wants)
	if err != nil {
		return nil // an inconsistent want of the caller has no neighbours
	}
	return parts
}

// justBelow returns the greatest possible key below key, or nil if there is none. The path to it
// leads to the greatest key in the tree that is below key.
func justBelow(key []byte) []byte {
	last := len(key) - 1
	if last < 0 || last == 0 && key[0] == 0 {
		return nil
	}
	if key[last] == 0 {
		return bytes.Clone(key[:last])
	}
	below := make([]byte, avlstar.MaxKeyBytes)
	for i := copy(below, key); i < len(below); i++ {
		below[i] = 0xff
	}
	below[last]--
	return below
}

// unhelped ends a leg that no replica can serve, unless helpers remain.
func (m *Machine) unhelped(l *leg) bool {
	l.stage = helping
	if l.mayHelp() {
		m.beginHelp(l)
		return true
	}
	if !slices.ContainsFunc(l.help, func(p *part) bool { return !p.done }) {
		m.finish(l)
	}
	return false
}

// finish ends a leg.
func (m *Machine) finish(l *leg) bool {
	if l.why > 0 {
		m.miss(l, l.why)
	}
	m.stopParts(l.help)
	l.over = true
	return false
}

func (m *Machine) miss(l *leg, why Why) {
	a := Missed{Fetch: l.fetch.ID, Shard: l.shard, Height: l.height, Why: why, Tried: l.tried}
	if a.Height == 0 {
		a.Height, _ = m.heightOf(m.replicas(l.shard)[0], l.shard, l.fetch.Height)
	}
	if !l.came {
		a.Oldest = m.beyond(l.shard, l.fetch.Height)
	}
	l.over = true
	m.act(a)
}

// beginHelp asks helpers for all wants of a leg.
func (m *Machine) beginHelp(l *leg) {
	l.helped = true
	var nodes []*node
	for _, id := range l.fetch.Helpers {
		n := m.nodes[id]
		if n == nil {
			n = newNode(id, true)
			m.nodes[id] = n
			m.helpers++
		}
		switch {
		case !n.helper || m.now < n.avoided:
		case id == m.useful:
			nodes = slices.Insert(nodes, 0, n)
		default:
			nodes = append(nodes, n)
		}
	}
	nodes = nodes[:min(len(nodes), m.policy.Helpers)]
	of := part{leg: l, help: true, shard: l.shard, height: l.fetch.Height, candidates: nodes}
	if l.fetch.Upper {
		of.kind = Upper
		l.help = append(l.help, &of)
		return
	}
	for _, wants := range dsm.Split(l.wants, m.policy.Wants, l.held) {
		p := of
		p.wants = wants
		l.help = append(l.help, &p)
	}
}

// search begins the search of a part. Without candidates it ends at once.
func (m *Machine) search(p *part) {
	policy := hedge.Policy{Pace: hedge.Doubling, Start: 1, Most: m.policy.Copies, After: m.policy.Slow}
	if p.help {
		policy.Pace, policy.Start, policy.Most = hedge.EachSlow, 2, m.policy.Helpers
	}
	p.search = hedge.New(policy)
	p.began, p.joined = m.now, make([]bool, len(p.candidates))
	if !m.join(p) {
		p.search = nil
		m.ended(p)
	}
}

// join adds the nodes that may be asked by now to a search, the best first. It returns false if
// there are none.
func (m *Machine) join(p *part) bool {
	var ids []hedge.ID
	for i, n := range p.candidates {
		if !p.joined[i] && m.now >= n.free() {
			p.joined[i] = true
			ids = append(ids, hedge.ID(i))
		}
	}
	if len(ids) == 0 {
		return false
	}
	if !p.help {
		// Equal candidates take turns.
		turn := int(m.asked % RequestID(len(p.candidates)))
		rank := func(i hedge.ID) int { return (int(i) - turn + len(p.candidates)) % len(p.candidates) }
		slices.SortFunc(ids, func(a, b hedge.ID) int {
			return cmp.Or(m.worse(p, p.candidates[a], p.candidates[b]), cmp.Compare(rank(a), rank(b)))
		})
	}
	m.drive(p, hedge.Add{IDs: ids})
	return true
}

// worse compares two replicas; the better candidate is less.
func (m *Machine) worse(p *part, a, b *node) int {
	atA, likelyA := m.at(p, a)
	atB, likelyB := m.at(p, b)
	return cmp.Or(
		cmp.Compare(min(a.lies, 1), min(b.lies, 1)),
		byBool(m.now < a.small[p.shard], m.now < b.small[p.shard]),
		byBool(!likelyA, !likelyB),
		nearest(p.leg.fetch.Height, atA, atB),
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

// at returns the height at which a node is asked for a part. likely is false if the node's claims
// or answers make that height unlikely.
func (m *Machine) at(p *part, n *node) (height int64, likely bool) {
	if height, likely = p.height, n.claims == nil; height == 0 {
		var claimed bool
		height, claimed = m.heightOf(n, p.shard, p.leg.fetch.Height)
		likely = likely || claimed
	} else if c, ok := n.claim(m.ranges.Shard(p.shard).Range); ok && !n.helper {
		likely = c.Oldest <= height && height <= c.Newest
	}
	if g, is := n.gone[p.shard]; is && g.height == p.leg.fetch.Height && m.now < g.until {
		likely = false
	}
	return height, likely
}

// drive passes an event to the search and performs its actions.
func (m *Machine) drive(p *part, e hedge.Event) {
	if p.search == nil {
		return
	}
	for _, a := range p.search.Step(m.now-p.began, e) {
		switch a := a.(type) {
		case hedge.Ask:
			n := p.candidates[a.ID]
			if m.now < n.free() { // it failed elsewhere since it became a candidate
				p.tried = append(p.tried, n.trial(m.now))
				m.drive(p, hedge.Failed{ID: a.ID})
				continue
			}
			m.ask(p, n)
		case hedge.End: // an answer ends a part without hedge: here nobody answered
			p.search = nil
			m.ended(p)
		}
	}
}

// ask sends a request, or adds the part to a request of the same fetch to the node: to one for the
// upper tree, or to one for wants that this step sends.
func (m *Machine) ask(p *part, n *node) {
	f := p.leg.fetch
	n.owes++
	if p.kind == Upper {
		for _, l := range f.legs {
			for other := range l.all() {
				if i := slices.IndexFunc(other.out, func(r *request) bool { return r.node == n }); i >= 0 {
					r := other.out[i]
					r.parts = append(r.parts, p)
					p.out = append(p.out, r)
					return
				}
			}
		}
	}
	height, _ := m.at(p, n)
	length := dsm.WitnessBytes(p.wants, p.leg.held)
	if r := n.last; r != nil && r.step == m.steps && r.height == height && m.mayShare(r, p, length) {
		m.share(r, p, length)
		return
	}
	m.asked++
	r := &request{
		id: m.asked, parts: []*part{p}, node: n, at: m.now,
		step: m.steps, action: len(m.actions), height: height, wants: len(p.wants), heldHashes: p.leg.held, length: length,
	}
	m.requests[r.id], n.last = r, r
	p.out = append(p.out, r)
	a := Ask{Request: r.id, Fetch: f.ID, Node: n.id, Kind: p.kind, Height: height, Shard: p.shard, Of: p.leg.shard, Wants: p.wants}
	if p.kind == Path {
		a.Around, a.Above = p.leg.keys, p.leg.above
	}
	m.act(a)
}

// mayShare reports whether a part may be added to a request that this step sends, at its height.
func (m *Machine) mayShare(r *request, p *part, length int) bool {
	first := r.parts[0]
	return first.leg.fetch == p.leg.fetch && first.kind == Open && p.kind == Open && !first.alone && !p.alone && !r.node.alone &&
		r.wants+len(p.wants) <= min(m.policy.Wants, dsm.MaxWants) && r.heldHashes+p.leg.held <= dsm.MaxHeld && r.length+length <= dsm.MaxBodyBytes
}

// share adds a part to a request that this step sends.
func (m *Machine) share(r *request, p *part, length int) {
	r.wants, r.heldHashes, r.length = r.wants+len(p.wants), r.heldHashes+p.leg.held, r.length+length
	r.parts, r.shared = append(r.parts, p), true
	p.out = append(p.out, r)
	a := m.actions[r.action].(Ask)
	if len(a.Also) == 0 {
		a.Wants = slices.Clone(a.Wants) // they are those of a part
	}
	a.Also, a.Wants = append(a.Also, p.shard), append(a.Wants, p.wants...)
	m.actions[r.action] = a
}

// apart replaces a request for several parts by one for each.
func (m *Machine) apart(r *request) {
	n, parts := r.node, r.parts
	m.end(r)
	for _, p := range parts {
		if p.alone = true; m.now < n.free() {
			m.lost(p, n, n.trial(m.now).Why)
		} else {
			m.ask(p, n)
		}
	}
}

// unanswered ends a request without an answer.
func (m *Machine) unanswered(r *request, why string) {
	parts := r.parts
	m.end(r)
	for _, p := range parts {
		m.lost(p, r.node, why)
	}
}

// lost records that a node did not serve a part and passes it to the search, which may ask another
// node.
func (m *Machine) lost(p *part, n *node, why string) {
	p.tried = append(p.tried, Trial{n.id, why})
	m.drive(p, hedge.Failed{ID: hedge.ID(slices.Index(p.candidates, n))})
}

// end removes a request from those in flight.
func (m *Machine) end(r *request) {
	delete(m.requests, r.id)
	if r.node.owes -= len(r.parts); r.node.last == r {
		r.node.last = nil
	}
	for _, p := range r.parts {
		p.out = slices.DeleteFunc(p.out, func(other *request) bool { return other == r })
	}
}

// stop ends a part and cancels the requests that no other part needs.
func (m *Machine) stop(p *part) {
	p.done, p.search = true, nil
	for _, r := range slices.Clone(p.out) {
		if len(r.parts) > 1 {
			r.parts = slices.DeleteFunc(slices.Clone(r.parts), func(other *part) bool { return other == p })
			r.node.owes--
			continue
		}
		m.act(Cancel{r.id})
		r.node.passed(m.now, m.now-r.at, m.policy)
		m.end(r)
	}
	p.out = nil
}

func (m *Machine) stopParts(parts []*part) {
	for _, p := range parts {
		if !p.done {
			m.stop(p)
		}
	}
}

func (m *Machine) stopAll(l *leg) {
	m.stopParts(l.parts)
	m.stopParts(l.help)
}

// ended ends a part that no node served.
func (m *Machine) ended(p *part) {
	if p.done {
		return
	}
	l := p.leg
	switch {
	case p.help:
	case p.large > 0 && p.kind != Upper: // no other node can say more
		m.halve(p)
	case p.nothing > 0:
		if l.why = max(l.why, Elsewhere); l.height == 0 || nearest(l.fetch.Height, p.nothing, l.height) < 0 {
			l.height = p.nothing
		}
	default:
		if l.why = max(l.why, Unserved); len(l.tried) == 0 {
			for i, n := range p.candidates {
				if !p.joined[i] {
					p.tried = append(p.tried, n.trial(m.now))
				}
			}
			slices.SortFunc(p.tried, func(a, b Trial) int { return cmp.Compare(a.Node, b.Node) })
			l.tried = p.tried
		}
	}
	p.done = true
}

// halve splits a part whose answer would be too large into two. The part must have no request in
// flight. A single want may not be divisible.
func (m *Machine) halve(p *part) {
	p.done = true
	wants := [2][]avlstar.Want{}
	if n := len(p.wants) / 2; n > 0 {
		wants[0], wants[1] = p.wants[:n:n], p.wants[n:]
	} else {
		a, b, ok := p.wants[0].Halves()
		if !ok {
			p.leg.why = Oversized
			return
		}
		wants[0], wants[1] = []avlstar.Want{a}, []avlstar.Want{b}
	}
	for _, half := range wants {
		p.leg.parts = append(p.leg.parts, &part{
			leg: p.leg, kind: p.kind, shard: p.shard, height: p.height, wants: half, candidates: p.candidates, alone: true,
		})
	}
}

// sawLeaves records the leaves next to keys.
func (l *leg) sawLeaves(leaves [][]byte) {
	for i, leaf := range leaves {
		if i < len(l.found) && l.found[i] == nil {
			l.found[i] = leaf
		}
	}
}
