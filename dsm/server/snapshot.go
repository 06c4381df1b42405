package server

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/transport"
)

// ErrOutline: the bytes are not an outline of the state.
var ErrOutline = errors.New("not an outline of that state")

// Snapshot is a node's part of the state of one height, served to joining full-state nodes that
// fetch chunks: the leaves of its ranges, and the upper tree of all ranges, which it assembles from
// the outlines of other nodes. A chunk that spans two ranges is complete once both outlines have
// been added.
//
//	upper tree      (n)                  from the outlines of all nodes: chunks are stubs,
//	              ┌──┴───┐               except the open parts of chunks that cross an edge
//	            (n)     (n)
//	           ┌─┴─┐   ┌─┴─┐
//	chunks     0   1   2   3
//	         └──────┘└──────┘            leaves of this node's ranges
//
// Its versions stay readable until Close. It must be used by one goroutine until all outlines are
// added; after that, Range may be called concurrently.
type Snapshot struct {
	Height  int64
	ranges  []heldRange      // in key order
	upper   *avlstar.Partial // holds a reference
	outline []byte
}

type heldRange struct {
	replica *Replica
	keys    avlstar.KeyRange
	partial *avlstar.Partial // holds a reference, until endSnapshot
	put     uint64           // as in version
}

// size returns the size of the range.
func (h heldRange) size() (uint64, error) {
	return h.partial.Version().RangeBytes(h.keys.First, h.keys.After)
}

// Snapshot returns the node's part of the state of a height. The caller closes it. Error:
// transport.ErrGone if no replica serves that height.
func (n *Server) Snapshot(height int64) (*Snapshot, error) {
	s := &Snapshot{Height: height}
	for _, r := range n.widest() {
		overlaps := slices.ContainsFunc(s.ranges, func(h heldRange) bool { return h.keys.Overlaps(rangeOf(r.o.Range)) })
		if overlaps {
			continue // another replica has these keys
		}
		if v, ok := r.beginSnapshot(height); ok {
			s.ranges = append(s.ranges, heldRange{r, r.o.Range, v.partial, v.put})
		}
	}
	if len(s.ranges) == 0 {
		return nil, fmt.Errorf("storagenode: snapshot of height %d: %w", height, transport.ErrGone)
	}
	if err := s.begin(); err != nil {
		return nil, errors.Join(fmt.Errorf("storagenode: snapshot of height %d: %w", height, err), s.Close())
	}
	return s, nil
}

// widest returns the replicas in key order. If several ranges begin with the same key, the widest
// one is first: narrower ones may not be complete yet.
func (n *Server) widest() []*Replica {
	replicas := slices.Clone(n.replicas)
	slices.SortStableFunc(replicas, func(a, b *Replica) int {
		if c := bytes.Compare(a.o.Range.First, b.o.Range.First); c != 0 {
			return c
		}
		return dsm.CompareRanges(b.o.Range, a.o.Range)
	})
	return replicas
}

// begin builds the upper tree of the node's own ranges, and the outline.
func (s *Snapshot) begin() (err error) {
	if s.upper, err = avlstar.NewPartial(s.ranges[0].partial.Commitment()); err != nil {
		return err
	}
	for _, r := range s.ranges {
		own, err := outlineOf(r.partial, r.keys)
		if err != nil {
			return err
		}
		if err := s.Add(own); err != nil {
			return err
		}
		s.outline = own
	}
	if len(s.ranges) > 1 {
		s.outline, err = opened(s.upper)
	}
	return err
}

// outlineOf returns a multiproof of the upper nodes that have keys in a range, and of the range's
// part of chunks that cross the range's edges.
func outlineOf(p *avlstar.Partial, r avlstar.KeyRange) ([]byte, error) {
	limit := p.Commitment().ChunkBytes
	crossing := false // set at a chunk that crosses an edge
	var chunk avlstar.KeyRange
	pruned, err := p.Prune(func(s avlstar.Subtree) bool { // from left to right, parents first
		keys := avlstar.KeyRange{First: s.First, After: s.After}
		switch {
		case !keys.Overlaps(r):
			return true
		case crossing && chunk.Covers(keys), s.Bytes > limit && s.Height > 0:
			return false
		case r.Covers(keys):
			return true
		}
		crossing = true
		chunk = avlstar.KeyRange{First: bytes.Clone(s.First), After: bytes.Clone(s.After)}
		return false
	})
	if err != nil {
		return nil, err
	}
	defer pruned.Release()
	return opened(pruned)
}

// opened returns a multiproof of all open nodes of a tree.
func opened(p *avlstar.Partial) ([]byte, error) {
	const all = 255 // no tree is higher
	multiproof, err := p.Upper(all)
	var missing *avlstar.MissingNodeError
	if errors.As(err, &missing) { // the root is a stub
		return p.Upper(0)
	}
	return multiproof, err
}

// Outline returns the multiproof that other nodes need of this node's ranges to build their
// snapshots of the same height (docs/spec/dsm.md#outline-method-20).
func (s *Snapshot) Outline() []byte { return s.outline }

// MaxOutline returns the maximum length of an outline of the state, computed from the proved
// commitment.
func (s *Snapshot) MaxOutline() uint64 {
	c := s.upper.Commitment()
	const item = 1 + 1 + 2 + record.MaxKeyBytes + 1 + 10 + 32 // of a chunk that is a stub
	return 16 + uint64(c.Chunks)*item + 4*(c.ChunkBytes+record.MaxBytes)
}

