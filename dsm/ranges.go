package dsm

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/starling-kv/starling/avlstar"
)

// NodeID names a storage node, for instance as id@host:port. This package only compares names.
type NodeID string

// Limits of a configuration.
const (
	MaxShards   = 4096
	MaxReplicas = 64 // of a range
)

// Placement is a range of keys and the nodes that keep all of it.
type Placement struct {
	Range    avlstar.KeyRange
	Replicas []NodeID
}

// Ranges maps key ranges to the nodes that keep them. Its ranges ascend and cover each key exactly
// once. It is immutable.
type Ranges struct {
	shards []Placement // shards[0].Range.First and the last one's After are open
	of     map[NodeID][]int
}

// ErrRanges is wrapped by all errors of NewRanges.
var ErrRanges = errors.New("invalid ranges of storage nodes")

// UncoveredError names the keys that no range covers.
type UncoveredError struct{ Gaps []avlstar.KeyRange }

func (e *UncoveredError) Error() string {
	gaps := make([]string, len(e.Gaps))
	for i, g := range e.Gaps {
		gaps[i] = g.String()
	}
	return "no storage node has the keys in " + strings.Join(gaps, ", ")
}

// NewRanges checks shards, which may be in any order, and copies them. Together they must cover
// each key exactly once; each needs at least one replica and no duplicates. If keys are uncovered,
// the error is an *UncoveredError that lists the gaps.
func NewRanges(shards []Placement) (*Ranges, error) {
	r := &Ranges{of: map[NodeID][]int{}}
	if len(shards) > MaxShards {
		return nil, fmt.Errorf("%w: %d of them, the limit is %d", ErrRanges, len(shards), MaxShards)
	}
	for _, s := range shards {
		if err := s.check(); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrRanges, err)
		}
		r.shards = append(r.shards, s.clone())
	}
	slices.SortStableFunc(r.shards, func(a, b Placement) int { return bytes.Compare(a.Range.First, b.Range.First) })
	if err := r.cover(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRanges, err)
	}
	for i, s := range r.shards {
		for _, n := range s.Replicas {
			r.of[n] = append(r.of[n], i)
		}
	}
	return r, nil
}

func (s Placement) check() error {
	if err := checkRange(s.Range); err != nil {
		return err
	}
	if len(s.Replicas) == 0 || len(s.Replicas) > MaxReplicas {
		return fmt.Errorf("range %v has %d replicas: it needs at least 1, and at most %d", s.Range, len(s.Replicas), MaxReplicas)
	}
	for i, n := range s.Replicas {
		switch {
		case n == "":
			return fmt.Errorf("range %v has a replica without a name", s.Range)
		case slices.Contains(s.Replicas[:i], n):
			return fmt.Errorf("range %v has the replica %s twice", s.Range, n)
		}
	}
	return nil
}

// clone returns a copy in which open ends are nil.
func (s Placement) clone() Placement {
	c := Placement{Replicas: slices.Clone(s.Replicas)}
	if len(s.Range.First) > 0 {
		c.Range.First = bytes.Clone(s.Range.First)
	}
	if len(s.Range.After) > 0 {
		c.Range.After = bytes.Clone(s.Range.After)
	}
	return c
}

// cover reports an overlap, or all gaps, of the sorted shards.
func (r *Ranges) cover() error {
	if len(r.shards) == 0 {
		return &UncoveredError{Gaps: []avlstar.KeyRange{{}}}
	}
	var gaps []avlstar.KeyRange
	if first := r.shards[0].Range.First; len(first) > 0 {
		gaps = append(gaps, avlstar.KeyRange{After: first})
	}
	for i, s := range r.shards[1:] {
		prev := r.shards[i].Range
		switch {
		case !before(prev, s.Range):
			return fmt.Errorf("ranges %v and %v overlap", prev, s.Range)
		case !bytes.Equal(prev.After, s.Range.First):
			gaps = append(gaps, avlstar.KeyRange{First: prev.After, After: s.Range.First})
		}
	}
	if after := r.shards[len(r.shards)-1].Range.After; len(after) > 0 {
		gaps = append(gaps, avlstar.KeyRange{First: after})
	}
	if len(gaps) > 0 {
		return &UncoveredError{Gaps: gaps}
	}
	return nil
}

// CheckNext checks ranges that are being filled to replace some of r. They must ascend, must not
// overlap each other, and none of them is in r. The error wraps ErrRanges.
func (r *Ranges) CheckNext(next []Placement) error {
	for i, s := range next {
		err := s.check()
		_, found := r.Find(s.Range)
		switch {
		case err != nil:
		case found:
			err = fmt.Errorf("range %v is a range already", s.Range)
		case i > 0 && !before(next[i-1].Range, s.Range):
			err = fmt.Errorf("next ranges %v and %v overlap, or do not ascend", next[i-1].Range, s.Range)
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrRanges, err)
		}
	}
	return nil
}

