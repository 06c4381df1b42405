package peers

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/starling-kv/starling/transport"
)

const (
	// turn is how long a discovered node may send nothing before it loses its slot for the first
	// time. A node that lost its slot gets twice as long the next time, up to maxPatience, so that
	// a slow line eventually has enough time. What a node has sent counts half after each turn.
	turn        = 30 * time.Second
	maxPatience = 16 * time.Minute
	// firstStay is how long a node with several addresses stays at a new one. It is short, because
	// a Byzantine proxy costs the join this time. A slow line, on which no chunk arrives so soon,
	// gets twice as long each time, up to maxPatience.
	firstStay = 2 * time.Second
	// rotateEvery is the interval at which the worst useful node loses its slot, if slots are
	// short.
	rotateEvery = 10 * time.Second

	lastAdvertisedRetry = 4 * time.Minute // for an advertised address
)

// meter is an exponentially decaying amount.
type meter struct {
	amount float64
	at     time.Time
}

func (m meter) value(now time.Time, half time.Duration) float64 {
	return m.amount * math.Exp2(-float64(now.Sub(m.at))/float64(half))
}

// rank orders meters of one half-life by their values at any time after both were changed.
func (m meter) rank(half time.Duration) float64 {
	return math.Log2(m.amount) + float64(m.at.UnixNano())/float64(half)
}

func (m *meter) add(now time.Time, half time.Duration, n float64) {
	*m = meter{m.value(now, half) + n, now}
}

// visit is the state of a discovered node while it has a slot.
type visit struct {
	at     *address
	by     advertiser    // charged for the node
	since  time.Time     // connected at this address since then; zero: being dialled
	stay   time.Duration // time after which another address may replace this one
	stays  time.Duration // the next stay at an address that was tried before
	trial  bool          // this address is new, and another one was tried before
	gave   time.Time     // when the node last sent something at this address; zero: never
	rate   meter         // verified bytes at this address
	proved bool          // the node has sent something: its advertiser is no longer charged for it
	leaves bool
}

// connected records that a visited node answered at an address.
func (b *book) connected(now time.Time, a transport.Address) {
	n := b.known[a.ID]
	if n == nil || n.visit == nil {
		return
	}
	v := n.visit
	if to := n.at(a.HostPort); to != nil && to != v.at && len(to.advertisers) > 0 { // after better
		v.at.tried, v.at.rate, v.at.due = true, v.rate, now
		if !v.proved {
			b.open(v.by, -1)
			b.open(to.advertisers[0], 1)
		}
		v.at, v.by, v.rate, v.gave = to, to.advertisers[0], meter{}, time.Time{}
		v.stay, v.trial = firstStay, !to.tried
		if to.tried {
			v.lengthen()
		}
		b.prune(n)
	}
	v.since, v.at.failed = now, false
}

// lengthen doubles the stay at an address, so that trying other addresses costs less and less.
func (v *visit) lengthen() { v.stay, v.stays = v.stays, min(2*v.stays, maxPatience) }

// better returns another address at which to try a connected node: one with a higher rate, one
// never tried, or any if nothing arrives from this one.
func (b *book) better(now time.Time, id transport.ID) (transport.Address, bool) {
	n := b.known[id]
	if n == nil || n.visit == nil || n.visit.since.IsZero() || now.Sub(n.visit.since) < n.visit.stay {
		return transport.Address{}, false
	}
	v := n.visit
	rate := func(a *address) float64 { return a.rate.value(now, turn) }
	var others, untried []*address
	for _, a := range n.addresses {
		if a != v.at && !a.due.After(now) && len(a.advertisers) > 0 {
			others = append(others, a)
			if !a.tried {
				untried = append(untried, a)
			}
		}
	}
	if len(others) == 0 {
		return transport.Address{}, false
	}
	to := slices.MaxFunc(others, func(a, c *address) int { return cmp.Compare(rate(a), rate(c)) })
	switch {
	case rate(to) > v.rate.value(now, turn):
	case len(untried) > 0 && (!v.trial || v.gave.IsZero()):
		to = untried[b.rng.IntN(len(untried))]
	case v.gave.IsZero():
		to = others[b.rng.IntN(len(others))]
	default: // the trial succeeded
		v.lengthen()
		v.stay += now.Sub(v.since)
		v.trial = false
		return transport.Address{}, false
	}
	return transport.Address{ID: id, HostPort: to.hostPort}, true
}

// useful records that a node sent valid bytes. It returns true the first time: more nodes of its
// advertisers may then be tried.
func (b *book) useful(now time.Time, id transport.ID, bytes int) bool {
	n := b.known[id]
	if n == nil || n.visit == nil {
		return false
	}
	v := n.visit
	v.gave = now
	v.rate.add(now, turn, float64(bytes))
	if v.proved {
		return false
	}
	v.proved = true
	b.open(v.by, -1)
	return true
}