// Add adds the outline of another node; its hashes prove it. ErrOutline: it is of another state, or
// is not a multiproof.
func (s *Snapshot) Add(outline []byte) error {
	multiproof, err := avlstar.DecodeMultiproof(outline)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrOutline, err)
	}
	roots := multiproof.Roots()
	if len(roots) == 0 {
		return nil
	}
	if len(roots) > 1 || roots[0] != s.upper.Commitment().Root {
		return fmt.Errorf("%w: it does not begin at the root", ErrOutline)
	}
	next, _, err := s.upper.Graft(multiproof)
	if err != nil {
		return err
	}
	s.upper.Release()
	s.upper = next
	return nil
}

// Missing returns a key that is missing from the upper tree, or from a chunk that is partly in the
// node's ranges. The caller must then add the outline of the node that has the key. ok is false if
// the snapshot is complete.
func (s *Snapshot) Missing() (key []byte, ok bool, err error) {
	var missing *avlstar.MissingNodeError
	_, err = s.upper.Version().TryManifest() // the result is cached
	if errors.As(err, &missing) {
		return missing.Key, true, nil
	} else if err != nil {
		return nil, false, err
	}
	keys, err := s.upper.Version().ChunkKeys()
	if err != nil {
		return nil, false, err
	}
	for _, k := range s.chunks(keys) {
		chunk := chunkRange(keys, k)
		if s.holder(chunk) != nil {
			continue
		}
		for _, err := range s.upper.Leaves(chunk) {
			if errors.As(err, &missing) {
				return missing.Key, true, nil
			} else if err != nil {
				return nil, false, err
			}
		}
	}
	return nil, false, nil
}

// Version returns the state. Its upper tree is complete once all required outlines have been added.
func (s *Snapshot) Version() *avlstar.Version { return s.upper.Version() }

// Chunks returns the numbers of the chunks that the node has of a complete snapshot, ascending.
func (s *Snapshot) Chunks() ([]uint32, error) {
	keys, err := s.upper.Version().ChunkKeys()
	if err != nil {
		return nil, err
	}
	return s.chunks(keys), nil
}

// chunks returns the numbers of the chunks that have keys in the node's ranges.
func (s *Snapshot) chunks(keys [][]byte) (own []uint32) {
	for k := range s.upper.Commitment().Chunks {
		chunk := chunkRange(keys, k)
		for _, r := range s.ranges {
			if chunk.Overlaps(r.keys) {
				own = append(own, k)
				break
			}
		}
	}
	return own
}

// chunkRange returns the key range of chunk k. keys are the first keys of all chunks except the
// first.
func chunkRange(keys [][]byte, k uint32) (r avlstar.KeyRange) {
	if k > 0 {
		r.First = keys[k-1]
	}
	if int64(k) < int64(len(keys)) {
		r.After = keys[k]
	}
	return r
}

// holder returns the range that contains all of keys, or nil if there is none.
func (s *Snapshot) holder(keys avlstar.KeyRange) *avlstar.Partial {
	for _, r := range s.ranges {
		if r.keys.Covers(keys) {
			return r.partial
		}
	}
	return nil
}

// Range returns the records of the leaves of a chunk with keys in [first, after); nil is an open
// end. See statesync.Pin.
func (s *Snapshot) Range(first, after []byte, size uint64) ([]byte, error) {
	chunk := avlstar.KeyRange{First: first, After: after}
	p := s.holder(chunk)
	if p == nil {
		p = s.upper // it crosses an edge
	}
	records := make([]byte, 0, min(size, avlstar.MaxChunkBytes))
	for l, err := range p.Leaves(chunk) {
		if err != nil {
			return nil, err
		}
		if records = record.Append(records, l); uint64(len(records)) > size {
			break
		}
	}
	return records, nil
}

// HeldBytes returns the memory, in bytes, that only this height of the node's ranges needs.
func (s *Snapshot) HeldBytes() (n uint64) {
	for _, r := range s.ranges {
		n += r.partial.HeldBytes()
	}
	return n
}

// DiskBytes returns how much disk space the snapshot keeps that neither the next snapshot needs,
// nor, if next is nil, the newest state: the size of the records replaced or deleted meanwhile, and
// at most all records of the snapshot. It may be greater if more than maxFresh keys of a range were
// written, or if a height of a snapshot is between the two or Options.SnapshotInterval is not that
// of the snapshots. Errors: read errors of pages at the edges of ranges.
func (s *Snapshot) DiskBytes(next *Snapshot) (sum uint64, err error) {
	for _, r := range s.ranges {
		n, err := r.replaced(next)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

func (h heldRange) replaced(next *Snapshot) (uint64, error) {
	size, err := h.size()
	if err != nil {
		return 0, err
	}
	to := h
	if next == nil {
		v, ok := h.replica.latest()
		if !ok { // closed
			return size, nil
		}
		defer v.partial.Release()
		to.partial, to.put = v.partial, v.put
	} else {
		i := slices.IndexFunc(next.ranges, func(o heldRange) bool { return o.replica == h.replica })
		if i < 0 {
			return size, nil
		}
		to = next.ranges[i]
	}
	later, err := to.size()
	// What was put has replaced other records, except where the range has grown.
	return min(size, size+to.put-h.put-later), err
}

// Bytes returns the size of the records that the snapshot has on disk. Errors: as DiskBytes.
func (s *Snapshot) Bytes() (sum uint64, err error) {
	for _, r := range s.ranges {
		n, err := r.size()
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// Close releases the versions. It is called once.
func (s *Snapshot) Close() error {
	for _, r := range s.ranges {
		r.partial.Release()
		r.replica.endSnapshot(s.Height)
	}
	if s.upper != nil {
		s.upper.Release()
	}
	return nil
}
