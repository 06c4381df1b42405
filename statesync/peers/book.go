package peers

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/starling-kv/starling/transport"
)

const (
	// maxConnections is the number of slots: the maximum number of discovered nodes that are
	// dialled or connected at the same time.
	maxConnections = 128
	// maxAddresses limits the addresses of all nodes; maxPerID, the addresses of one node, and the
	// advertisers of one address.
	maxAddresses = 1024
	maxPerID     = 4
)

// book holds the addresses that peers have advertised and the results of dialling them. It decides
// which node to dial, at which address, and which connected node makes room for another. It is
// pure: it has no network and no clock, and draws random numbers from rng.
//
//	learn ─► waiting ──next──► dialled ──connected──► connected ──left──► waiting
//	            └── dropped, when there are too many        └─ useful, lied, better, leaving
//
// A Byzantine peer gains nothing by numbers: a draw prefers nodes close to the operator's peers,
// then picks an advertiser, then a network, each with equal probability.
type book struct {
	rng    *rand.Rand
	strict bool // only public addresses are kept

	known  map[transport.ID]*discovered
	list   []*discovered // in order of arrival: draws must not depend on map order
	size   int           // number of addresses
	visits int

	advertisers, hosts map[string]*account
	reserve            time.Time // last draw of a node whose advertisers had no budget left
	rotated            time.Time // when a useful node last made room for another
}

// discovered is a node named only by other peers.
type discovered struct {
	id        transport.ID
	addresses []*address // 1 to maxPerID
	visit     *visit     // nil: it waits for a slot
	patience  time.Duration
}

// address is where a node may be reached. A Byzantine peer can advertise its own address under
// another node's ID and act as a proxy. The book therefore keeps several addresses per node and
// prefers the fastest.
type address struct {
	hostPort    string
	groups      groups
	advertisers []advertiser // 1 to maxPerID
	due         time.Time
	wait        time.Duration // the last pause
	failed      bool          // a dial has failed, and none has succeeded yet
	tried       bool          // the node was connected there; rate is what it sent
	rate        meter
}

// advertiser is a peer that advertised an address.
type advertiser struct {
	id    transport.ID
	root  transport.ID // the operator's peer at the start of the chain of advertisers; may be id
	depth int          // 0: an operator's peer
}

func newBook(rng *rand.Rand, strict bool) *book {
	return &book{rng: rng, strict: strict, known: map[transport.ID]*discovered{}, advertisers: map[string]*account{}, hosts: map[string]*account{}}
}

// advertiser returns a connected node as an advertiser. own: it is an operator's peer. It returns
// false if the node is neither an operator's peer nor visited.
func (b *book) advertiser(id transport.ID, own bool) (advertiser, bool) {
	if own {
		return advertiser{id: id, root: id}, true
	}
	n := b.known[id]
	if n == nil || n.visit == nil {
		return advertiser{}, false
	}
	return advertiser{id, n.visit.by.root, n.visit.by.depth + 1}, true
}

