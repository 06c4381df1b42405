package dsmbench

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/starling-kv/starling/bench/harness"
)

// Options configure a run.
type Options struct {
	Keys   int   // accounts
	Retain int   // r: depth to which a validator keeps the tree
	Window int   // number of recent blocks whose changes a validator keeps
	Shards []int // numbers of storage nodes, one row each
	// Together are smaller numbers of nodes, one further row each, with as many ranges as the last
	// of Shards.
	Together []int
	Depths   []int // further values of r, one row of the sizes each
	// Accounts are the numbers of accounts for which the phase sizes counts stale transactions by
	// r.
	Accounts []int
	Blocks   int   // measured blocks in each row
	Delays   []int // round-trip times to storage nodes in ms, one row of the prefetch phase each
	Phases   []string
	// PagedMB is the memory of the paged state in MiB, as in `[disk] cache_bytes`.
	PagedMB   int
	MoveMB    int   // bytes of the range in the phase move
	MoveTurns int   // moves there and back
	StartKeys []int // accounts in the phase start, one row each
	Starlingd string
	Seed      uint64
	// Quick makes everything so small that the run takes seconds. It tests the program; its figures
	// mean nothing.
	Quick bool
}

// The phases of a run.
const (
	phaseSizes    = "sizes"
	phaseApps     = "apps"
	phaseNodes    = "nodes"
	phaseJoin     = "join"
	phaseRange    = "range"
	phasePrefetch = "prefetch"
	phaseMove     = "move"
	phaseFeed     = "feed"
	phaseStart    = "start"
)

// Phases lists all phases.
var Phases = []string{phaseSizes, phaseApps, phaseNodes, phaseJoin, phaseRange, phasePrefetch, phaseMove, phaseFeed, phaseStart}

// Flags adds the flags of dsm.
func (o *Options) Flags(f *harness.Flags) {
	f.Int(&o.Keys, "keys", 1_000_000, 2000, math.MaxInt, "number of accounts in the state")
	f.Int(&o.Retain, "retain", 12, 0, 16, "r: depth to which a validator keeps the tree")
	f.Int(&o.Window, "window", 32, 1, 1000, "number of recent blocks whose changes a validator keeps")
	f.Ints(&o.Shards, "shards", []int{1, 2, 4, 8, 16}, 1, 64, "numbers of storage nodes, one row each")
	f.Ints(&o.Together, "together", []int{1, 4}, 1, 64, "smaller numbers of storage nodes with as many ranges as the last of --shards, one further row each")
	f.IntSliceVar(&o.Depths, "depths", []int{0, 8, 10, 14, 16}, "further values of r, from 0 to 16, one row of the sizes each")
	f.Ints(&o.Accounts, "accounts", nil, 2000, math.MaxInt, "numbers of accounts for which the phase sizes counts stale transactions, by r (default: none)")
	f.Int(&o.Blocks, "blocks", 60, 1, math.MaxInt, "measured blocks in each row")
	f.Ints(&o.Delays, "delays", []int{0, 20, 80}, 0, 1000, "added round-trip times to storage nodes, in ms, one row of the prefetch phase each")
	f.Names(&o.Phases, "phases", Phases, Phases, "phases to run")
	f.Int(&o.PagedMB, "paged-mb", 64, 16, math.MaxInt, "memory of the paged state, in MiB")
	f.Int(&o.MoveMB, "move-mb", 100, 1, 10_000, "values of the range that the phase move moves, in MB")
	f.Int(&o.MoveTurns, "move-turns", 3, 1, 1000, "moves there and back in the phase move")
	f.Ints(&o.StartKeys, "start-keys", []int{million, tenMillion}, 2000, math.MaxInt, "numbers of accounts in the phase start, one row each")
	f.Program(&o.Starlingd, "starlingd")
	f.Seed(&o.Seed)
	f.BoolVar(&o.Quick, "quick", false, "run for seconds on a few keys, as a test: the figures mean nothing")
	f.Also(func() error {
		if o.Quick {
			f.Unless("keys", "20000", "window", "4", "shards", "1,3", "depths", "0,8", "blocks", "4", "delays", "0,20", "move-mb", "1", "move-turns", "1", "start-keys", "3000,20000")
		}
		for _, r := range o.Depths {
			if r < 0 || r > 16 {
				return fmt.Errorf("--depths has %d, each must be from 0 to 16", r)
			}
		}
		if len(o.Phases) == 0 {
			return fmt.Errorf("--phases is empty, try %s", strings.Join(Phases, ","))
		}
		return nil
	})
}

func (o *Options) has(phase string) bool { return slices.Contains(o.Phases, phase) }

// spec returns the workload of the run.
func (o *Options) spec() spec {
	s := spec{Keys: o.Keys, Signers: 20_000, Transfers: 1_000, Seed: o.Seed}
	if o.Quick {
		s.Signers, s.Transfers = 200, 50
	}
	return s
}

// ages returns the ages of multiproofs to measure, in blocks, from 0 to the window.
func (o *Options) ages() []int {
	ages := []int{0}
	for a := 1; a < o.Window; a *= 2 {
		ages = append(ages, a)
		if a == 4 && o.Window > 5 {
			ages = append(ages, 5)
		}
	}
	return append(ages, o.Window)
}

// warmUp returns the number of blocks after which a validator drops as many nodes as it fetches.
func (o *Options) warmUp() int { return 2 * o.Window }
