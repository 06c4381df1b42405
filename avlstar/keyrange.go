package avlstar

import (
	"bytes"
	"fmt"
	"iter"
	"runtime"
	"strconv"
)

// KeyRange is the range [First, After) of keys whose leaves a storage node keeps (RainBlock,
// section 4: the bottom layer is sharded). An empty First or After leaves that end open. The ranges
// of a network cover all keys.
type KeyRange struct{ First, After []byte }

// Contains reports whether key is in r.
func (r KeyRange) Contains(key []byte) bool {
	return bytes.Compare(key, r.First) >= 0 && (len(r.After) == 0 || bytes.Compare(key, r.After) < 0)
}

// Covers reports whether all keys of other are in r.
func (r KeyRange) Covers(other KeyRange) bool {
	return bytes.Compare(r.First, other.First) <= 0 &&
		(len(r.After) == 0 || len(other.After) > 0 && bytes.Compare(other.After, r.After) <= 0)
}

// Overlaps reports whether a key is in both ranges.
func (r KeyRange) Overlaps(other KeyRange) bool {
	return (len(r.After) == 0 || bytes.Compare(other.First, r.After) < 0) && (len(other.After) == 0 || bytes.Compare(r.First, other.After) < 0)
}

// Equal reports whether two ranges contain the same keys.
func (r KeyRange) Equal(other KeyRange) bool {
	return bytes.Equal(r.First, other.First) && bytes.Equal(r.After, other.After)
}

// String returns the range for logs and errors, such as ["a", "m"); an open end is empty.
func (r KeyRange) String() string {
	return "[" + quoteKey(r.First) + ", " + quoteKey(r.After) + ")"
}

// quoteKey quotes a key and truncates a long one.
func quoteKey(key []byte) string {
	const most = 40
	switch {
	case len(key) == 0:
		return ""
	case len(key) > most:
		return strconv.QuoteToASCII(string(key[:most])) + "…"
	}
	return strconv.QuoteToASCII(string(key))
}

// Check returns an error unless First is below After.
func (r KeyRange) Check() error {
	if len(r.After) > 0 && bytes.Compare(r.First, r.After) >= 0 {
		return fmt.Errorf("avlstar: no key is in the range from %s up to %s", abbreviate(r.First), abbreviate(r.After))
	}
	return nil
}

// clone returns a copy that shares no memory with r.
func (r KeyRange) clone() *KeyRange {
	return &KeyRange{First: bytes.Clone(r.First), After: bytes.Clone(r.After)}
}

// Boundary returns the multiproof that opens the paths to both edges of r, from the root down; an
// open edge needs none. Outside of r it has stubs and, if an edge is not a key of the tree, the
// leaf before that edge; no stub in it has keys on both sides of an edge. So a replica of r needs
// nothing else from outside of r.
//
//	              (n)             First = m, After = s: the paths to both are open
//	       ┌───────┴───────┐
//	      (m)             (s)
//	  ┌────┴────┐     ┌────┴────┐
//	stub       (o)   (q)       stub
//	outside     in r, of the     outside
//	            replica itself
//
// The error is a *MissingNodeError or a *PageError if a node on these paths is not in v.
func (v *Version) Boundary(r KeyRange) ([]byte, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	var wants []Want
	if len(r.First) > 0 {
		wants = append(wants, Want{Key: r.First})
	}
	if len(r.After) > 0 {
		wants = append(wants, Want{Key: r.After})
	}
	if err := v.pathMissing(wants); err != nil {
		return nil, fmt.Errorf("avlstar: boundary proof: %w", err)
	}
	return v.Multiproof(wants, Below{})
}

// pathMissing returns a *MissingNodeError if a node on the path to a want is not in v, with the key
// for fetching the rest of the path.
func (v *Version) pathMissing(wants []Want) error {
	v.inUse()
	defer runtime.KeepAlive(v)
	if !v.lacking() {
		return nil
	}
	for _, w := range wants {
		if s, n := v.locate(w.Key, false); n == 0 && s.Stub != emptyStub && !v.isAway(s) {
			return &MissingNodeError{Node: s.Stub, Key: bytes.Clone(w.Key)}
		}
	}
	return nil
}