// learn adds the addresses that an advertiser names, in random order, except those of refused
// nodes. It reports whether anything is new.
func (b *book) learn(now time.Time, by advertiser, list []transport.Address, refused func(transport.ID) bool) bool {
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

// add reports whether the address, or its advertiser, is new.
func (b *book) add(now time.Time, by advertiser, a transport.Address) bool {
	n := b.known[a.ID]
	if n == nil {
		n = &discovered{id: a.ID, patience: turn}
		b.known[a.ID] = n
		b.list = append(b.list, n)
	}
	for _, x := range n.addresses { // only an advertiser's last address of a node counts
		x.advertisers = slices.DeleteFunc(x.advertisers, func(t advertiser) bool { return t.id == by.id && x.hostPort != a.HostPort })
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
	n.addresses = append(n.addresses, &address{hostPort: a.HostPort, groups: groupsOf(a.HostPort), advertisers: []advertiser{by}, due: now})
	if b.size++; b.size > maxAddresses {
		b.shrink()
	}
	return true
}

// vouch adds an advertiser to an address. The maxPerID advertisers closest to the operator remain.
func (b *book) vouch(a *address, by advertiser) bool {
	if i := slices.IndexFunc(a.advertisers, func(t advertiser) bool { return t.id == by.id }); i >= 0 {
		a.advertisers[i] = by
		return false
	}
	if len(a.advertisers) < maxPerID {
		a.advertisers = append(a.advertisers, by)
		return true
	}
	a.advertisers = append(a.advertisers, by)
	b.rng.Shuffle(len(a.advertisers), func(i, j int) { a.advertisers[i], a.advertisers[j] = a.advertisers[j], a.advertisers[i] })
	slices.SortStableFunc(a.advertisers, nearest)
	a.advertisers = a.advertisers[:maxPerID]
	return slices.ContainsFunc(a.advertisers, func(t advertiser) bool { return t.id == by.id })
}

// leastOf returns the address of n to replace by a new one from by: the slowest address that was
// tried, unless it is the best; otherwise a random one of those farthest from the operator. It
// returns nil if by is farther from the operator than the advertisers of all of them.
func (b *book) leastOf(n *discovered, by advertiser, now time.Time) *address {
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

// depth returns the least depth of the address's advertisers.
func (a *address) depth() int {
	return slices.MinFunc(a.advertisers, nearest).depth
}

// nearest compares the depths of two advertisers.
func nearest(s, t advertiser) int { return cmp.Compare(s.depth, t.depth) }

// at returns an address of the node, or nil if it is unknown.
func (n *discovered) at(hostPort string) *address {
	if i := slices.IndexFunc(n.addresses, func(x *address) bool { return x.hostPort == hostPort }); i >= 0 {
		return n.addresses[i]
	}
	return nil
}

// busyAt reports whether the node is being visited at the address.
func (n *discovered) busyAt(a *address) bool { return n.visit != nil && n.visit.at == a }

// prune drops addresses without an advertiser, except one that is being visited.
func (b *book) prune(n *discovered) {
	for _, a := range slices.Clone(n.addresses) {
		if len(a.advertisers) == 0 && !n.busyAt(a) {
			b.drop(n, a)
		}
	}
}

// drop removes an address, which must not be visited. After the last one, the caller removes the
// node.
func (b *book) drop(n *discovered, a *address) {
	n.addresses = slices.DeleteFunc(n.addresses, func(x *address) bool { return x == a })
	b.size--
}

// forgetNode removes a node that has no slot.
func (b *book) forgetNode(n *discovered) {
	b.size -= len(n.addresses)
	delete(b.known, n.id)
	b.list = slices.DeleteFunc(b.list, func(x *discovered) bool { return x == n })
}

// shrink drops one address that is not being visited. Candidates are the addresses farthest from
// the operator. They are narrowed down to the advertiser with the most of them, and then to the
// most crowded network.
func (b *book) shrink() {
	var candidates []candidate
	deepest := 0
	for _, n := range b.list {
		for _, a := range n.addresses {
			if !n.busyAt(a) {
				candidates = append(candidates, candidate{n, a, slices.MinFunc(a.advertisers, nearest)})
				deepest = max(deepest, a.depth())
			}
		}
	}
	candidates = slices.DeleteFunc(candidates, func(l candidate) bool { return l.by.depth < deepest })
	for _, key := range narrowing {
		most, count := "", map[string]int{}
		for _, l := range candidates {
			if count[key(l)]++; count[key(l)] > count[most] {
				most = key(l)
			}
		}
		candidates = only(candidates, key, most)
	}
	l := candidates[b.rng.IntN(len(candidates))]
	b.drop(l.n, l.at)
	if len(l.n.addresses) == 0 {
		b.forgetNode(l.n)
	}
}