// waits reports whether there are nodes without a slot.
func (b *book) waits() bool { return b.visits < len(b.list) }

// lied charges the advertiser, the root and the host of a banned node.
func (b *book) lied(now time.Time, id transport.ID) {
	n := b.known[id]
	switch {
	case n == nil:
	case n.visit == nil:
		b.forgetNode(n)
	default:
		b.charge(now, n.visit.by, 1)
		accountOf(b.hosts, n.visit.at.groups[0]).spent.add(now, forgiven, 1)
	}
}

// unreachable records that the node does not answer at an address. wrong: a different node does, so
// the address is dropped.
func (b *book) unreachable(now time.Time, a transport.Address, wrong bool) {
	n := b.known[a.ID]
	if n == nil {
		return
	}
	at := n.at(a.HostPort)
	if at == nil || len(at.advertisers) == 0 {
		return
	}
	if !at.failed && !at.tried {
		at.failed = true
		b.charge(now, at.advertisers[0], vainCost)
	}
	at.pause(now, firstRetry)
	if wrong {
		at.advertisers = nil
		b.prune(n)
	}
}

// pause keeps an address from being dialled, for least the first time and then for twice as long
// each time.
func (a *address) pause(now time.Time, least time.Duration) {
	a.wait = min(max(2*a.wait, least), lastAdvertisedRetry)
	a.due = now.Add(a.wait)
}

// left frees the slot of a node whose connection has ended or could not be made. gone: the node is
// removed.
func (b *book) left(now time.Time, id transport.ID, gone bool) {
	n := b.known[id]
	if n == nil || n.visit == nil {
		return
	}
	v := n.visit
	n.visit = nil
	b.visits--
	if !v.proved {
		b.open(v.by, -1)
	}
	if !v.since.IsZero() {
		v.at.tried, v.at.rate = true, v.rate
		if now.Sub(v.since) > lastRetry {
			v.at.wait = 0
		}
		if v.leaves {
			n.patience = min(2*n.patience, maxPatience)
			v.at.due = now.Add(turn)
		} else {
			v.at.pause(now, firstRetry)
		}
	}
	b.prune(n)
	if gone || len(n.addresses) == 0 {
		b.forgetNode(n)
	}
}

// leaves reports whether a node is making room. It gets no other connection meanwhile.
func (b *book) leaves(id transport.ID) bool {
	n := b.known[id]
	return n != nil && n.visit != nil && n.visit.leaves
}

// leaving returns the nodes that make room for waiting ones: nodes that have sent nothing for a
// turn and, if slots are short, occasionally the worst of the others. Among equals, nodes in the
// networks with the most slots leave first.
func (b *book) leaving(now time.Time, waiting int) (ids []transport.ID) {
	crowd := map[string]int{}
	for _, n := range b.list {
		if n.visit != nil {
			for _, g := range n.visit.at.groups {
				crowd[g]++
			}
		}
	}
	type seat struct {
		n     *discovered
		idle  bool
		share float64 // what a node of its network sends on average
	}
	var seats []seat
	for _, n := range b.list {
		v := n.visit
		if v == nil || v.leaves || v.since.IsZero() || now.Sub(v.since) < turn {
			continue
		}
		last := v.since
		if v.gave.After(last) {
			last = v.gave
		}
		seats = append(seats, seat{n, now.Sub(last) >= n.patience, v.rate.value(now, turn) / float64(crowd[v.at.groups[2]])})
	}
	b.rng.Shuffle(len(seats), func(i, j int) { seats[i], seats[j] = seats[j], seats[i] })
	slices.SortStableFunc(seats, func(s, t seat) int {
		g, h := s.n.visit.at.groups, t.n.visit.at.groups
		switch {
		case s.idle && !t.idle:
			return -1
		case t.idle && !s.idle:
			return 1
		}
		return cmp.Or(cmp.Compare(s.share, t.share), cmp.Compare(crowd[h[2]], crowd[g[2]]), cmp.Compare(crowd[h[1]], crowd[g[1]]), cmp.Compare(crowd[h[0]], crowd[g[0]]))
	})
	for _, s := range seats {
		if waiting == len(ids) {
			break
		}
		if !s.idle {
			if b.visits < maxConnections || len(ids) > 0 || now.Sub(b.rotated) < rotateEvery {
				break
			}
			b.rotated = now
		}
		s.n.visit.leaves = true
		ids = append(ids, s.n.id)
	}
	return ids
}
