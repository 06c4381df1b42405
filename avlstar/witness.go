package avlstar

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
)

// A program that executes on a tree with missing nodes reads and applies as on a full one, and
// fetches the nodes that its reads report as missing:
//
//	Version ── View, Floor, Ascend, RangeBytes, Apply ──► *MissingNodeError
//	   │  wants of missing nodes ──► Multiproof by a full node ──► Graft ──► Version
//	   └─ Partial ── Shed ──► Version
//
// The following methods have no error result. Root, Commitment, AppHash, NumChunks and Hashed are
// correct on such a tree. NewInner yields the nodes that Apply made, and nodes that were grafted
// since base. Warm and ReadAhead stop at stubs. Use Count instead of Len, and TryManifest instead
// of Manifest, which panics if an upper node is missing.

// Version returns the version of p without another reference: releasing either of them releases
// both.
func (p *Partial) Version() *Version { return p.v }

// Partial is the inverse of Partial.Version. ok is false for a version that has all its leaves, or
// whose missing pages can be read.
func (v *Version) Partial() (p *Partial, ok bool) {
	if !v.lacking() {
		return nil, false
	}
	return &Partial{v}, true
}

// Whether there may be stubs whose content cannot be read.
func (v *Version) lacking() bool { return v.partial && (v.tree.paging == nil || v.full != nil) }

// Count returns the number of leaves. ok is false if it is unknown because nothing commits to it
// (NewPartial); the result of Len is then wrong too.
func (v *Version) Count() (n uint64, ok bool) { return v.leaves, !v.uncounted }

// This method returns the wants to request so that everything that wants names can be read, and
// deleted where a want says so. held contains the stubs of v that these wants lead to, for
// Below.Held of the request. Both are empty if nothing is missing in v. The keys of the result may
// be those of wants.
//
// A want for a next key may need more multiproofs than others if the path to its Key is missing
// too. Several deletions below one node may need more nodes than each needs alone; only Apply finds
// these.
func (v *Version) Missing(wants []Want) (lacking []Want, held map[Hash]Span) {
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
				if v.isAway(s) || w.Written && s.IsKnownLeaf() {
					continue
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

// add records a stub, with at least its own span, extended by keys whose wants lead to it from
// outside of that span.
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

// way checks the path to a key. If the key is to be deleted, it also checks the siblings on the
// path, as packing.open does.
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
	if n == 0 && !v.isAway(s) && !(w.Written && s.IsKnownLeaf()) {
		l.add(s)
		l.wants = append(l.wants, w)
	}
}

// For a deletion of key, this method checks the higher sibling s of the path to key. n is the root
// of s, and side is the side of s in its parent.
func (l *shortfall) beside(s Subtree, n ref, side int, key []byte) {
	if n != 0 {
		inner := [2]Subtree{}
		inner[left], inner[right] = splitAt(&l.v.view, s, n)
		if inner[1-side].Height <= inner[side].Height || l.v.link(n).child[1-side] != 0 {
			return
		}
		s = inner[1-side]
	}
	if l.v.isAway(s) {
		return
	}
	l.add(s, key)
	l.wants = append(l.wants, Want{Key: bytes.Clone(s.First), Written: true}) // leads into it
}

// next searches for the least key above that of w.
func (l *shortfall) next(w Want) {
	var missing *MissingNodeError
	if _, _, err := l.v.above(w.Key); errors.As(err, &missing) {
		l.add(Subtree{Stub: missing.Node}, w.Key) // it may be in any range up to the next key
		l.wants = append(l.wants, w, Want{Key: w.Key}, Want{Key: missing.Key})
	}
}

// TryManifest does what Manifest does, but returns a *MissingNodeError if a node above the chunks
// is missing.
func (v *Version) TryManifest() (*Manifest, error) {
	if err := v.upperTree(); err != nil {
		return nil, fmt.Errorf("avlstar: manifest: %w", err)
	}
	return v.man, nil
}

// ChunkKeys returns copies of the first keys of all chunks except the first; each is the key of an
// upper node of v. The error is a *MissingNodeError if an upper node is a stub.
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

// ViewFloor does what Floor does without copies: k and value are valid as the result of View is. If
// below is set, k is the greatest key that is less than key.
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
	// The leaf may be the least leaf; then no key up to key exists.
	if c := bytes.Compare(k, key); c > 0 || c == 0 && below {
		return nil, nil, false, nil
	}
	return k, value, true, nil
}

// findBelow returns the leaf with the greatest key that is less than key, or the least leaf if
// there is none. It returns 0 if the tree is empty or a stub is on the path.
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

// pageFloor does what ViewFloor does in the page on the path; ok is false on an error, and in the
// empty tree.
func (v *Version) pageFloor(key []byte, below bool) (k, value []byte, ok bool, err error) {
	s, n := v.locate(key, below)
	if n != 0 || s.Stub == emptyStub {
		return nil, nil, false, nil
	}
	into := key
	// Unless an inner node has the key, the path to the key also leads to the leaf before it. A
	// caller that fetches missing nodes sends this key, and the key just below it would have 4 KiB.
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

// justBelow returns the greatest possible key below key, or nil if there is none. The path to it
// leads to the greatest key of the tree that is less than key.
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
