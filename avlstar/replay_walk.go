package avlstar

import (
	"bytes"
	"fmt"
)

// walk takes the subtree s of the version before apart as far as the update touches it, and appends
// what is left of it in r to the parts. Its least key is that of low; within says of each side
// whether all its keys are in r as far as that edge goes; r.touched[from:to] lie in the range of
// its keys, all of what it might have.
func (r *replaying) walk(s sub, low border, within [2]bool, from, to int) {
	inside := within[left] && within[right]
	switch {
	case r.err != nil:
		return
	case s.n.isLeaf():
		r.walkLeaf(s, low, from, to)
		return
	case inside && !r.cuts(low, from, to):
		x := stretch{sub: s, boundary: low.height, whole: true}
		if from < to {
			x.boundary = r.touched[from].height
		}
		if low.n != 0 {
			r.bear(&x, low.n)
		}
		r.parts = append(r.parts, x)
		return
	case s.n == 0 && r.pages != nil:
		if s = r.openTouched(s, low, from, to); r.err == nil {
			r.walk(s, low, within, from, to)
		}
		return
	case s.n == 0:
		r.err = r.lacks(s, from, to)
		return
	}
	if from < to && from >= r.warm {
		r.fetch()
	}
	n := s.n
	first, after := 1, -1 // its key compared with the edges of r
	if !inside {
		key := r.keyOf(n)
		if !within[left] {
			first = bytes.Compare(key, r.r.First)
		}
		if !within[right] {
			after = bytes.Compare(key, r.r.After)
		}
	}
	split := r.search(n, from, to)
	l, rt := childOf(&r.view, n, left), childOf(&r.view, n, right)
	r.die(n, first >= 0 && after < 0)
	if first > 0 {
		r.walk(l, low, [2]bool{within[left], after <= 0}, from, split)
	} else {
		r.drop(l.n)
	}
	if after < 0 {
		r.walk(rt, border{n, s.Height}, [2]bool{first >= 0, within[right]}, split, to)
	} else {
		r.drop(rt.n)
	}
}

// cuts reports whether r.touched[from:to] change anything in a subtree whose least key is that of
// low. The height at low itself is outside of it.
func (r *replaying) cuts(low border, from, to int) bool {
	if from < to && low.n != 0 && !r.touched[from].changes() && bytes.Equal(r.touched[from].key, r.keyOf(low.n)) {
		from++
	}
	return from < to
}

// lacks returns the error that the subtree s, a stub, is needed.
func (r *replaying) lacks(s sub, from, to int) error {
	key := r.r.First
	if from < to {
		key = r.touched[from].key
	} else if len(key) == 0 {
		key = r.r.After
	}
	return &MissingNodeError{Node: s.Stub, Key: bytes.Clone(key)}
}

// walkLeaf appends what the update makes of the leaf s, and the leaves that it puts beside it.
func (r *replaying) walkLeaf(s sub, low border, from, to int) {
	key, value := r.leaf(s.n)
	at := from
	for at < to && bytes.Compare(r.touched[at].key, key) < 0 { // on the left edge of the tree
		at++
	}
	r.insert(from, at)
	var own touch // nothing
	if at < to && bytes.Equal(r.touched[at].key, key) {
		own = r.touched[at]
		at++
	}
	x := stretch{sub: s, boundary: low.height, bearer: s.n}
	if own.height > 0 {
		x.boundary = own.height
	}
	if own.value != nil && !bytes.Equal(own.value, value) {
		x.sub = r.newLeafSub(key, own.value)
		x.bearer = x.n
	}
	if low.n != 0 {
		x.prefix, x.keyHash = r.link(low.n).prefix, r.image(low.n).keyHash()
	} else {
		x.prefix = prefixOf(key)
	}
	kept := !own.deleted && r.r.Contains(key)
	if !kept || x.n != s.n {
		r.kill(s.n, r.recordEpoch(s.n))
	}
	if kept {
		r.parts = append(r.parts, x)
	}
	r.insert(at, to)
}

// insert appends the leaves that r.touched[from:to] put, which the version before lacks.
func (r *replaying) insert(from, to int) {
	for i := from; i < to; i++ {
		switch t := &r.touched[i]; {
		case t.value != nil:
			x := stretch{sub: r.newLeafSub(t.key, t.value), boundary: t.height, prefix: r.ops[i].prefix}
			x.bearer = x.n
			r.parts = append(r.parts, x)
		case t.height > 0:
			r.err = fmt.Errorf("%w: a height at key %s, which is absent", ErrOtherState, abbreviate(t.key))
		}
	}
}

// bear sets what a part whose least key is that of inner node n needs to know of it. It is called
// before n dies, and refers to it.
func (r *replaying) bear(x *stretch, n ref) {
	i := r.image(n)
	x.prefix, x.keyHash, x.bearer = r.link(n).prefix, i.keyHash(), i.leaf()
	if !r.full && r.standIn(x.bearer) { // it dies with n
		x.key, x.bearer = r.view.key(x.bearer), 0
	}
}

// die kills inner node n of the version before, and its stand-in; inside reports whether its key is
// in r.
func (r *replaying) die(n ref, inside bool) {
	i := r.image(n)
	if k := i.leaf(); !(inside && r.full) && r.standIn(k) {
		r.kill(k, r.recordEpoch(k))
	}
	r.kill(n, i.epoch())
}

// drop kills the subtree n, which lies outside of r.
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
