package avlstar

import (
	"bytes"
	"fmt"
	"runtime"
	"sort"
	"sync"
)

// Before makes versions that a program which has only the last one had before. They are on a side
// line of the tree's history: the main line goes on meanwhile, from the same version and in the
// same memory.
//
//	                         base
//	main line      (gone) …   v9 ──► v10 ──► v11       Apply
//	side line   v7 ◄── v8 ◄── ┘                        Before
//
// A node that the side makes is reached from its versions only. What they have of the base stays as
// long as the side does: the base is not given up before it. A version of the side has nodes of
// those that were made before it, so they are given up in the other order: first the one that was
// made last, which is the oldest state. Then all that making it made is free, and nothing else is.
type sideLine struct {
	base     *Version
	versions []*sideVersion // as they were made; not empty
}

// sideVersion is a version of the side line.
type sideVersion struct {
	version *Version
	made    []ref // what it has and those before it in the list lack; version.held is its memory
}

// Before returns the version before the block that u undoes, which was the last one before v: a
// version of the main line, or what Before returned last. The result has the root u.To.Root. Its
// number of chunks is what u says: the caller compares the app hash, which has both.
//
// Errors: ErrOtherState if u does not lead there, whatever is wrong with it; ErrNotLatest if the
// tree has another side line in use, or a later version of this one; *PageError and
// *MissingNodeError if v cannot be read; ErrTooLarge. Then nothing has changed. If the block
// changed nothing, the result is v with one more reference.
//
// No Apply waits longer than for one call of Before; the pages that it needs are read first, where
// they are found by the keys of u.
func (v *Version) Before(u *Undo) (*Version, error) {
	if err := v.readFor(u.touched); err != nil {
		return nil, fmt.Errorf("avlstar: before: %w", err)
	}
	t := v.tree
	t.mu.Lock()
	defer t.mu.Unlock()
	v.inUse()
	defer runtime.KeepAlive(v)
	next, err := t.before(v, u)
	t.account()
	if err != nil {
		return nil, fmt.Errorf("avlstar: before: %w", err)
	}
	return next, nil
}

// readFor reads the pages on the way to what an undo record names, so that they are in the cache
// when the tree is locked.
func (v *Version) readFor(touched []touch) error {
	if !v.partial || v.tree.paging == nil {
		return nil
	}
	const readers = 8
	var (
		wg     sync.WaitGroup
		todo   = make(chan Subtree)
		failed [readers]error
	)
	for i := range readers {
		wg.Go(func() {
			for s := range todo {
				if _, err := v.tree.fetchPage(s); err != nil && failed[i] == nil {
					failed[i] = err
				}
			}
		})
	}
	var after []byte // of the last page
	for i := range touched {
		if after != nil && bytes.Compare(touched[i].key, after) < 0 {
			continue
		}
		if s, n := v.locate(touched[i].key, false); n == 0 && s.Stub != emptyStub {
			todo <- s
			if after = s.After; after == nil {
				break
			}
		}
	}
	close(todo)
	wg.Wait()
	for _, err := range failed {
		if err != nil {
			return err
		}
	}
	return nil
}

// before makes a version of the side line. The caller holds t.mu.
func (t *tree) before(v *Version, u *Undo) (*Version, error) {
	t.reclaimSide(maxExcess, new(Reclaimed))
	side := t.mu.side
	switch {
	case u.To.ChunkBytes != v.chunkBytes:
		return nil, fmt.Errorf("%w: chunks of at most %d bytes, not %d", ErrOtherState, u.To.ChunkBytes, v.chunkBytes)
	case len(u.touched) == 0 && u.To == v.Commitment():
		v.Retain()
		return v, nil
	case side == nil && !v.aside:
		side = &sideLine{base: v}
	case side == nil || side.versions[len(side.versions)-1].version != v:
		return nil, ErrNotLatest
	}
	r := &replaying{to: u.To, touched: u.touched, full: !v.partial}
	if t.paging != nil {
		r.pages = v
	}
	r.sortTouched()
	if err := t.roomOf(r.needs(t, v, r.full)); err != nil {
		return nil, err
	}
	if max(t.mu.epoch, v.epoch)+1 >= freed {
		return nil, fmt.Errorf("%w: %d versions", ErrTooLarge, t.mu.epoch)
	}
	t.mu.epoch = max(t.mu.epoch, v.epoch) + 1
	next := &Version{
		tree: t, chunkBytes: v.chunkBytes, epoch: t.mu.epoch, parent: v.epoch, partial: v.partial, uncounted: true, aside: true,
	}
	a := newAllocator(&t.mu.memory, false)
	r.edit = t.newEdit(v, next, nil, nil, &a)
	r.canFail, r.stubs, r.start, r.ops = true, v.partial, v.root, r.order
	err := r.assemble(v)
	if err == nil {
		err = r.openTop()
	}
	if err == nil {
		t.mu.work.hash(r.edit, next)
		if root := r.top.image.stub(left); root != r.to.Root {
			err = fmt.Errorf("%w: it leads to the root %s, not to %s", ErrOtherState, root.Hash, r.to.Root.Hash)
		}
	}
	if err != nil {
		a.close()
		r.undo(&t.mu.memory)
		return nil, err
	}
	next.root, next.top = r.top.link.child[left], r.top.image.stub(left)
	if r.to.Chunks > 0 {
		next.upper = uint64(r.to.Chunks - 1)
	}
	a.close()
	s := &sideVersion{version: next}
	var held uint64
	for _, n := range r.made {
		if t.mu.epochOf(n) == next.epoch { // else it was discarded
			s.made = append(s.made, n)
			held += t.mu.slotBytes(n)
		}
	}
	r.clean(&t.mu.memory)
	next.view = t.mu.view
	next.refs.Store(1)
	next.held.Store(held)
	t.used.Add(1)
	side.versions = append(side.versions, s)
	t.mu.side = side
	t.checkSide()
	return next, nil
}

