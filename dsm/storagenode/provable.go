package storagenode

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/starling-kv/starling/dsm"
)

// UnprovableError names the ranges for which no height is claimed that all others have too.
type UnprovableError struct {
	// Silent are the ranges that nobody claims any height of. If there are none, the claims have no
	// height in common.
	Silent []dsm.Range
}

func (e *UnprovableError) Error() string {
	if len(e.Silent) == 0 {
		return "the replicas have no height in common: bring back the replica of each range that was the furthest, or restore the ranges from a node in local mode"
	}
	names := make([]string, len(e.Silent))
	for i, r := range e.Silent {
		names[i] = r.String()
	}
	return "no replica answers any height of the keys in " + strings.Join(names, ", ")
}

// NewestProvable returns the newest height of which all ranges of a network can be proved by the
// replicas that make these claims, one at least for each: where validators take up their work after
// a crash of all nodes at once. Blocks alone bring back no range, since executing one needs all of
// them at one height.
//
//	range 1   replica a  ├───────────┤ 107
//	          replica b  ├─────────┤ 105
//	range 2   replica c        ├─────────┤ 106
//	range 3   replica d    ├───────────┤ 107      106 is the newest that each range has
//
// Claims are hints: a claim that is false costs a request, after which the caller leaves it out.
// Error: *UnprovableError.
func NewestProvable(ranges []dsm.Range, claims []dsm.Claim) (int64, error) {
	by := make([][]dsm.Claim, len(ranges))
	var newest []int64 // the height is one at which a claim ends
	for _, c := range claims {
		i := slices.IndexFunc(ranges, c.Range.Equal)
		if i >= 0 && c.Newest > 0 {
			by[i] = append(by[i], c)
			newest = append(newest, c.Newest)
		}
	}
	var silent []dsm.Range
	for i, of := range by {
		if len(of) == 0 {
			silent = append(silent, ranges[i])
		}
	}
	if len(silent) > 0 || len(ranges) == 0 {
		return 0, fmt.Errorf("storagenode: %w", &UnprovableError{silent})
	}
	slices.SortFunc(newest, func(a, b int64) int { return cmp.Compare(b, a) })
	for _, height := range newest {
		has := func(c dsm.Claim) bool { return c.Oldest <= height && height <= c.Newest }
		if !slices.ContainsFunc(by, func(of []dsm.Claim) bool { return !slices.ContainsFunc(of, has) }) {
			return height, nil
		}
	}
	return 0, fmt.Errorf("storagenode: %w", &UnprovableError{})
}
