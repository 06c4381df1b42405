package storagebench

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/starling-kv/starling/bench/harness"
)

// Options configure a run.
type Options struct {
	Keys        int
	Blocks      int
	TxsPerBlock int
	Budget      int64 // bytes of memory; 0: a quarter of the state
	NodeShare   float64
	Cold        bool // empty the page cache before each cell of reads
	Queries     int  // measured queries per cell, after the same number of warm-up queries
	Against     []string
	Only        []string // parts to run; empty: all
	Seed        uint64
}

// Parts of a run.
const (
	PartWrite    = "write"
	PartReads    = "reads"
	PartLocality = "locality"
	PartCache    = "cache"
	PartRecovery = "recovery"
	PartCommit   = "commit"
	PartPaged    = "paged"
)

// Parts are all parts, in order.
var Parts = []string{PartWrite, PartReads, PartLocality, PartCache, PartRecovery, PartCommit, PartPaged}

// Peers are the baselines; ratios are relative to mixed. The default is defaultPeers.
var (
	Peers        = []string{nameMixed, nameLevel, nameGethHash, nameGethLevel, nameGethRow, nameGethColumn, nameGethPath}
	defaultPeers = []string{nameMixed, nameLevel}
)

const (
	minBudget = 256 << 10
	// stateOverBudget is the minimum ratio of state to budget. Below it, too much of the state fits
	// into the caches.
	stateOverBudget = 4

	loadStep = 20_000 // keys in a step of the load, unless that gives too many or too few steps
	minSteps = 10
	maxSteps = 200
	// nodeWindow is the number of versions that the node layout keeps, like the SDK with pruning
	// "custom" and keep-recent 100.
	nodeWindow = 100
)

// Flags adds the flags of storage.
func (o *Options) Flags(f *harness.Flags) {
	var quick bool
	f.Int(&o.Keys, "keys", 1_000_000, 2_000, 100_000_000, "number of accounts before the first block")
	f.Int(&o.Blocks, "blocks", 1_000, 1, 1_000_000, "number of blocks to replay")
	f.Int(&o.TxsPerBlock, "txs-per-block", 1_000, 20, 50_000_000, "transactions per block; each changes one account")
	f.Int64Var(&o.Budget, "budget", 0, "memory of each contestant in bytes (default: a quarter of the state)")
	f.Float(&o.NodeShare, "node-share", 0.5, 0, 0.9, "share of the caches for decoded nodes, in layouts with IAVL's nodes")
	f.BoolVar(&o.Cold, "cold", false, "drop the databases from the system's page cache before each cell of reads (Linux)")
	f.Int(&o.Queries, "queries", 10_000, 1, math.MaxInt, "measured queries per cell of a table, after the same number of warm-up queries")
	f.Names(&o.Against, "against", defaultPeers, Peers, "peers: "+strings.Join(Peers, ", ")+"; empty for none")
	f.Names(&o.Only, "only", nil, Parts, "parts: "+strings.Join(Parts, ", ")+" (default: all)")
	f.BoolVar(&quick, "quick", false, "use 100,000 keys, 100 blocks and 2,000 queries, for a test run of two or three minutes")
	f.Seed(&o.Seed)
	f.Also(func() error {
		if quick {
			f.Unless("keys", "100000", "blocks", "100", "queries", "2000")
		}
		state := int64(o.Keys) * (keyBytes + valueBytes)
		switch {
		case o.TxsPerBlock > o.Keys/2:
			return fmt.Errorf("--txs-per-block is %d, it must be at most half the keys", o.TxsPerBlock)
		case o.Budget != 0 && o.Budget < minBudget:
			return fmt.Errorf("--budget is %d bytes, it must be at least %d (0: a quarter of the state)", o.Budget, minBudget)
		case o.Budget == 0 && state/stateOverBudget < minBudget:
			return fmt.Errorf("a quarter of the state of %d keys is too little memory for a database: use more --keys", o.Keys)
		case o.Budget > state/stateOverBudget:
			return fmt.Errorf("--budget is %d bytes, but the state of %d keys has %d: it must be at least %d times the budget", o.Budget, o.Keys, state, stateOverBudget)
		}
		return nil
	})
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
		Window: nodeWindow, NodeShare: o.NodeShare, Geth: slices.ContainsFunc(o.Against, isGeth),
	}
}

func isGeth(contestant string) bool { return nodeKeys[contestant] != nil }

// wants reports whether any of these parts is to be measured.
func (o Options) wants(parts ...string) bool {
	return len(o.Only) == 0 || slices.ContainsFunc(parts, func(p string) bool { return slices.Contains(o.Only, p) })
}

// contestants returns the peers and, if the breakdown is measured, its steps; Starling is last.
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
