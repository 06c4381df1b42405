package avlstar

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
)

// A program that executes on a tree of which it lacks nodes reads and applies as on a full one, and
// fetches what its reads report as missing:
//
//	Version ── View, Floor, Ascend, RangeBytes, Apply ──► *MissingNodeError
//	   │  Lacks(wants) ──► what to ask for ──► Bag of who has it ──► Graft ──► Version
//	   └─ Partial ── Shed ──► Version
//
// Methods without an error result: Root, Commitment, AppHash, NumChunks and Hashed are right on
// such a tree; NewInner yields what Apply made, and nodes that were grafted since base; Warm and
// ReadAhead stop at stubs; Len is to be replaced by Count; Manifest panics where an upper node is
// missing, see TryManifest.

// Version returns the version that p is, without another reference: whoever releases one of both
// has released the other.
func (p *Partial) Version() *Version { return p.v }

// Partial is the inverse of Partial.Version. ok is false for a version that has all its leaves, or
// whose missing pages can be read.
func (v *Version) Partial() (p *Partial, ok bool) {
	if !v.lacking() {
		return nil, false
	}
	return &Partial{v}, true
}

// lacking reports whether there may be stubs whose content cannot be read.
func (v *Version) lacking() bool { return v.partial && v.tree.paging == nil }

// Count returns the number of leaves. ok is false where that is unknown, since nothing commits to
// it (NewPartial): then Len is no number of leaves.
func (v *Version) Count() (n uint64, ok bool) { return v.leaves, !v.uncounted }

// Lacks returns what to ask for so that all that wants name can be read, and be deleted where they
// say so: wants, and the stubs of v that they lead to, for Below.Held of whoever makes the bag.
// Both are empty where v has all of it. Keys of the result may be those of wants.
//
// A want for a next key takes bags more than others where the way to its Key is missing too. What
// several deletions below one node need beyond what each needs alone is found by Apply only.
func (v *Version) Lacks(wants []Want) (lacking []Want, held map[Hash]Span) {
	v.inUse()
	defer runtime.KeepAlive(v)
	if !v.lacking() || v.top == emptyStub {
		return nil, nil
	}
	l := shortfall{v: v}
	for _, w := range wants {
		before := len(l.wants)
		switch {
		case w.Range:
			for s := range v.Stubs(w.Key) {
				if w.After != nil && s.First != nil && bytes.Compare(s.First, w.After) >= 0 {
					break
				}
				l.add(s)
				if len(l.wants) == before {
					l.wants = append(l.wants, w)
				}
			}
		case w.Next:
			l.next(w)
		default:
			l.way(w)
		}
	}
	return l.wants, l.held
}

type shortfall struct {
	v     *Version
	wants []Want
	held  map[Hash]Span
}

// add notes a stub: each time with the same span at least, beside which there may be keys.
func (l *shortfall) add(s Subtree, beside ...[]byte) {
	if l.held == nil {
		l.held = make(map[Hash]Span)
	}
	span, had := l.held[s.Hash]
	if !had {
		span = spanOf(s)
	}
	for _, key := range beside {
		span = span.with(key)
	}
	if !had || len(beside) > 0 {
		l.held[s.Hash] = span
	}
}

// way looks at the way to a key and, if that is to be deleted, beside it as packing.open does.
func (l *shortfall) way(w Want) {
	v := l.v
	prefix, n, s := prefixOf(w.Key), v.root, Subtree{Stub: v.top}
	for n.isInner() {
		at, i := v.link(n), v.image(n)
		sides := [2]Subtree{}
		sides[left], sides[right] = splitAt(&v.view, s, n)
		side := right
		if v.less(w.Key, prefix, n, at) {
			side = left
		}
		if w.Deleted && i.height(1-side) > i.height(side) {
			l.beside(sides[1-side], at.child[1-side], 1-side, w.Key)
		}
		n, s = at.child[side], sides[side]
	}
	if n == 0 {
		l.add(s)
		l.wants = append(l.wants, w)
	}
}

// beside looks at the higher sibling s of the way to key, which is n, the child of its parent on
// one side.
func (l *shortfall) beside(s Subtree, n ref, side int, key []byte) {
	if n != 0 {
		inner := [2]Subtree{}
		inner[left], inner[right] = splitAt(&l.v.view, s, n)
		if inner[1-side].Height <= inner[side].Height || l.v.link(n).child[1-side] != 0 {
			return
		}
		s = inner[1-side]
	}
	l.add(s, key)
	l.wants = append(l.wants, Want{Key: bytes.Clone(s.First)}) // leads into it
}