// reclaimSide gives up versions of the side line that nobody has any more, the last made first. It
// stops after limit nodes, and adds to done. The caller holds t.mu.
func (t *tree) reclaimSide(limit int, done *Reclaimed) {
	side := t.mu.side
	if side == nil {
		return
	}
	for limit > 0 && len(side.versions) > 0 {
		s := side.versions[len(side.versions)-1]
		if s.version.refs.Load() > 0 {
			return
		}
		rest := max(0, len(s.made)-limit)
		var bytes uint64
		for _, n := range s.made[rest:] {
			bytes += t.mu.slotBytes(n)
			t.free(n)
		}
		limit -= len(s.made) - rest
		done.Freed += len(s.made) - rest
		s.version.held.Add(-bytes)
		if s.made = s.made[:rest]; rest > 0 {
			return
		}
		side.versions[len(side.versions)-1] = nil
		side.versions = side.versions[:len(side.versions)-1]
	}
	if len(side.versions) == 0 {
		t.mu.side = nil
	}
}

// isBase reports whether the side line begins at v. The caller holds t.mu.
func (t *tree) isBase(v *Version) bool { return t.mu.side != nil && t.mu.side.base == v }

// sideHeld returns the number of nodes and leaves that only the side line has. The caller holds
// t.mu.
func (t *tree) sideHeld() (n uint64) {
	if t.mu.side != nil {
		for _, s := range t.mu.side.versions {
			n += uint64(len(s.made))
		}
	}
	return n
}

// open copies the nodes of the stub s that are on the way to r.touched[from:to] into the tree, or
// its root alone if these are none. Its keys are in [first, after), nil being open.
func (r *replaying) open(s sub, first, after []byte, from, to int) sub {
	p, err := r.tree.fetchPage(Subtree{First: first, After: after, Stub: s.Stub})
	if err != nil {
		r.err = err
		return s
	}
	r.tree.paging.loaded.Add(1)
	nodes := p.nodes()
	s.n, _ = r.copyWay(nodes, nodes.root.n, from, to)
	return s
}

// openTouched is open for a stub of the version before, to which the key of r.touched[from] leads.
// Its least key is that of low: where just the height there changes, that leaf is not needed, and
// low would not refer to it.
func (r *replaying) openTouched(s sub, low border, from, to int) sub {
	at, n := r.pages.locate(r.touched[from].key, false)
	if n != 0 || at.Stub != s.Stub {
		r.err = fmt.Errorf("%w: key %s leads to another subtree", ErrOtherState, abbreviate(r.touched[from].key))
		return s
	}
	if low.n != 0 && !r.touched[from].changes() && bytes.Equal(r.touched[from].key, r.keyOf(low.n)) {
		from++
	}
	return r.open(s, at.First, at.After, from, to)
}

// openTop makes sure that the root is in memory: a stub becomes the root when everything beside it
// goes.
func (r *replaying) openTop() error {
	top, i := &r.top.link, &r.top.image
	if r.pages != nil && top.child[left] == 0 && i.stub(left) != emptyStub {
		top.child[left] = r.open(sub{Stub: i.stub(left)}, nil, nil, 0, 0).n
	}
	return r.err
}

// copyWay is edit.copyPath for what is touched.
func (r *replaying) copyWay(nodes *run, n ref, from, to int) (c, least ref) {
	if n.isLeaf() {
		l := nodes.leaf(int(n &^ leafBit))
		c = r.newRecord(l.Key, l.Value)
		return c, c
	}
	key := nodes.leaf(int(n)).Key
	split := from + sort.Search(to-from, func(i int) bool { return bytes.Compare(r.touched[from+i].key, key) >= 0 })
	c = r.newInner()
	*r.image(c) = nodes.images[n]
	r.image(c).clearFlags()
	r.image(c).setEpoch(r.epoch)
	*r.link(c) = link{prefix: nodes.links[n].prefix}
	var bearer ref // the leaf with the key
	if from < split {
		r.link(c).child[left], least = r.copyWay(nodes, nodes.links[n].child[left], from, split)
	}
	if split < to {
		r.link(c).child[right], bearer = r.copyWay(nodes, nodes.links[n].child[right], split, to)
	}
	if bearer == 0 {
		bearer = r.newRecord(key, nil)
	}
	r.image(c).setLeaf(bearer)
	return c, least
}
