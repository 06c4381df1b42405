package dsmbench

import (
	"fmt"
	"slices"
	"strings"
)

// Options of a run.
type Options struct {
	Keys   int   // accounts
	Retain int   // r: inner nodes of each way that a validator keeps
	Window int   // blocks for which it keeps what changed
	Shards []int // storage nodes, one row each
	Depths []int // r of further rows of the sizes
	Blocks int   // that count, in each row
	Phases []string
	// PagedMB is the memory of the paged state, as `[storage] memory_bytes`.
	PagedMB int
	Seed    uint64
	Dir     string
	// Quick makes everything so small that it takes seconds: a test of the program. Its figures
	// mean nothing.
	Quick bool
}

// Phases that can be measured.
const (
	phaseSizes = "sizes"
	phaseApps  = "apps"
	phaseNodes = "nodes"
	phaseJoin  = "join"
)

// Phases are all of them.
var Phases = []string{phaseSizes, phaseApps, phaseNodes, phaseJoin}

// Check returns an error that names the option that is wrong.
func (o *Options) Check() error {
	switch {
	case o.Keys < 2000:
		return fmt.Errorf("--keys is %d, it must be at least 2000", o.Keys)
	case o.Retain < 0 || o.Retain > 16:
		return fmt.Errorf("--retain is %d, it must be from 0 to 16", o.Retain)
	case o.Window < 1 || o.Window > 1000:
		return fmt.Errorf("--window is %d, it must be from 1 to 1000", o.Window)
	case o.Blocks < 1:
		return fmt.Errorf("--blocks is %d, it must be at least 1", o.Blocks)
	case o.PagedMB < 16:
		return fmt.Errorf("--paged-mb is %d, it must be at least 16", o.PagedMB)
	case len(o.Shards) == 0:
		return fmt.Errorf("--shards names none; try 1,4")
	}
	for _, n := range o.Shards {
		if n < 1 || n > 64 {
			return fmt.Errorf("--shards has %d, it must be from 1 to 64", n)
		}
	}
	for _, r := range o.Depths {
		if r < 0 || r > 16 {
			return fmt.Errorf("--depths has %d, it must be from 0 to 16", r)
		}
	}
	for i, p := range o.Phases {
		if !slices.Contains(Phases, p) {
			return fmt.Errorf("--phases has %q, it knows %s", p, strings.Join(Phases, ", "))
		}
		if slices.Contains(o.Phases[:i], p) {
			return fmt.Errorf("--phases has %s twice", p)
		}
	}
	if len(o.Phases) == 0 {
		return fmt.Errorf("--phases names none; try %s", strings.Join(Phases, ","))
	}
	return nil
}

func (o *Options) has(phase string) bool { return slices.Contains(o.Phases, phase) }

// spec is the workload of the run.
func (o *Options) spec() spec {
	s := spec{Keys: o.Keys, Signers: 20_000, Transfers: 1_000, Seed: o.Seed}
	if o.Quick {
		s.Signers, s.Transfers = 200, 50
	}
	return s
}

// ages returns the ages of bags, in blocks, from 0 to the window.
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

// warmUp is how many blocks it takes until what leaves memory is as much as what comes.
func (o *Options) warmUp() int { return 2 * o.Window }
