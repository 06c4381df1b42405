package storagebench

import (
	"fmt"
	"slices"
)

// Options of a run.
type Options struct {
	Keys        int
	Blocks      int
	TxsPerBlock int
	Budget      int64 // bytes; 0: a quarter of the state
	NodeShare   float64
	Cold        bool // the page cache is emptied before each cell of reads
	Queries     int  // measured in each cell, after as many that only warm the caches
	Against     []string
	Only        []string // parts; empty: all
	Seed        uint64
	Dir         string // for databases; each run makes a folder in it
}

// Parts of a run.
const (
	PartWrite    = "write"
	PartReads    = "reads"
	PartCache    = "cache"
	PartRecovery = "recovery"
	PartCommit   = "commit"
	PartPaged    = "paged"
)

// Parts are all parts, in order.
var Parts = []string{PartWrite, PartReads, PartCache, PartRecovery, PartCommit, PartPaged}

// Peers are the baselines; ratios refer to mixed.
var Peers = []string{nameMixed, nameLevel}

const (
	minKeys, maxKeys = 2_000, 100_000_000
	minTxs           = 20
	minBudget        = 256 << 10
	// stateOverBudget is the least ratio of state to budget: below it, too much of the state fits
	// into the caches.
	stateOverBudget = 4

	loadStep = 20_000 // keys in a step of the load, unless that makes too many or too few
	minSteps = 10
	maxSteps = 200
	// nodeWindow is the number of versions that the node layout keeps, as the SDK does with pruning
	// "custom" and keep-recent 100.
	nodeWindow = 100
)

// Check returns an error that names the flag that is out of range, and the range.
func (o Options) Check() error {
	state := int64(o.Keys) * (keyBytes + valueBytes)
	switch {
	case o.Keys < minKeys || o.Keys > maxKeys:
		return fmt.Errorf("--keys is %d, it must be from %d to %d", o.Keys, minKeys, maxKeys)
	case o.Blocks < 1 || o.Blocks > 1_000_000:
		return fmt.Errorf("--blocks is %d, it must be from 1 to 1000000", o.Blocks)
	case o.TxsPerBlock < minTxs || o.TxsPerBlock > o.Keys/2:
		return fmt.Errorf("--txs-per-block is %d, it must be from %d to half the keys", o.TxsPerBlock, minTxs)
	case o.Budget != 0 && o.Budget < minBudget:
		return fmt.Errorf("--budget is %d bytes, it must be at least %d (0: a quarter of the state)", o.Budget, minBudget)
	case o.Budget == 0 && state/stateOverBudget < minBudget:
		return fmt.Errorf("a quarter of the state of %d keys is too little memory for a database: use more --keys", o.Keys)
	case o.Budget > state/stateOverBudget:
		return fmt.Errorf("--budget is %d bytes, but the state of %d keys has %d: it must be at least %d times the budget", o.Budget, o.Keys, state, stateOverBudget)
	case !(o.NodeShare >= 0 && o.NodeShare <= 0.9):
		return fmt.Errorf("--node-share is %v, it must be from 0 to 0.9", o.NodeShare)
	case o.Queries < 1:
		return fmt.Errorf("--queries is %d, it must be at least 1", o.Queries)
	}
	for i, name := range o.Against {
		if !slices.Contains(Peers, name) {
			return fmt.Errorf("--against names %q, it knows %s and %s (empty: measure Starling alone)", name, Peers[0], Peers[1])
		}
		if slices.Contains(o.Against[:i], name) {
			return fmt.Errorf("--against names %s twice, once is enough", name)
		}
	}
	for _, part := range o.Only {
		if !slices.Contains(Parts, part) {
			return fmt.Errorf("--only names the part %q, there are %v", part, Parts)
		}
	}
	return nil
}

func (o Options) budget() int64 {
	if o.Budget != 0 {
		return o.Budget
	}
	return int64(o.Keys) * (keyBytes + valueBytes) / stateOverBudget
}

func (o Options) spec() Spec {
	return Spec{
		Seed: o.Seed, Keys: o.Keys, LoadSteps: min(max(o.Keys/loadStep, minSteps), maxSteps), Blocks: o.Blocks, Txs: o.TxsPerBlock,
		Window: nodeWindow, NodeShare: o.NodeShare,
	}
}

// wants reports whether a part is to be measured.
func (o Options) wants(parts ...string) bool {
	return len(o.Only) == 0 || slices.ContainsFunc(parts, func(p string) bool { return slices.Contains(o.Only, p) })
}

// contestants are the peers and, if the breakdown is measured, its steps; Starling is the last.
func (o Options) contestants() []string {
	names := slices.Clone(o.Against)
	if o.wants(PartWrite) && slices.Contains(o.Against, nameMixed) {
		names = append(names, nameMixedTuned, nameStarlingTuned)
	}
	if o.wants(PartWrite, PartReads) {
		names = append(names, nameZones, nameLeaves)
	}
	return append(names, nameStarling)
}
