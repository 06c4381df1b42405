package avlstar

import (
	"bytes"
	"fmt"
	"iter"
	"runtime"
)

// KeyRange is a part of all keys, [First, After), of which a storage node keeps the leaves
// (RainBlock, section 4: the bottom layer is sharded). An empty First and a nil After are open. The
// ranges of a network cover all keys.
type KeyRange struct{ First, After []byte }

// Contains reports whether key is in r.
func (r KeyRange) Contains(key []byte) bool {
	return bytes.Compare(key, r.First) >= 0 && (r.After == nil || bytes.Compare(key, r.After) < 0)
}

// Check returns an error unless First is below After.
func (r KeyRange) Check() error {
	if r.After != nil && bytes.Compare(r.First, r.After) >= 0 {
		return fmt.Errorf("avlstar: no key is in the range from %s up to %s", abbreviate(r.First), abbreviate(r.After))
	}
	return nil
}

// clone returns a copy that refers to no memory of the caller.
func (r KeyRange) clone() *KeyRange {
	return &KeyRange{First: bytes.Clone(r.First), After: bytes.Clone(r.After)}
}

func (r KeyRange) equal(o *KeyRange) bool {
	return o != nil && bytes.Equal(r.First, o.First) && bytes.Equal(r.After, o.After) && (r.After == nil) == (o.After == nil)
}

// Seam returns the bag that opens the ways to both edges of r, from the root down; an open edge
// needs none. Outside r it has stubs and, where an edge is no key of the tree, the leaf before it;
// no stub in it has keys on both sides of an edge. So it is all that a replica of r needs of the
// rest.
//
//	              (n)             First = m, After = s: the ways to both are open
//	       ┌───────┴───────┐
//	      (m)             (s)
//	  ┌────┴────┐     ┌────┴────┐
//	stub       (o)   (q)       stub
//	outside     in r, of the     outside
//	            replica itself
//
// The error is a *MissingNodeError, or a *PageError, where v lacks a node on these ways.
func (v *Version) Seam(r KeyRange) ([]byte, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	var wants []Want
	if len(r.First) > 0 {
		wants = append(wants, Want{Key: r.First})
	}
	if r.After != nil {
		wants = append(wants, Want{Key: r.After})
	}
	if err := v.lacksWay(wants); err != nil {
		return nil, fmt.Errorf("avlstar: seam: %w", err)
	}
	return v.Bag(wants, Below{})
}

// lacksWay returns a *MissingNodeError if v lacks the way to what is wanted, with the key to fetch
// the rest of the way by.
func (v *Version) lacksWay(wants []Want) error {
	v.inUse()
	defer runtime.KeepAlive(v)
	if !v.partial || v.tree.paging != nil {
		return nil
	}
	for _, w := range wants {
		if s, n := v.locate(w.Key, false); n == 0 && s.Stub != emptyStub {
			return &MissingNodeError{Node: s.Stub, Key: bytes.Clone(w.Key)}
		}
	}
	return nil
}

// Seam is that of Version.
func (p *Partial) Seam(r KeyRange) ([]byte, error) { return p.v.Seam(r) }

// Leaves yields the leaves in r, in key order, with the heights that FromRange needs. Keys and
// values are the tree's memory: valid until p is released, not to be modified. Where p lacks a leaf
// of r, a *MissingNodeError is yielded last.
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

// leavesIn yields the leaves in r of the subtree s, which is n. h is the height of the inner node
// that has its least key.
func (v *Version) leavesIn(s Subtree, n ref, h uint8, r KeyRange, yield func(Leaf, error) bool) bool {
	switch {
	case r.After != nil && bytes.Compare(s.First, r.After) >= 0 || s.After != nil && bytes.Compare(s.After, r.First) <= 0:
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

// seamItem is an item of a seam that lies outside of the range.
type seamItem struct {
	bagItem
	keyHash Hash // of bagItem.key, where there is one
}

// outside returns what b, the seam of the version that c commits to, has before and behind r. It
// fails if b is not of that version. What b has inside r it needs only to be proved.
func (b *Bag) outside(c Commitment, r KeyRange) (before, behind []seamItem, err error) {
	open := len(r.First) == 0 && r.After == nil
	switch {
	case b == nil || len(b.trees) == 0:
		if !open && c.Root != emptyStub {
			return nil, nil, fmt.Errorf("the seam is empty")
		}
		return nil, nil, nil
	case len(b.trees) > 1 || b.trees[0].root.Stub != c.Root:
		return nil, nil, fmt.Errorf("the seam is not of the tree with root %s", c.Root.Hash)
	}
	for k := b.trees[0].from; k < b.trees[0].to; k++ {
		it := seamItem{bagItem: b.item(int(k)), keyHash: *b.images[k].keyHash()}
		switch {
		case len(r.First) > 0 && bytes.Compare(it.key, r.First) < 0: // a first stub has no key
			before = append(before, it)
		case r.After != nil && bytes.Compare(it.key, r.After) >= 0:
			behind = append(behind, it)
		}
	}
	return before, behind, nil
}

// reaches returns an error if the last item before r is a stub that can have keys of r; next is the
// least key behind it. In a seam from Version.Seam it cannot: the way to r.First ends at the leaf
// before it or, if that is a stub, at the leaf of r.First. Without this check, who calls keys of r
// deleted could hide them in a stub, with the right root.
//
// Nor may the first item behind r be a stub that begins with r.After, to which a seam opens the
// way: who took it could not make the seam of its own range.
func (r KeyRange) reaches(before, behind []seamItem, next []byte) error {
	if len(behind) > 0 && behind[0].value == nil && bytes.Equal(behind[0].key, r.After) {
		return fmt.Errorf("the seam has a stub in the place of key %s, with which the next range begins", abbreviate(r.After))
	}
	if last := len(before) - 1; last >= 0 && before[last].value == nil && !bytes.Equal(next, r.First) {
		return fmt.Errorf("a stub of the seam can have keys of the range from %s on", abbreviate(r.First))
	}
	return nil
}
