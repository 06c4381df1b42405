package dsm

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Node names a storage node, for instance as id@host:port. This package only compares names.
type Node string

// Limits of a configuration.
const (
	MaxShards   = 4096
	MaxReplicas = 64 // of a range
)

// Shard is a range of keys and the nodes that keep all of it.
type Shard struct {
	Range    Range
	Replicas []Node
}

// Ranges says which nodes keep which keys. Its ranges ascend and cover all keys, each once. It does
// not change.
type Ranges struct {
	shards []Shard // shards[0].Range.First and the last one's After are open
	of     map[Node][]int
}

// ErrRanges is wrapped by all errors of NewRanges.
var ErrRanges = errors.New("the ranges of storage nodes are wrong")

// UncoveredError names the keys that no range covers.
type UncoveredError struct{ Gaps []Range }

func (e *UncoveredError) Error() string {
	gaps := make([]string, len(e.Gaps))
	for i, g := range e.Gaps {
		gaps[i] = g.String()
	}
	return "no storage node has the keys in " + strings.Join(gaps, ", ")
}

// NewRanges checks shards, in any order, and keeps a copy. Together they must have each key exactly
// once, and each at least one replica, none twice. An *UncoveredError has the gaps.
func NewRanges(shards []Shard) (*Ranges, error) {
	r := &Ranges{of: map[Node][]int{}}
	if len(shards) > MaxShards {
		return nil, fmt.Errorf("%w: %d of them, the limit is %d", ErrRanges, len(shards), MaxShards)
	}
	for _, s := range shards {
		if err := s.check(); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrRanges, err)
		}
		r.shards = append(r.shards, s.clone())
	}
	slices.SortStableFunc(r.shards, func(a, b Shard) int { return bytes.Compare(a.Range.First, b.Range.First) })
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

func (s Shard) check() error {
	if err := s.Range.check(); err != nil {
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
func (s Shard) clone() Shard {
	c := Shard{Replicas: slices.Clone(s.Replicas)}
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
		return &UncoveredError{Gaps: []Range{{}}}
	}
	var gaps []Range
	if first := r.shards[0].Range.First; len(first) > 0 {
		gaps = append(gaps, Range{After: first})
	}
	for i, s := range r.shards[1:] {
		prev := r.shards[i].Range
		switch {
		case !before(prev, s.Range):
			return fmt.Errorf("ranges %v and %v overlap", prev, s.Range)
		case !bytes.Equal(prev.After, s.Range.First):
			gaps = append(gaps, Range{prev.After, s.Range.First})
		}
	}
	if after := r.shards[len(r.shards)-1].Range.After; len(after) > 0 {
		gaps = append(gaps, Range{First: after})
	}
	if len(gaps) > 0 {
		return &UncoveredError{Gaps: gaps}
	}
	return nil
}

// Len returns the number of ranges.
func (r *Ranges) Len() int { return len(r.shards) }

// Shard returns range i of Len, in the order of keys. It must not be changed.
func (r *Ranges) Shard(i int) Shard { return r.shards[i] }

// Index returns the number of the range that has a key.
func (r *Ranges) Index(key []byte) int {
	i, found := slices.BinarySearchFunc(r.shards, key, func(s Shard, key []byte) int { return bytes.Compare(s.Range.First, key) })
	if found {
		return i
	}
	return i - 1 // the first range begins at the empty key, which none is below
}

// Find returns the number of the range that has exactly these keys.
func (r *Ranges) Find(of Range) (i int, ok bool) {
	i = r.Index(of.First)
	return i, r.shards[i].Range.Equal(of)
}

// Of returns the numbers of a node's ranges, ascending.
func (r *Ranges) Of(n Node) []int { return slices.Clone(r.of[n]) }

// Nodes returns the names of all nodes, in order.
func (r *Ranges) Nodes() []Node {
	nodes := make([]Node, 0, len(r.of))
	for n := range r.of {
		nodes = append(nodes, n)
	}
	slices.Sort(nodes)
	return nodes
}

// Part is what of some wants one range has: what any of its replicas can be asked for.
type Part struct {
	Shard int // number of the range
	Wants []Want
}

// Route gives each want to the range that can open it, in the order of ranges; in each, wants are
// as Normal returns them. It fails if a want contradicts itself.
//
// A range of keys is cut at the edges. A next key goes to the range of the least key that it can
// be; if that range turns out to have none, its answer shows the stub beyond its edge, and the
// caller wants the way to that stub's first key. Likewise a key to be deleted goes to its own
// range: a sibling beyond the edge is a stub there, which the caller wants by its first key if it
// needs it. The way to an absent key ends at a leaf next to the range's edge at worst, which its
// replicas have.
func (r *Ranges) Route(wants []Want) ([]Part, error) {
	byShard := make([][]Want, len(r.shards))
	for _, w := range wants {
		if err := w.check(); err != nil {
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

// cut gives each range its part of a want for a range of keys.
func (r *Ranges) cut(w Want, byShard [][]Want) {
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

// Split cuts wants, as Normal returns them, into runs of at most most wants that each fit into a
// request beside held hashes. The runs refer to wants. held is at most MaxHeld.
func Split(wants []Want, most, held int) (runs [][]Want) {
	const fixed = 8 + 1 + 4 + 4 + 4
	room := MaxBodyBytes - fixed - held*hashBytes
	most = max(1, min(most, MaxWants))
	for first := 0; first < len(wants); {
		n, length := 0, 0
		// At least one: a want without room is the caller's mistake, which the encoder reports.
		for first+n < len(wants) && n < most && (n == 0 || length+wants[first+n].EncodedBytes() <= room) {
			length += wants[first+n].EncodedBytes()
			n++
		}
		runs = append(runs, wants[first:first+n:first+n])
		first += n
	}
	return runs
}
