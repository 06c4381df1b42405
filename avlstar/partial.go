package avlstar

import (
	"bytes"
	"fmt"
	"iter"
	"runtime"
)

// Partial is a version in which some subtrees are stubs: only their hash, height and length are
// known, from the image of their parent. An operation that needs a missing node fails with a
// *MissingNodeError; otherwise its results are those of the full tree.
//
//	    (m)                   Get and Prove of a key from m to z, and changes there: as in the full tree
//	  ┌──┴──┐
//	stub   (s)                Get of b: a MissingNodeError that names the stub
//	[a,m) ┌─┴─┐
//	     m=1 s=2
//
// References, reads and changes work as for a Version.
type Partial struct{ v *Version }

// Subtree is a subtree and its key range [First, After); a nil bound is open.
type Subtree struct {
	Stub
	First, After []byte
}

// NewPartial returns the state that c commits to, with only the root's stub. Graft adds nodes to
// it. c must be trusted.
func NewPartial(c Commitment) (*Partial, error) {
	if err := checkChunkBytes(c.ChunkBytes); err != nil {
		return nil, fmt.Errorf("avlstar: %w", err)
	}
	v := &Version{chunkBytes: c.ChunkBytes, top: c.Root, partial: true, uncounted: true}
	switch {
	case c.Chunks > 0:
		v.upper = uint64(c.Chunks - 1)
	case c.Root != emptyStub:
		return nil, fmt.Errorf("avlstar: a state of %d bytes without chunks", c.Root.Bytes)
	}
	v, err := new(tree).publish(v)
	if err != nil {
		return nil, err
	}
	return &Partial{v}, nil
}

// Prune returns a partial copy of v as a new tree. stub decides, from the root down, which subtrees
// become stubs; it is not called for subtrees below a stub.
func (v *Version) Prune(stub func(Subtree) bool) (*Partial, error) {
	v.inUse()
	defer runtime.KeepAlive(v)
	t := new(tree)
	p := pruning{from: v, stub: stub, to: newAllocator(&t.mu.memory, false)}
	next := &Version{chunkBytes: v.chunkBytes, top: v.top, upper: v.upper, leaves: v.leaves, uncounted: v.uncounted, partial: true}
	next.root = p.copy(&v.view, sub{v.top, v.root}, nil, nil)
	p.to.close()
	if p.err != nil {
		return nil, fmt.Errorf("avlstar: prune: %w", p.err)
	}
	next, err := t.publish(next)
	if err != nil {
		return nil, err
	}
	return &Partial{next}, nil
}

// Prune returns a copy of p in which more subtrees are stubs.
func (p *Partial) Prune(stub func(Subtree) bool) (*Partial, error) { return p.v.Prune(stub) }

type pruning struct {
	from *Version
	to   allocator
	stub func(Subtree) bool
	err  error
}

// copy copies the subtree s, whose keys are in [first, after), and returns its root, or 0 if it
// becomes a stub.
func (p *pruning) copy(w nodes, s sub, first, after []byte) ref {
	at := Subtree{s.Stub, first, after}
	if p.err != nil || s.n == 0 && (s.Stub == emptyStub || !p.from.isAway(at)) || p.stub(at) {
		return 0
	}
	if s.n == 0 { // a page
		page, err := p.from.tree.fetchPage(at)
		if err != nil {
			p.err = err
			return 0
		}
		r := page.nodes()
		w, s.n = runNodes{r}, r.root.n
	}
	if s.n.isLeaf() {
		key, value := w.leaf(s.n)
		return p.to.putRecord(0, key, value)
	}
	n := p.to.newNode() // before its children, so that a path lies together in memory
	key := w.keyOf(s.n)
	l := p.copy(w, childOf(w, s.n, left), first, key)
	r := p.copy(w, childOf(w, s.n, right), key, after)
	*p.to.link(n) = link{w.link(s.n).prefix, [2]ref{l, r}}
	i := p.to.image(n)
	*i = *w.image(s.n)
	i.clearFlags()
	i.setEpoch(0)
	leaf := p.to.end(r, left)
	if leaf == 0 { // the leaf with the key is not copied
		leaf = p.to.putRecord(0, key, nil)
	}
	i.setLeaf(leaf)
	return n
}

