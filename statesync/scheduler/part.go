package scheduler

import (
	"cmp"
	"slices"
)

// Span is the set of items of a group whose At is in [From, To).
type Span struct{ From, To uint32 }

// Part lists what a peer has of a group if it does not have all of it.
type Part struct {
	Group Group
	Spans []Span // ascending and disjoint
}

// holding is what a peer has of a group.
type holding struct {
	*group
	spans []Span // nil: everything
	// none is the value of group.opened when the peer was found to have no item to request:
	// searching again is useless until another item opens. 0: unknown.
	none uint64
}

func byHeldID(h *holding, id Group) int { return cmp.Compare(h.id, id) }

// holding returns what a peer has of a group, or nil.
func (p *peer) holding(g *group) *holding {
	if i, ok := slices.BinarySearchFunc(p.groups, g.id, byHeldID); ok {
		return p.groups[i]
	}
	return nil
}

// has reports whether a peer claims an item.
func (p *peer) has(it *item) bool {
	h := p.holding(it.group)
	return h != nil && h.covers(it)
}

func (h *holding) covers(it *item) bool {
	if h.spans == nil {
		return true
	}
	i, found := slices.BinarySearchFunc(h.spans, it.At, func(s Span, at uint32) int { return cmp.Compare(s.From, at) })
	if !found {
		i-- // the last span that begins before
	}
	return i >= 0 && it.At < h.spans[i].To
}

// first returns the first open item, or the first fresh one, that the peer has and is not asked
// for, or nil if there is none.
func (h *holding) first(p *peer, fresh bool) *item {
	if h.spans == nil {
		if !fresh {
			return h.urgent(p)
		}
		it, _ := h.fresh.First()
		return it
	}
	if h.none == h.opened {
		return nil
	}
	q := &h.index.order
	if fresh {
		q = &h.index.fresh
	}
	var held []*item // few, as in urgent
	defer func() {
		for _, it := range held {
			h.index.add(it)
		}
	}()
	for {
		it := h.index.first(q, h.spans)
		if it == nil && len(held) == 0 && !fresh {
			h.none = h.opened
		}
		if it == nil || !p.holds(it) {
			return it
		}
		h.index.remove(it)
		held = append(held, it)
	}
}

// index finds the first open item within a span of places. A group has one while a connected peer
// has only a part of it; peers that have everything need only the heaps.
type index struct {
	buckets [][]*item // by place / bucketPlaces
	order   tournament
	fresh   tournament // of items that were never requested
}

const bucketPlaces = 8

// tournament is a tree of first items: v[1] is the first item of all, v[i] that of v[2i] and
// v[2i+1], and the second half of v has the first item of each bucket.
type tournament struct {
	less func(a, b *item) bool
	is   func(*item) bool // items that take part; nil: all
	v    []*item
}

func newIndex(g *group) *index {
	x := &index{order: tournament{less: g.order.Before}, fresh: tournament{less: g.fresh.Before, is: func(it *item) bool { return it.asked == 0 }}}
	for _, it := range g.order.All() {
		x.reserve(it)
		b := it.At / bucketPlaces
		x.buckets[b] = append(x.buckets[b], it)
	}
	for b := range x.buckets {
		x.refresh(b)
	}
	return x
}

// reserve creates the buckets up to that of an item.
func (x *index) reserve(it *item) {
	b, n := int(it.At/bucketPlaces), max(len(x.buckets), 1)
	if b < len(x.buckets) {
		return
	}
	for n <= b {
		n *= 2
	}
	x.buckets = append(x.buckets, make([][]*item, n-len(x.buckets))...)
	for _, t := range []*tournament{&x.order, &x.fresh} {
		old := t.v[len(t.v)/2:]
		t.v = make([]*item, 2*n)
		for i, it := range old {
			t.set(i, it)
		}
	}
}

func (x *index) add(it *item) {
	x.reserve(it)
	b := int(it.At / bucketPlaces)
	x.buckets[b] = append(x.buckets[b], it)
	x.refresh(b)
}

func (x *index) remove(it *item) {
	b := int(it.At / bucketPlaces)
	at := slices.Index(x.buckets[b], it)
	x.buckets[b] = slices.Delete(x.buckets[b], at, at+1)
	x.refresh(b)
}

func (x *index) refresh(b int) {
	x.order.set(b, x.order.of(x.buckets[b], Span{0, ^uint32(0)}))
	x.fresh.set(b, x.fresh.of(x.buckets[b], Span{0, ^uint32(0)}))
}

// first returns the first item of a tournament whose place is in one of the spans.
func (x *index) first(t *tournament, spans []Span) (best *item) {
	for _, s := range spans {
		// The last bucket is only partly covered.
		from, to := int(s.From/bucketPlaces), int(s.To/bucketPlaces)
		if to >= len(x.buckets) {
			to = len(x.buckets)
		} else {
			best = t.better(best, t.of(x.buckets[to], s))
		}
		if from < to && s.From%bucketPlaces > 0 {
			best = t.better(best, t.of(x.buckets[from], s))
			from++
		}
		best = t.better(best, t.between(from, to))
	}
	return best
}

// of returns the first item of a bucket within a span.
func (t *tournament) of(bucket []*item, s Span) (best *item) {
	for _, it := range bucket {
		if s.From <= it.At && it.At < s.To && (t.is == nil || t.is(it)) {
			best = t.better(best, it)
		}
	}
	return best
}

func (t *tournament) better(a, b *item) *item {
	if a == nil || b != nil && t.less(b, a) {
		return b
	}
	return a
}

// set sets the first item of a bucket; nil: none.
func (t *tournament) set(bucket int, it *item) {
	i := len(t.v)/2 + bucket
	t.v[i] = it
	for i /= 2; i > 0; i /= 2 {
		t.v[i] = t.better(t.v[2*i], t.v[2*i+1])
	}
}

// between returns the first item of the buckets [from, to).
func (t *tournament) between(from, to int) (best *item) {
	n := len(t.v) / 2
	for from, to = from+n, to+n; from < to; from, to = from/2, to/2 {
		if from%2 == 1 {
			best = t.better(best, t.v[from])
			from++
		}
		if to%2 == 1 {
			to--
			best = t.better(best, t.v[to])
		}
	}
	return best
}
