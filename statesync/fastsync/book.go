package fastsync

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/starling-kv/starling/transport"
)

const (
	// maxConnections is the number of places: told nodes that are dialled or connected at a time.
	maxConnections = 128
	// maxAddresses limits the addresses that are kept, of all nodes; maxPerID those of one node,
	// and also those who vouch for one address.
	maxAddresses = 1024
	maxPerID     = 4
)

// book is what strangers have told of other nodes, and what came of it: it decides who of them is
// dialled, where, and who makes room. It knows neither network nor clock, and draws by rng.
//
//	tell ──► waiting ──next──► dialled ──connected──► connected ──left──► waiting
//	            └── dropped, when there are too many        └─ useful, lied, better, leaving
//
// Draws are such that numbers do not help a liar: near the operator's peers before far from them,
// then among tellers, then among networks.
type book struct {
	rng    *rand.Rand
	strict bool // only public addresses are kept

	known  map[transport.ID]*told
	list   []*told // the same, in the order in which they came: draws must not follow a map's order
	size   int     // addresses
	visits int

	tellers, hosts map[string]*account
	reserve        time.Time // when somebody was last drawn from it
	rotated        time.Time // when somebody useful last made room
}

// told is a node that strangers have told.
type told struct {
	id        transport.ID
	addresses []*address // 1 to maxPerID
	visit     *visit     // nil: it waits
	patience  time.Duration
}

// address is where a node may be. Anybody can tell an address of his own for another's id, and
// relay: so a node has several, and the faster is preferred.
type address struct {
	hostPort string
	groups   groups
	tellers  []teller // 1 to maxPerID: who vouches for it
	due      time.Time
	wait     time.Duration // the last pause
	failed   bool          // nobody has answered there yet, at least once
	tried    bool          // it was connected; then rate is what it gave
	rate     meter
}

// teller is who has told an address.
type teller struct {
	id    transport.ID
	root  transport.ID // the operator's peer from which the chain of tellers began; it may be id
	depth int          // 0: it is an operator's peer
}

func newBook(rng *rand.Rand, strict bool) *book {
	return &book{rng: rng, strict: strict, known: map[transport.ID]*told{}, tellers: map[string]*account{}, hosts: map[string]*account{}}
}

// as returns a connected node as a teller; own: it is an operator's peer. It returns false if it is
// neither that nor visited.
func (b *book) as(id transport.ID, own bool) (teller, bool) {
	if own {
		return teller{id: id, root: id}, true
	}
	n := b.known[id]
	if n == nil || n.visit == nil {
		return teller{}, false
	}
	return teller{id, n.visit.by.root, n.visit.by.depth + 1}, true
}

// tell takes what a teller names, in random order. refused reports who is not wanted. It reports
// whether anything is new.
func (b *book) tell(now time.Time, by teller, list []transport.Address, refused func(transport.ID) bool) bool {
	b.forget(now)
	list = slices.Clone(list)
	b.rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	news := false
	for _, a := range list {
		if a.ID != "" && !refused(a.ID) && (!b.strict || public(a.HostPort)) {
			news = b.add(now, by, a) || news
		}
	}
	return news
}

// add reports whether the address, or its teller, is new.
func (b *book) add(now time.Time, by teller, a transport.Address) bool {
	n := b.known[a.ID]
	if n == nil {
		n = &told{id: a.ID, patience: turn}
		b.known[a.ID] = n
		b.list = append(b.list, n)
	}
	for _, x := range n.addresses { // a teller has one word about a node, the last
		x.tellers = slices.DeleteFunc(x.tellers, func(t teller) bool { return t.id == by.id && x.hostPort != a.HostPort })
	}
	b.prune(n)
	if x := n.at(a.HostPort); x != nil {
		return b.vouch(x, by)
	}
	if len(n.addresses) == maxPerID {
		least := b.leastOf(n, by, now)
		if least == nil {
			return false
		}
		b.drop(n, least)
	}
	n.addresses = append(n.addresses, &address{hostPort: a.HostPort, groups: groupsOf(a.HostPort), tellers: []teller{by}, due: now})
	if b.size++; b.size > maxAddresses {
		b.shrink()
	}
	return true
}

