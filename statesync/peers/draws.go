package peers

import (
	"cmp"
	"slices"
	"time"

	"github.com/starling-kv/starling/transport"
)

const (
	// Budgets for invalid answers of discovered nodes. Each invalid answer is charged to the node's
	// advertiser, to the operator's peer at the start of the chain of advertisers (identities are
	// free, but operator's peers are few), and to the node's host. A node that has sent nothing yet
	// counts as an invalid answer that may still come. Half of the charges expire every forgiven.
	operatorsBudget = 32
	strangersBudget = 8
	hostsBudget     = 8
	vainCost        = 1.0 / 8 // for an address at which no node answers, once
	forgiven        = 5 * time.Minute
	// reserveEvery is the interval of trying a node although its advertisers have no budget left:
	// an honest peer may have relayed Sybil addresses before it names an honest node.
	reserveEvery = 10 * time.Second
	// maxAccounts limits the accounts of advertisers, and those of hosts. Nodes being tried have at
	// most 2 × maxConnections of them.
	maxAccounts = 2048
)

// account records the charges of an advertiser or a host.
type account struct {
	spent meter
	open  int // nodes being tried that have sent nothing yet
}

// candidate is an address at which a node can be tried, with one of its advertisers.
type candidate struct {
	n  *discovered
	at *address
	by advertiser
}

func byAdvertiser(l candidate) string { return string(l.by.id) }

func byGroup(i int) func(candidate) string { return func(l candidate) string { return l.at.groups[i] } }

// narrowing are the keys that successively narrow down candidates.
var narrowing = []func(candidate) string{byAdvertiser, byGroup(2), byGroup(1), byGroup(0)}

// only returns the candidates with the given key. It reuses the memory of candidates.
func only(candidates []candidate, key func(candidate) string, is string) []candidate {
	return slices.DeleteFunc(candidates, func(l candidate) bool { return key(l) != is })
}

// candidates returns the addresses that can be tried now. For each node, these are the addresses
// never tried, or else the fastest.
func (b *book) candidates(now time.Time, refused func(transport.ID) bool) (candidates []candidate) {
	for _, n := range b.list {
		if n.visit != nil || refused(n.id) {
			continue
		}
		for _, a := range n.preferred(now) {
			for _, t := range a.advertisers {
				candidates = append(candidates, candidate{n, a, t})
			}
		}
	}
	return candidates
}

// preferred returns the addresses to try: those never tried, else the fastest; among equals, the
// one that has waited longest.
func (n *discovered) preferred(now time.Time) (list []*address) {
	var fastest *address
	for _, a := range n.addresses {
		switch {
		case a.due.After(now):
		case !a.tried:
			list = append(list, a)
		case fastest == nil || cmp.Or(cmp.Compare(a.rate.value(now, turn), fastest.rate.value(now, turn)), fastest.due.Compare(a.due)) > 0:
			fastest = a
		}
	}
	if list == nil && fastest != nil {
		list = []*address{fastest}
	}
	return list
}

// draw returns one of the candidates, which must not be empty. Each step away from the operator's
// peers halves the probability.
func (b *book) draw(candidates []candidate) candidate {
	var depths []int
	for _, l := range candidates {
		depths = append(depths, l.by.depth)
	}
	slices.Sort(depths)
	depths = slices.Compact(depths)
	at := 0
	for at < len(depths)-1 && b.rng.IntN(2) == 0 {
		at++
	}
	candidates = slices.DeleteFunc(slices.Clone(candidates), func(l candidate) bool { return l.by.depth != depths[at] })
	for _, key := range narrowing {
		var keys []string
		seen := map[string]bool{}
		for _, l := range candidates {
			if !seen[key(l)] {
				seen[key(l)] = true
				keys = append(keys, key(l))
			}
		}
		candidates = only(candidates, key, keys[b.rng.IntN(len(keys))])
	}
	return candidates[b.rng.IntN(len(candidates))]
}

// next assigns a slot to the node to dial now and returns its address. If there is none, waiting is
// the number of nodes that could be dialled if others made room.
func (b *book) next(now time.Time, refused func(transport.ID) bool) (a transport.Address, ok bool, waiting int) {
	var candidates, paid []candidate
	fromReserve := now.Sub(b.reserve) >= reserveEvery
	waits := map[*discovered]bool{}
	for _, l := range b.candidates(now, refused) {
		candidates = append(candidates, l)
		if b.affords(now, l, true) {
			paid = append(paid, l)
		}
		if fromReserve || b.affords(now, l, false) {
			waits[l.n] = true
		}
	}
	switch {
	case len(candidates) == 0, b.visits >= maxConnections:
		return a, false, len(waits)
	case len(paid) > 0:
		candidates = paid
	case fromReserve:
		b.reserve = now
	default:
		return a, false, len(waits)
	}
	l := b.draw(candidates)
	l.n.visit = &visit{at: l.at, by: l.by, stay: firstStay, stays: 2 * firstStay}
	b.visits++
	b.open(l.by, 1)
	return transport.Address{ID: l.n.id, HostPort: l.at.hostPort}, true, 0
}

// payer is a peer charged for the nodes of an advertiser.
type payer struct {
	id     transport.ID
	budget float64
}

func payersOf(t advertiser) []payer {
	if t.id == t.root {
		return []payer{{t.root, operatorsBudget}}
	}
	return []payer{{t.root, operatorsBudget}, {t.id, strangersBudget}}
}

// affords reports whether all payers of a candidate have budget left. With open, it assumes that
// all nodes being tried turn out to be Byzantine.
func (b *book) affords(now time.Time, l candidate, open bool) bool {
	for _, p := range payersOf(l.by) {
		if a := b.advertisers[string(p.id)]; a != nil {
			spent := a.spent.value(now, forgiven) + 1
			if open {
				spent += float64(a.open)
			}
			if spent > p.budget {
				return false
			}
		}
	}
	host := b.hosts[l.at.groups[0]]
	return host == nil || host.spent.value(now, forgiven)+1 <= hostsBudget
}

// accountOf returns an account of b.advertisers or b.hosts, and creates it if necessary. If there
// are too many, the one with the least charge is forgotten, unless its nodes are being tried. An
// operator's peer is charged for all nodes behind it, so their accounts are forgotten before its
// own.
func accountOf(of map[string]*account, key string) *account {
	if of[key] != nil {
		return of[key]
	}
	if len(of) >= maxAccounts {
		least := ""
		for k, a := range of {
			if a.open == 0 && (least == "" || cmp.Or(cmp.Compare(a.spent.rank(forgiven), of[least].spent.rank(forgiven)), cmp.Compare(k, least)) < 0) {
				least = k
			}
		}
		delete(of, least)
	}
	of[key] = new(account)
	return of[key]
}

func (b *book) open(t advertiser, n int) {
	for _, p := range payersOf(t) {
		accountOf(b.advertisers, string(p.id)).open += n
	}
}

func (b *book) charge(now time.Time, t advertiser, cost float64) {
	for _, p := range payersOf(t) {
		accountOf(b.advertisers, string(p.id)).spent.add(now, forgiven, cost)
	}
}

// forget drops accounts whose charges have expired.
func (b *book) forget(now time.Time) {
	for _, of := range []map[string]*account{b.advertisers, b.hosts} {
		for key, a := range of {
			if a.open == 0 && a.spent.value(now, forgiven) < vainCost/2 {
				delete(of, key)
			}
		}
	}
}
