package node

import (
	"errors"
	"fmt"
	"strings"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/server"
)

// takeUp chooses the height of the storage nodes' state from which a start continues.
//
//	own blocks        first ├──────────────────┤ last              states before the first to before the last block
//	range 1                        ├──────────────┤
//	range 2                    ├──────────┤
//	chosen                                ▲                        the newest height that all have
//
// A replica that has only the genesis state claims no height, and waits for the first block. That
// state is computed locally from the genesis file, so a replica that may still have all updates
// since the first block counts as serving it.
type takeUp struct {
	ranges       *dsm.Ranges
	name         func(dsm.NodeID) string // with its address
	initial      int64                   // height of the first block of the chain
	least, limit int64                   // heights that this home's blocks can continue from
	claims       []dsm.Claim
}

// rejoin is the hint for ErrAway.
const rejoin = "join again with `starlingd join ADDRESS --home NEW-HOME`, where ADDRESS is a node of the network"

// height returns the height, below initial for the genesis state. Errors: ErrAway if all replicas
// of a range that have answered are above limit; other errors name the nodes that it waits for.
func (t takeUp) height() (int64, error) {
	var (
		ranges []avlstar.KeyRange
		usable []dsm.Claim
		away   error
	)
	genesis := t.initial - 1
	for i := range t.ranges.Len() {
		r := t.ranges.Shard(i).Range
		ranges = append(ranges, r)
		before, oldest := len(usable), int64(0)
		for _, c := range t.claims {
			switch {
			case !c.Range.Covers(r):
				continue
			case c.Newest == 0 && c.Needs > 0 && c.Needs <= t.initial:
				c.Oldest, c.Newest = genesis, genesis
			case c.Newest == 0:
				continue // it is fetching its range
			case c.Oldest <= t.initial:
				c.Oldest = genesis
			}
			if c.Oldest > t.limit {
				if oldest == 0 || c.Oldest < oldest {
					oldest = c.Oldest
				}
				continue
			}
			// NewestProvable does not support height 0.
			c.Range, c.Oldest, c.Newest = r, c.Oldest-genesis+1, min(c.Newest, t.limit)-genesis+1
			usable = append(usable, c)
		}
		if oldest > 0 && len(usable) == before && away == nil {
			away = fmt.Errorf("%w: the storage nodes of the keys in %v have states from block %d on, but this node's blocks end at block %d: %s", ErrAway, r, oldest, t.limit, rejoin)
		}
	}
	height, err := server.NewestProvable(ranges, usable)
	var lacking *server.UnprovableError
	switch {
	case away != nil:
		return 0, away
	case errors.As(err, &lacking) && len(lacking.Silent) > 0:
		return 0, t.silent(lacking.Silent)
	case err != nil:
		return 0, err
	}
	height += genesis - 1
	if height < t.least {
		return 0, fmt.Errorf("the newest state that all storage nodes have is after block %d, but this home's blocks continue from block %d at the earliest: waiting until other validators have updated the storage nodes",
			height, t.least)
	}
	return height, nil
}

// silent returns the error that names the ranges without any answer, and their nodes.
func (t takeUp) silent(ranges []avlstar.KeyRange) error {
	const most = 4
	var parts []string
	for i, r := range ranges {
		if i == most {
			parts = append(parts, fmt.Sprintf("and %d more ranges", len(ranges)-most))
			break
		}
		var nodes []string
		if k, ok := t.ranges.Find(r); ok {
			for _, n := range t.ranges.Shard(k).Replicas {
				nodes = append(nodes, t.name(n))
			}
		}
		parts = append(parts, fmt.Sprintf("%v (%s)", r, strings.Join(nodes, ", ")))
	}
	return fmt.Errorf("no storage node answers for the keys in %s", strings.Join(parts, ", "))
}
