package avlstar

import (
	"bytes"
	"fmt"
)

// walk takes the subtree s of the version before apart as far as the update touches it, and appends
// its other parts that are in r to the parts. s is in a page, or in the tree if page is nil. The
// least key of s is that of low. within says for each side whether no key of s is outside of r on
// that side. r.touched[from:to] are all touched keys in the range of s.
func (r *replaying) walk(page *run, s sub, low border, within [2]bool, from, to int) {
	inside := within[left] && within[right]
	switch {
	case r.err != nil:
		return
	case s.n.isLeaf():
		r.walkLeaf(page, s, low, from, to)
		return
	case inside && !r.cuts(low, from, to):
		x := stretch{sub: s, boundary: low.height, whole: true}
		if page != nil {
			x.n = 0
		}
		if from < to {
			x.boundary = r.touched[from].height
			x.moved = x.boundary != low.height
		}
		if low.n != 0 {
			r.bear(&x, low)
		}
		r.parts = append(r.parts, x)
		return
	case s.n == 0:
		var key []byte
		if low.n != 0 {
			key = r.nodesOf(low.page).keyOf(low.n)
		}
		if page, s.n = r.open(s.Stub, key); s.n != 0 {
			r.walk(page, s, low, within, from, to)
		} else if r.err == nil {
			r.err = r.missing(s, from, to)
		}
		return
	}
	if from < to && from >= r.warm {
		r.fetch()
	}
	n, w := s.n, r.nodesOf(page)
	first, after := 1, -1 // its key compared with the edges of r
	if !inside {
		key := w.keyOf(n)
		if !within[left] {
			first = bytes.Compare(key, r.r.First)
		}
		if !within[right] {
			after = bytes.Compare(key, r.r.After)
		}
	}
	split := r.search(w, n, from, to)
	l, rt := childOf(w, n, left), childOf(w, n, right)
	if page == nil {
		r.die(n, first >= 0 && after < 0)
	}
	if first > 0 {
		r.walk(page, l, low, [2]bool{within[left], after <= 0}, from, split)
	} else if page == nil {
		r.drop(l.n)
	}
	if after < 0 {
		r.walk(page, rt, border{page, n, s.Height}, [2]bool{first >= 0, within[right]}, split, to)
	} else if page == nil {
		r.drop(rt.n)
	}
}

// nodesOf gives access to the nodes of a page, or to those of the tree if page is nil.
func (r *replaying) nodesOf(page *run) nodes {
	if page == nil {
		return &r.view
	}
	return runNodes{page}
}

// open returns the page of the version before that has the stub, and its node there. The least key
// of the subtree is key (nil: that of the tree). n is 0 if the stub is not a page, and on an error,
// which is then in r.err.
func (r *replaying) open(stub Stub, key []byte) (page *run, n ref) {
	s, n := r.edit.before.locate(key, false)
	if n != 0 || !r.edit.before.isAway(s) {
		return nil, 0
	}
	if page = r.page(s); page == nil {
		return nil, 0
	}
	n, _ = page.node(stub, key)
	return page, n
}

// cuts reports whether r.touched[from:to] changes anything in a subtree whose least key is that of
// low. A change of the height at low is outside of the subtree.
func (r *replaying) cuts(low border, from, to int) bool {
	if from < to && low.n != 0 && !r.touched[from].changes() && bytes.Equal(r.touched[from].key, r.nodesOf(low.page).keyOf(low.n)) {
		from++
	}
	return from < to
}

// missing returns the error that the subtree s, a stub, is needed.
func (r *replaying) missing(s sub, from, to int) error {
	key := r.r.First
	if from < to {
		key = r.touched[from].key
	} else if len(key) == 0 {
		key = r.r.After
	}
	return &MissingNodeError{Node: s.Stub, Key: bytes.Clone(key)}
}

// walkLeaf appends the leaf s as the update leaves it, and the leaves that the update puts next to
// it. s is in a page, or in the tree if page is nil.
func (r *replaying) walkLeaf(page *run, s sub, low border, from, to int) {
	key, value := r.nodesOf(page).leaf(s.n)
	at := from
	for at < to && bytes.Compare(r.touched[at].key, key) < 0 { // on the tree's left edge
		at++
	}
	r.insert(from, at)
	var own touch // nothing touches this leaf
	if at < to && bytes.Equal(r.touched[at].key, key) {
		own = r.touched[at]
		at++
	}
	x := stretch{sub: s, boundary: low.height, moved: low.n == 0 || own.value != nil, bearer: s.n}
	if page != nil { // the leaf stays a stub
		x.n, x.bearer, x.key = 0, 0, bytes.Clone(key)
	}
	if own.height > 0 {
		x.boundary, x.moved = own.height, x.moved || own.height != low.height
	}
	if own.value != nil && !bytes.Equal(own.value, value) {
		x.sub = r.newLeafSub(key, own.value)
		x.bearer = x.n
	}
	if low.n != 0 {
		w := r.nodesOf(low.page)
		x.prefix, x.keyHash = w.link(low.n).prefix, low.keyHash(w)
	} else {
		x.prefix = prefixOf(key)
	}
	kept := !own.deleted && r.r.Contains(key)
	if page == nil && (!kept || x.n != s.n) {
		r.kill(s.n, r.recordEpoch(s.n))
	}
	if kept {
		r.parts = append(r.parts, x)
	}
	r.insert(at, to)
}

// insert appends the leaves that r.touched[from:to] puts and that are not in the version before.
func (r *replaying) insert(from, to int) {
	for i := from; i < to; i++ {
		switch t := &r.touched[i]; {
		case t.value != nil:
			x := stretch{sub: r.newLeafSub(t.key, t.value), boundary: t.height, moved: true, prefix: r.ops[i].prefix}
			x.bearer = x.n
			r.parts = append(r.parts, x)
		case t.height > 0:
			r.err = fmt.Errorf("%w: a height at key %s, which is absent", ErrOtherState, abbreviate(t.key))
		}
	}
}

// bear sets the prefix, key and hash of a part whose least key is that of low. It is called before
// low dies, and the part then refers to it, but not to a page.
func (r *replaying) bear(x *stretch, low border) {
	w := r.nodesOf(low.page)
	x.prefix, x.keyHash, x.bearer = w.link(low.n).prefix, low.keyHash(w), 0
	if low.page != nil {
		x.key = bytes.Clone(w.keyOf(low.n))
		return
	}
	x.bearer = r.image(low.n).leaf()
	if !r.full && r.standIn(x.bearer) { // the stand-in dies with low
		x.key, x.bearer = r.view.key(x.bearer), 0
	}
}

// keyHash returns the hash of the key of b, which is among w. A part must not keep a page in
// memory, so this is a copy if b is in a page.
func (b border) keyHash(w nodes) *Hash {
	hash := w.image(b.n).keyHash()
	if b.page == nil {
		return hash
	}
	c := *hash
	return &c
}

// die kills inner node n of the version before, and its stand-in. inside says whether its key is in
// r.
func (r *replaying) die(n ref, inside bool) {
	i := r.image(n)
	if k := i.leaf(); !(inside && r.full) && r.standIn(k) {
		r.kill(k, r.recordEpoch(k))
	}
	r.kill(n, i.epoch())
}

// drop kills the subtree n of the tree, which is outside of r.
func (r *replaying) drop(n ref) {
	switch {
	case n.isLeaf():
		r.kill(n, r.recordEpoch(n))
	case n.isInner():
		child := r.link(n).child
		r.die(n, false)
		r.drop(child[left])
		r.drop(child[right])
	}
}