// All yields the ranges, and then those that are being filled to replace some of them.
func (r *Ranges) All(next []Placement) iter.Seq2[Placement, bool] {
	return func(yield func(s Placement, isNext bool) bool) {
		for _, s := range r.shards {
			if !yield(s, false) {
				return
			}
		}
		for _, s := range next {
			if !yield(s, true) {
				return
			}
		}
	}
}

// Edges returns the keys at which ranges of All begin or end, ascending.
func (r *Ranges) Edges(next []Placement) (edges [][]byte) {
	for s := range r.All(next) {
		for _, edge := range [][]byte{s.Range.First, s.Range.After} {
			if len(edge) > 0 {
				edges = append(edges, edge)
			}
		}
	}
	return AscendingKeys(edges)
}

// AscendingKeys sorts keys in place and removes duplicates.
func AscendingKeys(keys [][]byte) [][]byte {
	slices.SortFunc(keys, bytes.Compare)
	return slices.CompactFunc(keys, bytes.Equal)
}

// Len returns the number of ranges.
func (r *Ranges) Len() int { return len(r.shards) }

// Shard returns range i of Len, in key order. The caller must not modify it.
func (r *Ranges) Shard(i int) Placement { return r.shards[i] }

// Index returns the number of the range that contains key.
func (r *Ranges) Index(key []byte) int {
	i, found := slices.BinarySearchFunc(r.shards, key, func(s Placement, key []byte) int { return bytes.Compare(s.Range.First, key) })
	if found {
		return i
	}
	return i - 1 // the first range begins at the empty key, which none is below
}

// Find returns the number of the range that equals of.
func (r *Ranges) Find(of avlstar.KeyRange) (i int, ok bool) {
	i = r.Index(of.First)
	return i, r.shards[i].Range.Equal(of)
}

// Of returns the numbers of a node's ranges, ascending.
func (r *Ranges) Of(n NodeID) []int { return slices.Clone(r.of[n]) }

// Nodes returns the names of all nodes, in order.
func (r *Ranges) Nodes() []NodeID {
	nodes := make([]NodeID, 0, len(r.of))
	for n := range r.of {
		nodes = append(nodes, n)
	}
	slices.Sort(nodes)
	return nodes
}

// Part is the subset of wants that falls into one range; any of its replicas can serve it.
type Part struct {
	Shard int // number of the range
	Wants []avlstar.Want
}

// Route assigns each want to the range that can open it. Parts are in range order, and the wants of
// each are as Normal returns them. It fails if a want is inconsistent.
//
// A want for a range of keys is cut at the edges between ranges. A want for a next key goes to the
// range of the least key that it can be. If that range has no such key, its answer shows the stub
// beyond its edge, and the caller then asks for the path to the first key of that stub. A deleted
// key goes to its own range; a sibling beyond the edge is a stub there, and the caller asks for it
// by its first key if needed. The path to an absent key ends at a leaf next to the range's edge at
// worst, and replicas have those leaves.
func (r *Ranges) Route(wants []avlstar.Want) ([]Part, error) {
	byShard := make([][]avlstar.Want, len(r.shards))
	for _, w := range wants {
		if err := checkWant(w); err != nil {
			return nil, fmt.Errorf("dsm: route: %w", err)
		}
		if w.Range {
			r.cut(w, byShard)
			continue
		}
		i := r.Index(w.Least())
		byShard[i] = append(byShard[i], w)
	}
	var parts []Part
	for i, of := range byShard {
		if len(of) > 0 {
			parts = append(parts, Part{Shard: i, Wants: Normal(of)})
		}
	}
	return parts, nil
}

// cut assigns to each range its part of a want for a range of keys.
func (r *Ranges) cut(w avlstar.Want, byShard [][]avlstar.Want) {
	for i := r.Index(w.Key); i < len(r.shards); i++ {
		s, part := r.shards[i].Range, w
		if w.After != nil && bytes.Compare(s.First, w.After) >= 0 {
			return
		}
		if bytes.Compare(s.First, w.Key) > 0 {
			part.Key = s.First
		}
		if s.After != nil && (w.After == nil || bytes.Compare(s.After, w.After) < 0) {
			part.After = s.After
		}
		byShard[i] = append(byShard[i], part)
	}
}

// Split cuts wants, as Normal returns them, into runs. Each run has at most most wants and fits
// into a request together with held hashes. The runs refer to wants. held must not exceed MaxHeld.
func Split(wants []avlstar.Want, most, held int) (runs [][]avlstar.Want) {
	room := MaxBodyBytes - WitnessBytes(nil, held)
	most = max(1, min(most, MaxWants))
	for first := 0; first < len(wants); {
		n, length := 0, 0
		// A run has at least one want. If even that does not fit, the encoder reports it.
		for first+n < len(wants) && n < most && (n == 0 || length+wantBytes(wants[first+n]) <= room) {
			length += wantBytes(wants[first+n])
			n++
		}
		runs = append(runs, wants[first:first+n:first+n])
		first += n
	}
	return runs
}
