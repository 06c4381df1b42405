package fastsync

import (
	"cmp"
	"slices"
	"time"

	"github.com/starling-kv/starling/transport"
)

const (
	// What told nodes may cost, in lies. A node's teller is charged, and the operator's peer from
	// which the chain of tellers began, because identities are free but the operator's peers are
	// few; and its host. Who has given nothing yet counts as a lie that may come. It is forgotten
	// by half every forgiven.
	operatorsBudget = 32
	strangersBudget = 8
	hostsBudget     = 8
	vainCost        = 1.0 / 8 // of an address at which nobody answers, the first time
	forgiven        = 5 * time.Minute
	// reserveEvery is the time between two nodes that are tried whatever their tellers have left:
	// an honest peer may have relayed sybils before it tells of the one that matters.
	reserveEvery = 10 * time.Second
)

// account is what a teller, or a host, has cost.
type account struct {
	spent meter
	open  int // nodes that are being tried, and have given nothing yet
}

// lead is an address at which a node can be tried, and one of those who vouch for it.
type lead struct {
	n  *told
	at *address
	by teller
}

func byTeller(l lead) string { return string(l.by.id) }

func byGroup(i int) func(lead) string { return func(l lead) string { return l.at.groups[i] } }

// narrowing are the keys by which leads are narrowed down, one after another.
var narrowing = []func(lead) string{byTeller, byGroup(2), byGroup(1), byGroup(0)}

// only returns the leads with that key, in the memory of leads.
func only(leads []lead, key func(lead) string, is string) []lead {
	return slices.DeleteFunc(leads, func(l lead) bool { return key(l) != is })
}

// leads returns what can be tried now. Of a node's addresses, those that were never tried come
// first, then the fastest.
func (b *book) leads(now time.Time, refused func(transport.ID) bool) (leads []lead) {
	for _, n := range b.list {
		if n.visit != nil || refused(n.id) {
			continue
		}
		for _, a := range n.preferred(now) {
			for _, t := range a.tellers {
				leads = append(leads, lead{n, a, t})
			}
		}
	}
	return leads
}

// preferred returns the addresses to try: those never tried, else the fastest; of equals, the one
// that has waited longest.
func (n *told) preferred(now time.Time) (list []*address) {
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

// draw returns one of the leads, which must not be empty. Each step further from the operator's
// peers is half as likely.
func (b *book) draw(leads []lead) lead {
	var depths []int
	for _, l := range leads {
		depths = append(depths, l.by.depth)
	}
	slices.Sort(depths)
	depths = slices.Compact(depths)
	at := 0
	for at < len(depths)-1 && b.rng.IntN(2) == 0 {
		at++
	}
	leads = slices.DeleteFunc(slices.Clone(leads), func(l lead) bool { return l.by.depth != depths[at] })
	for _, key := range narrowing {
		var keys []string
		seen := map[string]bool{}
		for _, l := range leads {
			if !seen[key(l)] {
				seen[key(l)] = true
				keys = append(keys, key(l))
			}
		}
		leads = only(leads, key, keys[b.rng.IntN(len(keys))])
	}
	return leads[b.rng.IntN(len(leads))]
}

// next returns whom to dial now, and gives it a place. Without one, waiting is the number of nodes
// that could be dialled if others made room.
func (b *book) next(now time.Time, refused func(transport.ID) bool) (a transport.Address, ok bool, waiting int) {
	var leads, paid []lead
	fromReserve := now.Sub(b.reserve) >= reserveEvery
	waits := map[*told]bool{}
	for _, l := range b.leads(now, refused) {
		leads = append(leads, l)
		if b.affords(now, l, true) {
			paid = append(paid, l)
		}
		if fromReserve || b.affords(now, l, false) {
			waits[l.n] = true
		}
	}
	switch {
	case len(leads) == 0, b.visits >= maxConnections:
		return a, false, len(waits)
	case len(paid) > 0:
		leads = paid
	case fromReserve:
		b.reserve = now
	default:
		return a, false, len(waits)
	}
	l := b.draw(leads)
	l.n.visit = &visit{at: l.at, by: l.by, stay: firstStay, stays: 2 * firstStay}
	b.visits++
	b.open(l.by, 1)
	return transport.Address{ID: l.n.id, HostPort: l.at.hostPort}, true, 0
}

// payer answers for what a teller tells.
type payer struct {
	id     transport.ID
	budget float64
}

func payersOf(t teller) []payer {
	if t.id == t.root {
		return []payer{{t.root, operatorsBudget}}
	}
	return []payer{{t.root, operatorsBudget}, {t.id, strangersBudget}}
}

// affords reports whether nobody's budget is used up who answers for a lead; open: not even if all
// that are being tried turn out to lie.
func (b *book) affords(now time.Time, l lead, open bool) bool {
	for _, p := range payersOf(l.by) {
		if a := b.tellers[string(p.id)]; a != nil {
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

// accountOf returns an account, which it makes.
func accountOf(of map[string]*account, key string) *account {
	if of[key] == nil {
		of[key] = new(account)
	}
	return of[key]
}

func (b *book) open(t teller, n int) {
	for _, p := range payersOf(t) {
		accountOf(b.tellers, string(p.id)).open += n
	}
}

func (b *book) charge(now time.Time, t teller, cost float64) {
	for _, p := range payersOf(t) {
		accountOf(b.tellers, string(p.id)).spent.add(now, forgiven, cost)
	}
}

// forget drops accounts that owe next to nothing.
func (b *book) forget(now time.Time) {
	for _, of := range []map[string]*account{b.tellers, b.hosts} {
		for key, a := range of {
			if a.open == 0 && a.spent.value(now, forgiven) < vainCost/2 {
				delete(of, key)
			}
		}
	}
}
