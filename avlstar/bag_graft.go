package avlstar

import (
	"bytes"
	"fmt"
	"math"
	"runtime"
	"sort"
)

// Grafted says what Graft did with a bag.
type Grafted struct {
	Inner, Leaves int // nodes that are in memory now
	// Stale are ways into the bag that end at a stub which the bag does not open, since that
	// subtree has changed between the bag's version and this one.
	Stale int
}

// Graft returns a version of the same state that has in memory what b opens below v's stubs. It is
// the inverse of paging's eviction: nothing is hashed, and v does not change. Bags of other
// versions are *revised* (RainBlock, section 4.3): from v's root down, each stub is replaced by
// what the bag has of the same hash; what changed since is dropped, and what is in memory stays.
//
//	v      (m)           a bag, 3 blocks older     the result    (m)
//	     ┌──┴──┐                (s)                            ┌──┴──┐
//	   stub   (s')           ┌───┴───┐                       stub   (s')
//	         ┌─┴──┐         (o)     (u)                            ┌─┴──┐
//	        (o')  stub u   o=1 stub stub u=2                      (o')  (u)
//	       o=3 …                                                 o=3 …  stub u=2
//
// Several bags are grafted one after the other, but into one version: what they have in common
// above is copied once. If nothing can be grafted, the result is v itself with one more reference.
// History is linear, as for Apply: ErrNotLatest. The version must be of a tree that has stubs, so
// the receiver of bags.
func (v *Version) Graft(bags ...*Bag) (*Version, Grafted, error) {
	t := v.tree
	t.mu.Lock()
	defer t.mu.Unlock()
	v.inUse()
	defer runtime.KeepAlive(v)
	if err := t.rewind(v); err != nil {
		return nil, Grafted{}, fmt.Errorf("avlstar: graft: %w", err)
	}
	if err := t.roomFor(bags, v); err != nil {
		return nil, Grafted{}, fmt.Errorf("avlstar: graft: %w", err)
	}
	if !v.partial || v.epoch+1 >= freed {
		v.Retain()
		return v, Grafted{}, nil
	}
	next := t.sameState(v)
	a := newAllocator(&t.mu.memory, false)
	g := grafting{edit: t.newEdit(v, next, nil, nil, &a)}
	for _, b := range bags {
		g.bag, g.at = b, 0
		next.root = g.walk(next.root, v.top, b.keys, true).n
	}
	if !t.keep(g.edit, next, g.done.Inner+g.done.Leaves > 0) {
		v.Retain()
		return v, g.done, nil
	}
	t.tidy(g.done.Inner + g.done.Leaves)
	return next, g.done, nil
}

// tidy gives up versions as Apply does, after another kind of version was made, with so many nodes.
// Without it, a tree that only gets bags would grow with each. The caller holds t.mu.
func (t *tree) tidy(made int) {
	var done Reclaimed
	t.reclaim(2*made+tune.minReclaim, &done)
	t.mu.reclaimed = done
	t.account()
}

// roomFor returns an error if what bags open, and the ways to it in v, might not fit into the
// memory.
func (t *tree) roomFor(bags []*Bag, v *Version) error {
	items, eighths := 0, 0
	for _, b := range bags {
		items, eighths = items+len(b.at), eighths+b.eighths
	}
	nodes, pages := needsOf(items, eighths, v)
	if t.roomOf(nodes, pages) == nil {
		return nil
	}
	t.reclaim(math.MaxInt, new(Reclaimed))
	return t.roomOf(nodes, pages)
}

// grafting makes a version with the nodes of a bag.
type grafting struct {
	*edit
	done Grafted
	bag  *Bag
	at   int // the tree of the bag to which the walk has come
}

// grown is the result for a subtree.
type grown struct {
	n     ref
	other bool // n is another node
	least ref  // its least leaf, if that was grafted
}

// walk grafts below the subtree n. keys are the items that lead to all that the bag has there. edge
// is whether it is on the tree's left edge: then keys before its least, which were deleted since,
// lead there too, and may have been in another subtree of the bag.
func (g *grafting) walk(n ref, stub Stub, keys []uint32, edge bool) grown {
	switch {
	case len(keys) == 0 || n.isLeaf() || stub == emptyStub:
		return grown{n: n}
	case n == 0:
		from, ok := g.find(stub, keys[0])
		for i := 1; edge && !ok && i < len(keys); i++ {
			from, ok = g.find(stub, keys[i])
		}
		if !ok {
			g.done.Stale++
			return grown{}
		}
		c, least := g.copy(from)
		return grown{n: c, other: true, least: least}
	}
	split := g.split(n, keys)
	if r := g.link(n).child[right]; r.isInner() && split < len(keys) {
		prefetchNode(g.link(r), g.image(r))
	}
	l := g.walk(g.link(n).child[left], g.image(n).stub(left), keys[:split], edge)
	r := g.walk(g.link(n).child[right], g.image(n).stub(right), keys[split:], false)
	if !l.other && !r.other {
		return grown{n: n}
	}
	c := g.own(n)
	if r.least != 0 {
		g.unless(g.image(c).leaf(), r.least)
		g.image(c).setLeaf(r.least)
	}
	g.link(c).child = [2]ref{l.n, r.n}
	return grown{n: c, other: true, least: l.least}
}

// split returns how many of keys are below that of inner node n.
func (g *grafting) split(n ref, keys []uint32) int {
	prefix := g.link(n).prefix
	return sort.Search(len(keys), func(i int) bool {
		if own := g.bag.links[keys[i]].prefix; own != prefix {
			return own > prefix
		}
		return bytes.Compare(g.bag.item(int(keys[i])).key, g.keyOf(n)) >= 0
	})
}

// find returns the node of the bag that has this commitment. Item k is the first in the stub's
// range: so if the bag has the node, it is on the way to k, mostly at its beginning.
func (g *grafting) find(stub Stub, k uint32) (ref, bool) {
	b := g.bag
	for b.trees[g.at].to <= k {
		g.at++
	}
	at := b.trees[g.at].root
	for at.Stub != stub && at.n.isInner() {
		side := right
		if k < uint32(at.n) { // items are in the order of their keys
			side = left
		}
		at = sub{b.images[at.n].stub(side), b.links[at.n].child[side]}
	}
	return at.n, at.n != 0 && at.Stub == stub
}

// copy copies node n of the bag, with what is open below it, and returns its least leaf if that is
// part of it.
func (g *grafting) copy(n ref) (c, least ref) {
	if n.isLeaf() {
		it := g.bag.item(int(n &^ leafBit))
		g.done.Leaves++
		c = g.newRecord(it.key, it.value)
		return c, c
	}
	g.done.Inner++
	c = g.newInner()
	l := &g.bag.links[n]
	i := g.image(c)
	*i = g.bag.images[n]
	i.clearFlags()
	i.setEpoch(g.epoch)
	*g.link(c) = link{prefix: l.prefix}
	var bearer ref // the leaf with the key
	if l.child[left] != 0 {
		g.link(c).child[left], least = g.copy(l.child[left])
	}
	if l.child[right] != 0 {
		g.link(c).child[right], bearer = g.copy(l.child[right])
	}
	if bearer == 0 {
		bearer = g.newRecord(g.bag.item(int(n)).key, nil) // a stand-in
	}
	g.image(c).setLeaf(bearer)
	return c, least
}
