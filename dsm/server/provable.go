package server

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
)

// UnprovableError reports that the claims have no height common to all ranges.
type UnprovableError struct {
	// Silent are the ranges without any claimed height. If it is empty, each range has claims, but
	// they have no height in common.
	Silent []avlstar.KeyRange
}

func (e *UnprovableError) Error() string {
	if len(e.Silent) == 0 {
		return "the replicas have no height in common: bring back the most advanced replica of each range, or fill the ranges from a full-state node, or with `starlingd storage start --snapshot-file FILE`"
	}
	names := make([]string, len(e.Silent))
	for i, r := range e.Silent {
		names[i] = r.String()
	}
	return "no replica claims any height of ranges " + strings.Join(names, ", ")
}

// NewestProvable returns the newest height at which at least one replica of each range claims to
// prove it. Validators resume there after all nodes have crashed at once. Blocks alone cannot
// restore a range, because executing a block needs all ranges at one height.
//
//	range 1   replica a  ├───────────┤ 107
//	          replica b  ├─────────┤ 105
//	range 2   replica c        ├─────────┤ 106
//	range 3   replica d    ├───────────┤ 107      106 is the newest that each range has
//
// Claims are hints: a false claim costs one request, after which the caller leaves it out. Error:
// *UnprovableError.
func NewestProvable(ranges []avlstar.KeyRange, claims []dsm.Claim) (int64, error) {
	by := make([][]dsm.Claim, len(ranges))
	var newest []int64 // the result is the end of some claim
	for _, c := range claims {
		i := slices.IndexFunc(ranges, c.Range.Equal)
		if i >= 0 && c.Newest > 0 {
			by[i] = append(by[i], c)
			newest = append(newest, c.Newest)
		}
	}
	var silent []avlstar.KeyRange
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