// vouch adds a teller to those of an address. Of many, those nearest to the operator stay.
func (b *book) vouch(a *address, by teller) bool {
	if i := slices.IndexFunc(a.tellers, func(t teller) bool { return t.id == by.id }); i >= 0 {
		a.tellers[i] = by
		return false
	}
	if len(a.tellers) < maxPerID {
		a.tellers = append(a.tellers, by)
		return true
	}
	a.tellers = append(a.tellers, by)
	b.rng.Shuffle(len(a.tellers), func(i, j int) { a.tellers[i], a.tellers[j] = a.tellers[j], a.tellers[i] })
	slices.SortStableFunc(a.tellers, nearest)
	a.tellers = a.tellers[:maxPerID]
	return slices.ContainsFunc(a.tellers, func(t teller) bool { return t.id == by.id })
}

// leastOf returns the address of a node that gives way to one that by tells: the slowest of those
// that were tried, but for the best; else any that is told from as far away as any. nil: by is
// farther from the operator than all of them.
func (b *book) leastOf(n *told, by teller, now time.Time) *address {
	rate := func(a *address) float64 { return a.rate.value(now, turn) }
	slowest := func(a, c *address) int { return cmp.Compare(rate(a), rate(c)) }
	var tried, untried []*address
	deepest := 0
	for _, a := range n.addresses {
		switch {
		case n.busyAt(a):
		case a.tried:
			tried = append(tried, a)
		default:
			untried = append(untried, a)
			deepest = max(deepest, a.depth())
		}
	}
	if len(tried) > 0 && rate(slices.MaxFunc(tried, slowest)) > 0 {
		best := slices.MaxFunc(tried, slowest)
		tried = slices.DeleteFunc(tried, func(a *address) bool { return a == best })
	}
	if len(tried) > 0 {
		return slices.MinFunc(tried, slowest)
	}
	if by.depth > deepest {
		return nil
	}
	untried = slices.DeleteFunc(untried, func(a *address) bool { return a.depth() < deepest })
	return untried[b.rng.IntN(len(untried))]
}

// depth is that of the nearest who vouches for the address.
func (a *address) depth() int {
	return slices.MinFunc(a.tellers, nearest).depth
}

// nearest compares how far two tellers are from the operator.
func nearest(s, t teller) int { return cmp.Compare(s.depth, t.depth) }

// at returns an address of the node; nil: it is not known.
func (n *told) at(hostPort string) *address {
	if i := slices.IndexFunc(n.addresses, func(x *address) bool { return x.hostPort == hostPort }); i >= 0 {
		return n.addresses[i]
	}
	return nil
}

// busyAt reports whether the node is being visited at an address.
func (n *told) busyAt(a *address) bool { return n.visit != nil && n.visit.at == a }

// prune drops addresses that nobody vouches for any more, but for one that is being visited.
func (b *book) prune(n *told) {
	for _, a := range slices.Clone(n.addresses) {
		if len(a.tellers) == 0 && !n.busyAt(a) {
			b.drop(n, a)
		}
	}
}

// drop forgets an address, which must not be visited; with its last one, the caller forgets the
// node.
func (b *book) drop(n *told, a *address) {
	n.addresses = slices.DeleteFunc(n.addresses, func(x *address) bool { return x == a })
	b.size--
}

// forgetNode forgets a node that waits.
func (b *book) forgetNode(n *told) {
	b.size -= len(n.addresses)
	delete(b.known, n.id)
	b.list = slices.DeleteFunc(b.list, func(x *told) bool { return x == n })
}

// shrink drops one address of those that wait: one that is as far from the operator as any, of the
// teller that has told most of these, and of the most crowded network among them.
func (b *book) shrink() {
	var leads []lead
	deepest := 0
	for _, n := range b.list {
		for _, a := range n.addresses {
			if !n.busyAt(a) {
				leads = append(leads, lead{n, a, slices.MinFunc(a.tellers, nearest)})
				deepest = max(deepest, a.depth())
			}
		}
	}
	leads = slices.DeleteFunc(leads, func(l lead) bool { return l.by.depth < deepest })
	for _, key := range narrowing {
		most, count := "", map[string]int{}
		for _, l := range leads {
			if count[key(l)]++; count[key(l)] > count[most] {
				most = key(l)
			}
		}
		leads = only(leads, key, most)
	}
	l := leads[b.rng.IntN(len(leads))]
	b.drop(l.n, l.at)
	if len(l.n.addresses) == 0 {
		b.forgetNode(l.n)
	}
}