// next looks for the least key above that of w.
func (l *shortfall) next(w Want) {
	var missing *MissingNodeError
	if _, _, err := l.v.above(w.Key); errors.As(err, &missing) {
		l.add(Subtree{Stub: missing.Node}, w.Key) // it may be in any range up to the next key
		l.wants = append(l.wants, w, Want{Key: w.Key}, Want{Key: missing.Key})
	}
}

// TryManifest is Manifest, with a *MissingNodeError where a node above the chunks is missing.
func (v *Version) TryManifest() (*Manifest, error) {
	if err := v.upperTree(); err != nil {
		return nil, fmt.Errorf("avlstar: manifest: %w", err)
	}
	return v.man, nil
}

// ChunkKeys returns copies of the first keys of the chunks from the second on: an upper node of v
// has each. The error is a *MissingNodeError where an upper node is a stub.
func (v *Version) ChunkKeys() (keys [][]byte, err error) {
	v.inUse()
	defer runtime.KeepAlive(v)
	var walk func(s sub) bool
	var missing Stub
	walk = func(s sub) bool {
		if isSmall(s.Stat, v.chunkBytes) {
			return true
		}
		if s.n == 0 {
			missing = s.Stub
			return false
		}
		if !walk(childOf(&v.view, s.n, left)) {
			return false
		}
		keys = append(keys, bytes.Clone(v.keyOf(s.n)))
		return walk(childOf(&v.view, s.n, right))
	}
	if !walk(sub{v.top, v.root}) {
		return nil, fmt.Errorf("avlstar: keys of chunks: %w", v.missingStub(missing))
	}
	return keys, nil
}

// missingStub returns the error for a stub of v.
func (v *Version) missingStub(stub Stub) error {
	e := &MissingNodeError{Node: stub}
	for s := range v.Stubs(nil) {
		if s.Stub == stub {
			e.Key = bytes.Clone(s.First)
			break
		}
	}
	return e
}

// ViewFloor is Floor without copies: k and value are as those of View. If below is set, k is the
// greatest key that is less than key.
func (v *Version) ViewFloor(key []byte, below bool) (k, value []byte, ok bool, err error) {
	defer runtime.KeepAlive(v)
	var n ref
	if below {
		n = v.findBelow(key)
	} else {
		n = v.find(key)
	}
	switch {
	case n != 0:
		k, value = v.leaf(n)
		value = value[:len(value):len(value)]
	case !v.partial:
		return nil, nil, false, nil
	default:
		if k, value, ok, err = v.pageFloor(key, below); !ok {
			return nil, nil, false, err
		}
	}
	// It may be the least leaf: then no inner node on the way has a key up to key.
	if c := bytes.Compare(k, key); c > 0 || c == 0 && below {
		return nil, nil, false, nil
	}
	return k, value, true, nil
}

// findBelow returns the leaf with the greatest key that is less than key, or the least leaf if
// there is none; 0 if the tree is empty or a stub is on the way.
func (v *Version) findBelow(key []byte) ref {
	v.inUse()
	prefix, n := prefixOf(key), v.root
	for n.isInner() {
		l := v.link(n)
		side := left
		if l.prefix < prefix || l.prefix == prefix && string(v.keyOf(n)) < string(key) {
			side = right
		}
		n = l.child[side]
	}
	return n
}

// pageFloor is ViewFloor in the page on the way; ok is false on an error, and in the empty tree.
func (v *Version) pageFloor(key []byte, below bool) (k, value []byte, ok bool, err error) {
	s, n := v.locate(key, below)
	if n != 0 || s.Stub == emptyStub {
		return nil, nil, false, nil
	}
	into := key
	// Unless an inner node has the key, the way to it is also that to the leaf before it. Who
	// fetches what is missing names the key, and that just below has 4 KiB.
	if below && s.After != nil && bytes.Compare(key, s.After) >= 0 {
		into = justBelow(key)
	}
	p, err := v.page(s, into)
	if err != nil {
		return nil, nil, false, err
	}
	l := p.find(key)
	if below {
		l = p.records().leaf(max(p.below(key)-1, 0))
	}
	return l.Key, l.Value, true, nil
}

// justBelow returns the greatest possible key below key, nil if there is none: the way to it leads
// to the greatest key of the tree that is less than key.
func justBelow(key []byte) []byte {
	last := len(key) - 1
	if last < 0 || last == 0 && key[0] == 0 {
		return nil
	}
	if key[last] == 0 {
		return bytes.Clone(key[:last])
	}
	p := make([]byte, 0, MaxKeyBytes)
	p = append(p, key...)
	p[last]--
	for len(p) < MaxKeyBytes {
		p = append(p, 0xff)
	}
	return p
}