// Get returns a copy of the value of key; ok is false if key is absent.
func (p *Partial) Get(key []byte) (value []byte, ok bool, err error) {
	v := p.v
	v.inUse()
	defer runtime.KeepAlive(v)
	if v.top == emptyStub {
		return nil, false, nil
	}
	way, err := v.path(key, make([]step, 0, maxSteps))
	if err != nil {
		return nil, false, fmt.Errorf("avlstar: get: %w", err)
	}
	if !bytes.Equal(way.key, key) {
		return nil, false, nil
	}
	return bytes.Clone(way.value), true, nil
}

// Apply does what Version.Apply does.
func (p *Partial) Apply(changes []Change) (*Partial, error) {
	v, err := p.v.Apply(changes)
	if err != nil {
		return nil, err
	}
	return &Partial{v}, nil
}

// Prove does what Version.Prove does.
func (p *Partial) Prove(key []byte) (Proof, error) { return p.v.Prove(key) }

// Commitment returns the commitment of the full tree.
func (p *Partial) Commitment() Commitment { return p.v.Commitment() }

// AppHash does what Version.AppHash does.
func (p *Partial) AppHash() Hash { return p.v.AppHash() }

// Len returns the number of leaves of the full tree. ok is false if it is unknown because nothing
// commits to it (NewPartial).
func (p *Partial) Len() (n uint64, ok bool) { return p.v.Len(), !p.v.uncounted }

// Graft does what Version.Graft does.
func (p *Partial) Graft(multiproofs ...*Multiproof) (*Partial, Grafted, error) {
	v, done, err := p.v.Graft(multiproofs...)
	if err != nil {
		return nil, done, err
	}
	return &Partial{v}, done, nil
}

// Multiproof does what Version.Multiproof does. It fails with a *MissingNodeError if a wanted node
// is missing in p.
func (p *Partial) Multiproof(wants []Want, below Below) ([]byte, error) {
	return p.v.Multiproof(wants, below)
}

// Stubs does what Version.Stubs does.
func (p *Partial) Stubs(from []byte) iter.Seq[Subtree] { return p.v.Stubs(from) }

// Pages yields those of Stubs that are pages of the tree (FromRangePaged).
func (p *Partial) Pages(from []byte) iter.Seq[Subtree] {
	return func(yield func(Subtree) bool) {
		for s := range p.v.Stubs(from) {
			if p.v.isAway(s) && !yield(s) {
				return
			}
		}
	}
}

// NewInner yields, in key order, the key and height of every inner node with a key in r that is not
// in base, or whose height or leaf changed since base. p must be full inside r. base is an older
// version of the same tree, and may have been released; if it is not the version on which Replay
// was called, further nodes may be yielded. New nodes are in memory, so no page is read.
func (p *Partial) NewInner(base *Partial, r KeyRange) iter.Seq2[[]byte, uint8] {
	return func(yield func([]byte, uint8) bool) {
		for key, height := range p.v.NewInner(base.v) {
			if r.Contains(key) && !yield(key, height) {
				return
			}
		}
	}
}

// HasPageList does what Version.HasPageList does.
func (p *Partial) HasPageList() bool { return p.v.HasPageList() }

// PageList does what Version.PageList does, for the pages in the range of a tree that has only a
// range of the keys. The other nodes above pages are in the boundary proof of that range.
func (p *Partial) PageList(base *Partial) iter.Seq[PageStub] {
	if base == nil {
		return p.v.PageList(nil)
	}
	return p.v.PageList(base.v)
}

// Stored does what Version.Stored does.
func (p *Partial) Stored() { p.v.Stored() }

// Retain does what Version.Retain does.
func (p *Partial) Retain() { p.v.Retain() }

// Release does what Version.Release does.
func (p *Partial) Release() { p.v.Release() }
