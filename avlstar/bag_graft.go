package avlstar

import (
	"bytes"
	"fmt"
	"math"
	"runtime"
	"slices"
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
// If nothing can be grafted, the result is v itself with one more reference. History is linear, as
// for Apply: ErrNotLatest. The version must be of a tree that has stubs, so the receiver of bags.
func (v *Version) Graft(b *Bag) (*Version, Grafted, error) {
	t := v.tree
	t.mu.Lock()
	defer t.mu.Unlock()
	v.inUse()
	defer runtime.KeepAlive(v)
	if err := t.rewind(v); err != nil {
		return nil, Grafted{}, fmt.Errorf("avlstar: graft: %w", err)
	}
	if err := t.roomFor(b, v); err != nil {
		return nil, Grafted{}, fmt.Errorf("avlstar: graft: %w", err)
	}
	if !v.partial || v.epoch+1 >= freed || len(b.keys) == 0 {
		v.Retain()
		return v, Grafted{}, nil
	}
	next := t.sameState(v)
	a := newAllocator(&t.mu.memory, false)
	g := grafting{edit: t.newEdit(v, next, nil, nil, &a), bag: b}
	next.root = g.walk(v.root, v.top, b.keys).n
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

// roomFor returns an error if what b opens, and the ways to it in v, might not fit into the memory.
func (t *tree) roomFor(b *Bag, v *Version) error {
	var changes []Change
	for _, bt := range b.trees {
		for i := range bt.items {
			changes = append(changes, Change{bt.items[i].key, bt.items[i].value})
		}
	}
	if t.room(changes, v) == nil {
		return nil
	}
	t.reclaim(math.MaxInt, new(Reclaimed))
	return t.room(changes, v)
}

// grafting makes a version with the nodes of a bag.
type grafting struct {
	*edit
	bag  *Bag
	done Grafted
	all  map[Hash]bagNode // the nodes of the bag; nil: not needed yet
}

type bagNode struct {
	tree *bagTree
	n    ref
	stub Stub
}

// grown is the result for a subtree.
type grown struct {
	n     ref
	other bool // n is another node
	least ref  // its least leaf, if that was grafted
}

// walk grafts below the subtree n. keys lead to all that the bag has there.
func (g *grafting) walk(n ref, stub Stub, keys [][]byte) grown {
	switch {
	case len(keys) == 0 || n.isLeaf() || stub == emptyStub:
		return grown{n: n}
	case n == 0:
		from, ok := g.find(stub)
		if !ok {
			g.done.Stale++
			return grown{}
		}
		c, least := g.copy(from.tree, from.n)
		return grown{n: c, other: true, least: least}
	}
	key := g.keyOf(n)
	split, _ := slices.BinarySearchFunc(keys, key, bytes.Compare)
	l := g.walk(g.link(n).child[left], g.image(n).stub(left), keys[:split])
	r := g.walk(g.link(n).child[right], g.image(n).stub(right), keys[split:])
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

// find returns the node of the bag that has this commitment: mostly the root of a tree. All others
// are listed when the first stub is none.
func (g *grafting) find(stub Stub) (bagNode, bool) {
	at, ok := g.bag.roots[stub.Hash]
	if !ok {
		if g.all == nil {
			g.all = g.bag.nodes()
		}
		at, ok = g.all[stub.Hash]
	}
	return at, ok && at.stub == stub
}

// nodes lists the nodes of all trees.
func (b *Bag) nodes() map[Hash]bagNode {
	all := make(map[Hash]bagNode, len(b.keys))
	for _, t := range b.trees {
		t.list(t.root, all)
	}
	return all
}

func (t *bagTree) list(s sub, all map[Hash]bagNode) {
	if s.n == 0 {
		return
	}
	all[s.Hash] = bagNode{t, s.n, s.Stub}
	if s.n.isInner() {
		for side, c := range t.links[s.n].child {
			t.list(sub{t.images[s.n].stub(side), c}, all)
		}
	}
}

// copy copies node n of a tree, with what is open below it, and returns its least leaf if that is
// part of it.
func (g *grafting) copy(t *bagTree, n ref) (c, least ref) {
	if n.isLeaf() {
		it := &t.items[n&^leafBit]
		g.done.Leaves++
		c = g.newRecord(it.key, it.value)
		return c, c
	}
	g.done.Inner++
	c = g.newInner()
	*g.image(c) = t.images[n]
	g.image(c).clearFlags()
	g.image(c).setEpoch(g.epoch)
	*g.link(c) = link{prefix: t.links[n].prefix}
	var bearer ref // the leaf with the key
	if l := t.links[n].child[left]; l != 0 {
		g.link(c).child[left], least = g.copy(t, l)
	}
	if r := t.links[n].child[right]; r != 0 {
		g.link(c).child[right], bearer = g.copy(t, r)
	}
	if bearer == 0 {
		bearer = g.newRecord(t.items[n].key, nil) // a stand-in
	}
	g.image(c).setLeaf(bearer)
	return c, least
}
