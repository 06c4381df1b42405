package avlstar

import (
	"bytes"
	"fmt"
	"math"
	"runtime"
	"sort"
)

// Grafted describes the result of Graft.
type Grafted struct {
	Inner, Leaves int // number of nodes that were added to memory
	// Stale is the number of paths into the multiproof that end at a stub which the multiproof does
	// not open, because that subtree changed between the multiproof's version and this one.
	Stale int
}

// Graft returns a version of the same state in which the nodes that b opens below v's stubs are in
// memory. It is the inverse of eviction by Paging: nothing is hashed, and v does not change.
// Multiproofs of other versions are *revised* (RainBlock, section 5.3): from v's root down, each
// stub is replaced by the multiproof's node with the same hash; changed subtrees are dropped, and
// nodes in memory stay.
//
//	v      (m)           a multiproof, 3 blocks older     the result    (m)
//	     ┌──┴──┐                (s)                            ┌──┴──┐
//	   stub   (s')           ┌───┴───┐                       stub   (s')
//	         ┌─┴──┐         (o)     (u)                            ┌─┴──┐
//	        (o')  stub u   o=1 stub stub u=2                      (o')  (u)
//	       o=3 …                                                 o=3 …  stub u=2
//
// Several multiproofs are grafted one after the other, but into one version: the nodes above
// several of them are copied once. If nothing can be grafted, the result is v itself with one more
// reference. History is linear, as for Apply: otherwise the error is ErrNotLatest. The version must
// belong to a tree with stubs, which is the tree that receives multiproofs.
func (v *Version) Graft(multiproofs ...*Multiproof) (*Version, Grafted, error) {
	t := v.tree
	t.mu.Lock()
	defer t.mu.Unlock()
	v.inUse()
	defer runtime.KeepAlive(v)
	if err := t.rewind(v); err != nil {
		return nil, Grafted{}, fmt.Errorf("avlstar: graft: %w", err)
	}
	if err := t.roomFor(multiproofs, v); err != nil {
		return nil, Grafted{}, fmt.Errorf("avlstar: graft: %w", err)
	}
	if !v.partial || v.epoch+1 >= freed {
		v.Retain()
		return v, Grafted{}, nil
	}
	next := t.sameState(v)
	a := newAllocator(&t.mu.memory, false)
	g := grafting{edit: t.newEdit(v, next, nil, nil, &a)}
	for _, b := range multiproofs {
		g.multiproof, g.at = b, 0
		next.root = g.walk(next.root, v.top, b.keys, true).n
	}
	if !t.keep(g.edit, next, g.done.Inner+g.done.Leaves > 0) {
		v.Retain()
		return v, g.done, nil
	}
	t.tidy(g.done.Inner + g.done.Leaves)
	return next, g.done, nil
}

// tidy frees dead nodes as Apply does, after a graft made that many nodes. Without it, a tree that
// only receives multiproofs would grow with each of them. The caller holds t.mu.
func (t *tree) tidy(made int) {
	var done Reclaimed
	t.reclaim(2*made+tune.minReclaim, &done)
	t.mu.reclaimed = done
	t.account()
}

// roomFor returns an error if the nodes of multiproofs, and the paths to them in v, might not fit
// into memory.
func (t *tree) roomFor(multiproofs []*Multiproof, v *Version) error {
	items, eighths := 0, 0
	for _, b := range multiproofs {
		items, eighths = items+len(b.at), eighths+b.eighths
	}
	nodes, pages := needsOf(items, eighths, v)
	if t.roomOf(nodes, pages) == nil {
		return nil
	}
	t.reclaim(math.MaxInt, new(Reclaimed))
	return t.roomOf(nodes, pages)
}

// grafting makes a version with the nodes of a multiproof.
type grafting struct {
	*edit
	done       Grafted
	multiproof *Multiproof
	at         int // the current tree of the multiproof
}

// grown is the result for a subtree.
type grown struct {
	n     ref
	other bool // whether n is another node
	least ref  // its least leaf, if that was grafted; otherwise 0
}

// walk grafts below the subtree n. keys are the items whose keys lead there. edge says that n is on
// the tree's left edge. Keys below its least key, which were deleted since, then lead there too,
// and may belong to another subtree of the multiproof.
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

// split returns the number of keys that are below the key of inner node n.
func (g *grafting) split(n ref, keys []uint32) int {
	prefix := g.link(n).prefix
	return sort.Search(len(keys), func(i int) bool {
		if own := g.multiproof.links[keys[i]].prefix; own != prefix {
			return own > prefix
		}
		return bytes.Compare(g.multiproof.item(int(keys[i])).key, g.keyOf(n)) >= 0
	})
}

// find returns the node of the multiproof that has this commitment. Item k is the first in the
// stub's range. So if the multiproof has the node, it is on the path to k, usually near its start.
func (g *grafting) find(stub Stub, k uint32) (ref, bool) {
	b := g.multiproof
	for b.trees[g.at].to <= k {
		g.at++
	}
	at := b.trees[g.at].root
	for at.Stub != stub && at.n.isInner() {
		side := right
		if k < uint32(at.n) { // items are in key order
			side = left
		}
		at = sub{b.images[at.n].stub(side), b.links[at.n].child[side]}
	}
	return at.n, at.n != 0 && at.Stub == stub
}

// copy copies node n of the multiproof with all open nodes below it. It also returns the subtree's
// least leaf, if that was copied.
func (g *grafting) copy(n ref) (c, least ref) {
	if n.isLeaf() {
		it := g.multiproof.item(int(n &^ leafBit))
		g.done.Leaves++
		c = g.newRecord(it.key, it.value)
		return c, c
	}
	g.done.Inner++
	c = g.newInner()
	l := &g.multiproof.links[n]
	i := g.image(c)
	*i = g.multiproof.images[n]
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
		bearer = g.newRecord(g.multiproof.item(int(n)).key, nil) // a stand-in
	}
	g.image(c).setLeaf(bearer)
	return c, least
}
