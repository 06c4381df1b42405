package avlstar

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"iter"
)

// FromRange builds what a storage node has of the version that c commits to: everything in r, and
// the stubs of its seam outside (Version.Seam). leaves yields the leaves in r in key order, with
// their heights, as Partial.Leaves does; keys and values are copied. The result has the root
// c.Root; otherwise the error is ErrOtherState, or that of leaves. c must be trusted, or compared
// with a header before the result is used: no node commits to c.Chunks. As in FromLeaves, subtrees
// are built in parallel while leaves are read.
//
//	           (n)                  the seam
//	     ┌──────┴──────┐
//	   stub       ┌────┴────┐
//	────────┬── run   run   run ──┬──   leaves in r; those that share a run with the outside are
//	 outside│           r         │outside    runs of their own
func FromRange(c Commitment, r KeyRange, seam *Bag, leaves iter.Seq2[Leaf, error]) (*Partial, error) {
	v, err := fromRange(c, r, seam, leaves)
	if err != nil {
		return nil, fmt.Errorf("avlstar: tree from a range: %w", err)
	}
	return &Partial{v}, nil
}

func fromRange(c Commitment, r KeyRange, seam *Bag, leaves iter.Seq2[Leaf, error]) (*Version, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	if err := checkChunkBytes(c.ChunkBytes); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrOtherState, err)
	}
	if (c.Chunks == 0) != (c.Root == emptyStub) {
		return nil, fmt.Errorf("%w: a state of %d bytes in %d chunks", ErrOtherState, c.Root.Bytes, c.Chunks)
	}
	before, behind, err := seam.outside(c, r)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrOtherState, err)
	}
	s := newStream(c.ChunkBytes)
	first, failed, err := s.readRange(r, before, behind, leaves)
	if waited := s.wait(); waited != nil && failed == nil { // that of the earlier leaf
		err = waited
	}
	if failed != nil {
		return nil, failed
	}
	if err == nil {
		err = s.placeSeam(behind)
	}
	if first == nil && len(behind) > 0 {
		first = behind[0].key
	}
	if err == nil {
		err = r.reaches(before, behind, first)
	}
	v := &Version{chunkBytes: c.ChunkBytes, leaves: s.count, top: emptyStub, partial: true, uncounted: true, full: r.clone()}
	if err == nil {
		err = s.joinPlaced(v, false)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrOtherState, err)
	case v.top != c.Root:
		return nil, fmt.Errorf("%w: leaves and seam have the root %s, not %s", ErrOtherState, v.top.Hash, c.Root.Hash)
	}
	if v.leaves, v.upper = 0, 0; c.Chunks > 0 {
		v.upper = uint64(c.Chunks - 1)
	}
	return s.tree.publish(v)
}

// readRange reads the leaves in r, behind what the seam has before them. It returns the first key,
// and the error that leaves yielded apart from that of what they are.
func (s *stream) readRange(
	r KeyRange, before, behind []seamItem, leaves iter.Seq2[Leaf, error],
) (first []byte, failed, err error) {
	if err := s.placeSeam(before); err != nil {
		return nil, nil, err
	}
	s.apart = len(before) > 0
	s.open = len(behind) > 0 && behind[0].boundary <= runHeight
	err = s.read(func(yield func(Leaf, error) bool) {
		for l, err := range leaves {
			switch {
			case err != nil:
				failed = err
			case !r.Contains(l.Key):
				err = fmt.Errorf("key %s is not in the range", abbreviate(l.Key))
			case first == nil:
				first = bytes.Clone(l.Key)
			}
			if !yield(l, err) {
				return
			}
		}
	})
	return first, failed, err
}

// placeSeam places items of a seam like leaves. No run may be waiting to be placed.
func (s *stream) placeSeam(items []seamItem) error {
	for i := range items {
		if err := s.reserve(s.count + 1); err != nil {
			return err
		}
		it := &items[i]
		p := placed{base: uint32(s.count), boundary: it.boundary, root: sub{Stub: it.stub}, keyHash: it.keyHash}
		switch {
		case it.value != nil:
			p.leaf = s.leaves.putRecord(0, it.key, it.value)
			p.root.n, p.root.Hash = p.leaf, hashLeaf(it.keyHash, sha256.Sum256(it.value))
		case s.count > 0: // no node has the key of the tree's first
			p.leaf = s.leaves.putRecord(0, it.key, nil) // a stand-in
		}
		s.placed = append(s.placed, p)
		s.count++
	}
	return nil
}
