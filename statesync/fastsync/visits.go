package fastsync

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/starling-kv/starling/transport"
)

const (
	// turn is how long a told node may give nothing before its place is for others, the first time:
	// whoever had to leave for that is given twice as long the next time, up to maxPatience, so
	// that a slow line is long enough there in the end. What a node has given counts for half
	// after each turn.
	turn        = 30 * time.Second
	maxPatience = 16 * time.Minute
	// firstStay is how long a node with several addresses stays at one that was not tried before.
	// It is short, because a liar's proxy costs a join this time. A slow line, on which no chunk
	// comes so soon, gets twice as long each time, up to maxPatience.
	firstStay = 5 * time.Second
	// rotateEvery is the time between two nodes that make room although it is not yet time for
	// them: the worst of all, where places are lacking.
	rotateEvery = 10 * time.Second

	lastToldRetry = 4 * time.Minute // of a told address
)

// meter is an amount that halves again and again.
type meter struct {
	amount float64
	at     time.Time
}

func (m meter) value(now time.Time, half time.Duration) float64 {
	return m.amount * math.Exp2(-float64(now.Sub(m.at))/float64(half))
}

func (m *meter) add(now time.Time, half time.Duration, n float64) {
	*m = meter{m.value(now, half) + n, now}
}

// visit is a told node that has a place.
type visit struct {
	at     *address
	by     teller        // who is charged
	since  time.Time     // it is connected at that address; zero: it is being dialled
	stay   time.Duration // after which another address may take the place of this one
	stays  time.Duration // the next stay at an address that was tried before
	trial  bool          // this address had not been tried before, and another one had
	gave   time.Time     // when it last gave something, at this address; zero: never
	rate   meter         // verified bytes, at this address
	proved bool          // it has given something: nobody is charged for it any more
	leaves bool
}

// connected notes that a visited node has answered at an address.
func (b *book) connected(now time.Time, a transport.Address) {
	n := b.known[a.ID]
	if n == nil || n.visit == nil {
		return
	}
	v := n.visit
	if to := n.at(a.HostPort); to != nil && to != v.at && len(to.tellers) > 0 { // after better
		v.at.tried, v.at.rate, v.at.due = true, v.rate, now
		if !v.proved {
			b.open(v.by, -1)
			b.open(to.tellers[0], 1)
		}
		v.at, v.by, v.rate, v.gave = to, to.tellers[0], meter{}, time.Time{}
		v.stay, v.trial = firstStay, !to.tried
		if to.tried {
			v.lengthen()
		}
		b.prune(n)
	}
	v.since, v.at.failed = now, false
}

// lengthen doubles the stay at an address, so that trying others costs less and less.
func (v *visit) lengthen() { v.stay, v.stays = v.stays, min(2*v.stays, maxPatience) }

// better returns another address at which a connected node is to be tried: one that gave more in
// its time; one that was never tried; or any, if nothing comes from this one.
func (b *book) better(now time.Time, id transport.ID) (transport.Address, bool) {
	n := b.known[id]
	if n == nil || n.visit == nil || n.visit.since.IsZero() || now.Sub(n.visit.since) < n.visit.stay {
		return transport.Address{}, false
	}
	v := n.visit
	rate := func(a *address) float64 { return a.rate.value(now, turn) }
	var others, untried []*address
	for _, a := range n.addresses {
		if a != v.at && !a.due.After(now) && len(a.tellers) > 0 {
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
	default: // the trial was a success
		v.lengthen()
		v.stay += now.Sub(v.since)
		v.trial = false
		return transport.Address{}, false
	}
	return transport.Address{ID: id, HostPort: to.hostPort}, true
}

// useful notes that a node has given true bytes. It reports whether that is the first time: then
// its tellers may have others tried.
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

// waits reports whether nodes wait for anything.
func (b *book) waits() bool { return b.visits < len(b.list) }

// lied charges those who answer for a node that was banned.
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

// unreachable notes that nobody answers at an address; wrong: somebody else does, so it is dropped.
func (b *book) unreachable(now time.Time, a transport.Address, wrong bool) {
	n := b.known[a.ID]
	if n == nil {
		return
	}
	at := n.at(a.HostPort)
	if at == nil || len(at.tellers) == 0 {
		return
	}
	if !at.failed && !at.tried {
		at.failed = true
		b.charge(now, at.tellers[0], vainCost)
	}
	at.pause(now, firstRetry)
	if wrong {
		at.tellers = nil
		b.prune(n)
	}
}

// pause has an address wait, at least for a time, and each time twice as long.
func (a *address) pause(now time.Time, least time.Duration) {
	a.wait = min(max(2*a.wait, least), lastToldRetry)
	a.due = now.Add(a.wait)
}

// left takes a node's place: its connection has ended, or there was none. gone: it is not wanted
// any more.
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

// leaves reports whether a node was told to make room. It does not get another connection for it.
func (b *book) leaves(id transport.ID) bool {
	n := b.known[id]
	return n != nil && n.visit != nil && n.visit.leaves
}

// leaving returns who makes room while others wait: those that have given nothing for a turn, and
// from time to time the worst of the others, where places are lacking. Of equals, those go whose
// networks have most places.
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
		n     *told
		idle  bool
		share float64 // of what its network gives
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
