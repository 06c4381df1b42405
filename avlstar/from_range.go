package avlstar

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"iter"
)

// FromRange builds a storage node's part of the version that c commits to: all nodes in r, and
// outside of r the stubs of its boundary proof (Version.Boundary). leaves yields the leaves in r in
// key order, with their heights, as Partial.Leaves does; keys and values are copied. If the root of
// the result would not be c.Root, the error is ErrOtherState. An error that leaves yields is
// returned as it is. c must be trusted, or be compared with a header before the result is used,
// because no node commits to c.Chunks. As in FromLeaves, subtrees are built in parallel while
// leaves are read.
//
//	           (n)                  the boundary proof
//	     ┌──────┴──────┐
//	   stub       ┌────┴────┐
//	────────┬── run   run   run ──┬──   leaves in r; a leaf that shares a run with the outside is
//	 outside│           r         │outside    a run of its own
func FromRange(c Commitment, r KeyRange, boundary *Multiproof, leaves iter.Seq2[Leaf, error]) (*Partial, error) {
	return partialFromRange(c, r, boundary, nil, leaves)
}

// FromRangePaged does what FromRange does, for a tree with Paging. The leaves must be stored: no
// page stays in memory. Pages are subtrees that have only keys of r. Such a tree replays updates
// for r (Partial.Replay); Apply refuses it.
func FromRangePaged(c Commitment, r KeyRange, boundary *Multiproof, p Paging, leaves iter.Seq2[Leaf, error]) (*Partial, error) {
	return partialFromRange(c, r, boundary, &p, leaves)
}

func partialFromRange(c Commitment, r KeyRange, boundary *Multiproof, p *Paging, leaves iter.Seq2[Leaf, error]) (*Partial, error) {
	v, err := fromRange(c, r, boundary, p != nil, leaves)
	if err != nil {
		return nil, fmt.Errorf("avlstar: tree from a range: %w", err)
	}
	if p != nil {
		v.EnablePaging(*p)
	}
	return &Partial{v}, nil
}

func fromRange(c Commitment, r KeyRange, boundary *Multiproof, paged bool, leaves iter.Seq2[Leaf, error]) (*Version, error) {
	before, behind, err := outsideOf(c, r, boundary)
	if err != nil {
		return nil, err
	}
	s := newStream(c.ChunkBytes)
	s.paged = paged
	first, failed, err := s.readRange(r, before, behind, leaves)
	if waited := s.wait(); waited != nil && failed == nil { // of an earlier leaf
		err = waited
	}
	if failed != nil {
		return nil, failed
	}
	if err == nil {
		err = s.placeBoundary(behind)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrOtherState, err)
	}
	return s.publishRange(c, r, before, behind, first)
}

// outsideOf returns the items of the boundary proof before and behind r.
func outsideOf(c Commitment, r KeyRange, boundary *Multiproof) (before, behind []boundaryItem, err error) {
	if err := r.Check(); err != nil {
		return nil, nil, err
	}
	if err := checkChunkBytes(c.ChunkBytes); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrOtherState, err)
	}
	if (c.Chunks == 0) != (c.Root == emptyStub) {
		return nil, nil, fmt.Errorf("%w: a state of %d bytes in %d chunks", ErrOtherState, c.Root.Bytes, c.Chunks)
	}
	if before, behind, err = boundary.outside(c, r); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrOtherState, err)
	}
	return before, behind, nil
}

// publishRange makes the version of all that was placed: the items before r, r, and the items
// behind it. first is the least key in r; nil: r is empty, or begins with the least key of the
// tree.
func (s *stream) publishRange(c Commitment, r KeyRange, before, behind []boundaryItem, first []byte) (*Version, error) {
	if first == nil && len(behind) > 0 {
		first = behind[0].key
	}
	v := &Version{chunkBytes: c.ChunkBytes, leaves: s.count, top: emptyStub, partial: true, uncounted: true, full: r.clone()}
	err := r.reaches(before, behind, first)
	if err == nil {
		err = s.joinPlaced(v, false)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrOtherState, err)
	case v.top != c.Root:
		return nil, fmt.Errorf("%w: its parts have the root %s, not %s", ErrOtherState, v.top.Hash, c.Root.Hash)
	}
	if v.leaves, v.upper = 0, 0; c.Chunks > 0 {
		v.upper = uint64(c.Chunks - 1)
	}
	return s.tree.publish(v)
}

// readRange places the items of the boundary proof before r and reads the leaves in r. It returns
// the first key, the error that leaves yielded (failed), and the error if the leaves are invalid
// (err).
func (s *stream) readRange(
	r KeyRange, before, behind []boundaryItem, leaves iter.Seq2[Leaf, error],
) (first []byte, failed, err error) {
	if err := s.placeBoundary(before); err != nil {
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

// placeBoundary places items of a boundary proof like leaves. No run may be waiting to be placed.
func (s *stream) placeBoundary(items []boundaryItem) error {
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
		case s.count > 0: // no inner node has the tree's first key
			p.leaf = s.leaves.putRecord(0, it.key, nil) // a stand-in
		}
		s.placed.add(p)
		s.count++
	}
	return nil
}