// Boundary does what Version.Boundary does.
func (p *Partial) Boundary(r KeyRange) ([]byte, error) { return p.v.Boundary(r) }

// Leaves yields the leaves in r, in key order, with the heights that FromRange needs. Keys and
// values are memory of the tree: they are valid until p is released, and must not be modified. If a
// leaf of r is not in p, a *MissingNodeError is yielded last.
func (p *Partial) Leaves(r KeyRange) iter.Seq2[Leaf, error] {
	return func(yield func(Leaf, error) bool) {
		v := p.v
		v.inUse()
		defer runtime.KeepAlive(v)
		if v.top != emptyStub {
			v.leavesIn(Subtree{Stub: v.top}, v.root, 0, r, yield)
		}
	}
}

// leavesIn yields the leaves in r of the subtree s, whose root is n. h is the height of the inner
// node that has the least key of s.
func (v *Version) leavesIn(s Subtree, n ref, h uint8, r KeyRange, yield func(Leaf, error) bool) bool {
	switch {
	case !r.Overlaps(KeyRange{s.First, s.After}):
		return true
	case n == 0:
		first := s.First
		if bytes.Compare(first, r.First) < 0 {
			first = r.First
		}
		p, err := v.page(s, first)
		if err != nil {
			yield(Leaf{}, err)
			return false
		}
		return p.leaves(r.First, r.After, h, func(l Leaf) bool { return yield(l, nil) })
	case n.isLeaf():
		key, value := v.leaf(n)
		return !r.Contains(key) || yield(Leaf{Key: key, Value: value[:len(value):len(value)], Height: h}, nil)
	}
	below, above := splitAt(&v.view, s, n)
	return v.leavesIn(below, v.link(n).child[left], h, r, yield) && v.leavesIn(above, v.link(n).child[right], s.Height, r, yield)
}

// boundaryItem is an item of a boundary proof that lies outside of the range.
type boundaryItem struct {
	multiproofItem
	keyHash Hash // of multiproofItem.key, if there is one
}

// outside returns the items of b before and behind r. b is the boundary proof of the version that c
// commits to; outside fails if it is not of that version. The items inside r serve only to verify
// b.
func (b *Multiproof) outside(c Commitment, r KeyRange) (before, behind []boundaryItem, err error) {
	open := len(r.First) == 0 && len(r.After) == 0
	switch {
	case b == nil || len(b.trees) == 0:
		if !open && c.Root != emptyStub {
			return nil, nil, fmt.Errorf("the boundary proof is empty")
		}
		return nil, nil, nil
	case len(b.trees) > 1 || b.trees[0].root.Stub != c.Root:
		return nil, nil, fmt.Errorf("the boundary proof is not of the tree with root %s", c.Root.Hash)
	}
	for k := b.trees[0].from; k < b.trees[0].to; k++ {
		it := boundaryItem{multiproofItem: b.item(int(k)), keyHash: *b.images[k].keyHash()}
		switch {
		case len(r.First) > 0 && bytes.Compare(it.key, r.First) < 0: // a first stub has no key
			before = append(before, it)
		case len(r.After) > 0 && bytes.Compare(it.key, r.After) >= 0:
			behind = append(behind, it)
		}
	}
	return before, behind, nil
}

// reaches returns an error if the last item before r is a stub that could contain keys of r; next
// is the least key behind it. In a boundary proof from Version.Boundary it cannot: the path to
// r.First ends at the leaf before r.First or, if that is in a stub, at the leaf of r.First. Without
// this check, a sender that claims deletions in r could hide the keys in a stub, with the correct
// root.
//
// The first item behind r must not be a stub that begins with r.After either, because a boundary
// proof opens the path to r.After. Otherwise the replica could not make the boundary proof of its
// own range.
func (r KeyRange) reaches(before, behind []boundaryItem, next []byte) error {
	if len(behind) > 0 && behind[0].value == nil && bytes.Equal(behind[0].key, r.After) {
		return fmt.Errorf("the boundary proof has a stub instead of key %s, with which the next range begins", abbreviate(r.After))
	}
	if last := len(before) - 1; last >= 0 && before[last].value == nil && !bytes.Equal(next, r.First) {
		return fmt.Errorf("a stub of the boundary proof can have keys of the range from %s on", abbreviate(r.First))
	}
	return nil
}
