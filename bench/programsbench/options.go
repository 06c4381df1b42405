package programsbench

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/workload"
)

// Options configure a run.
type Options struct {
	Accounts int // that hold the token
	Keys     int // of the puts
	Shares   []int
	BlockTxs int // per block at most
	Blocks   int // in a round
	Rounds   int
	Phases   []string
	Seed     uint64

	PagedAccounts int // in the phase paged

	// Options for networks.
	NetKeys   int // of the puts
	NetShares []int
	NetRounds int
	Items     int           // of the phase reads
	Moves     []int         // shares of the phase reads
	Seconds   int           // of a round
	Workers   int           // accounts that send
	Batch     int           // transactions of an account in flight
	Delay     time.Duration // one way, of the phase wan
	Retain    int           // r: depth to which a sharded validator keeps the tree
	Starlingd string

	// Options for the phase grid.
	GridRetain   []int // values of r
	GridGateways []int // numbers of gateways

	// Quick makes everything so small that the run takes seconds. It tests the program; its figures
	// mean nothing.
	Quick bool
}

// The phases of a run.
const (
	phaseApp     = "app"
	phaseNetwork = "network"
	phaseGets    = "gets"
	phaseReads   = "reads" // on the sharded network of phaseNetwork, as gets
	phasePaged   = "paged"
	phaseWAN     = "wan" // the sharded network of phaseNetwork again, with delays
	phaseGrid    = "grid"
)

// Phases lists all phases.
var Phases = []string{phaseApp, phaseNetwork, phaseGets, phaseReads, phaseWAN, phaseGrid, phasePaged}

// Flags adds the flags of programs.
func (o *Options) Flags(f *harness.Flags) {
	f.Int(&o.Accounts, "accounts", 10_000, 2, 10_000_000, "number of accounts that hold the token")
	f.Int(&o.Keys, "keys", 100_000, workload.MinKeys, math.MaxInt, "number of keys that puts write")
	f.Ints(&o.Shares, "shares", []int{0, 15, 100}, 0, 100, "shares of transfers, in percent; the other transactions put one key")
	f.Int(&o.BlockTxs, "block-txs", 1000, 1, 10_000, "transactions in a block at most; the gas of a block may allow fewer transfers")
	f.Int(&o.Blocks, "blocks", 20, 1, 10_000, "measured blocks in a round")
	f.Int(&o.Rounds, "rounds", 7, 1, 1000, "number of rounds; each measures every share")
	f.Names(&o.Phases, "phases", Phases, Phases, "phases to run")
	f.Int(&o.PagedAccounts, "paged-accounts", 100_000, 2, 10_000_000, "number of accounts that hold the token in the phase paged")
	f.Int(&o.NetKeys, "net-keys", 20_000, workload.MinKeys, math.MaxInt, "number of keys that puts write on networks")
	f.Ints(&o.NetShares, "net-shares", []int{15, 100}, 0, 100, "shares of transfers on networks, in percent")
	f.Int(&o.NetRounds, "net-rounds", 3, 1, 1000, "number of rounds on each network")
	f.Int(&o.Items, "items", 2000, 1, 1_000_000, "number of items that accounts move to each other in the phase reads")
	f.Ints(&o.Moves, "moves", []int{15, 100}, 1, 100, "shares of moves of items in the phase reads, in percent; the other calls are transfers")
	f.Int(&o.Seconds, "seconds", 10, 1, 3600, "duration of a round on a network, in seconds")
	f.Int(&o.Workers, "workers", 64, 1, 1000, "number of accounts that send transactions to a network")
	f.Int(&o.Batch, "batch", 24, 1, 100, "transactions of an account in flight")
	f.Time(&o.Delay, "delay", 40*time.Millisecond, time.Millisecond, time.Second,
		"delay in the phase wan, one way, between every two validators and between validators and storage nodes")
	f.Int(&o.Retain, "retain", 12, 0, 16, "r: depth to which a sharded validator keeps the tree")
	f.Ints(&o.GridRetain, "grid-retain", []int{0, 4, 8, 12, 16}, 0, 16, "values of r in the phase grid, one network each")
	f.Ints(&o.GridGateways, "grid-gateways", []int{1, 2, 4}, 1, 16, "numbers of gateways in the phase grid, one column each")
	f.Program(&o.Starlingd, "starlingd")
	f.Seed(&o.Seed)
	f.BoolVar(&o.Quick, "quick", false, "run for seconds with few keys, as a test: the figures mean nothing")
	f.Also(func() error {
		if o.Quick {
			f.Unless("accounts", "100", "keys", "2000", "block-txs", "100", "blocks", "2", "rounds", "2", "paged-accounts", "500", "net-keys", "2000", "net-rounds", "1", "items", "8", "moves", "100", "seconds", "2", "workers", "8", "batch", "4", "grid-retain", "12", "grid-gateways", "1,2")
		}
		if o.Workers > o.Accounts {
			return fmt.Errorf("--workers is %d, there are %d --accounts", o.Workers, o.Accounts)
		}
		if len(o.Phases) == 0 {
			return fmt.Errorf("--phases is empty, try %s", strings.Join(Phases, ","))
		}
		return nil
	})
}

func (o *Options) has(phase string) bool { return slices.Contains(o.Phases, phase) }
