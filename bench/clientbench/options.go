package clientbench

import (
	"fmt"
	"time"

	cfg "github.com/cometbft/cometbft/config"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/node/config"
)

// Options configure a run against etcd.
type Options struct {
	common
	Keys       int // written before the measurement
	ValueBytes int
	RangeKeys  int // in one range
	Workers    int // concurrent operations
	Validators int // Starling's; etcd has three members
	Operations []string
	EtcdStore  string

	writers int // clients of puts, each with a key of its own; 0: one for all
}

// common has the options of both benchmarks.
type common struct {
	Rounds        int
	Seconds       int           // for each operation or phase of a round
	Network       string        // config.LAN or config.WAN: settings of the nodes
	TimeoutCommit time.Duration // pause between blocks; 0: that of Network
	Starlingd     string

	Endpoint string // of the nodes, for clients: endpointGRPC or endpointRPC

	delay time.Duration // one way, between every two validators
	fault fault         // of the last validator
}

// The endpoints of a node.
const endpointGRPC, endpointRPC = "grpc", "rpc"

// configure changes the settings of a node of Network.
func (n *common) configure(c *cfg.Config) {
	if n.TimeoutCommit > 0 {
		c.Consensus.TimeoutCommit = n.TimeoutCommit
	}
}

// pause returns the pause between blocks.
func (n *common) pause() time.Duration {
	c, a := config.DefaultCometBFT(), config.DefaultApp()
	config.Tune(config.Network(n.Network), c, &a)
	n.configure(c)
	return c.Consensus.TimeoutCommit
}

func (n *common) flags(f *harness.Flags, seconds int) {
	f.Int(&n.Rounds, "rounds", 3, 1, 100, "number of rounds; each measures everything once")
	f.Int(&n.Seconds, "seconds", seconds, 1, 3600, "duration of each measurement in a round, in seconds")
	f.OneOf(&n.Network, "network", []string{string(config.WAN), string(config.LAN)}, "settings of the nodes, as for starlingd init")
	f.Time(&n.TimeoutCommit, "timeout-commit", 0, 0, time.Minute, "pause between blocks (0: that of --network)")
	f.Program(&n.Starlingd, "starlingd")
}

// Flags adds the flags of client.
func (o *Options) Flags(f *harness.Flags) {
	o.flags(f, 10)
	f.OneOf(&o.Endpoint, "endpoint", []string{endpointGRPC, endpointRPC}, "endpoint of the nodes that clients use")
	f.Int(&o.Keys, "keys", 10_000, 1, 10_000_000, "number of keys written before the measurement")
	f.Int(&o.ValueBytes, "value-bytes", 128, 16, 4096, "length of a value")
	f.Int(&o.RangeKeys, "range-keys", 100, 1, 1000, "number of keys in a range")
	f.Int(&o.Workers, "workers", 32, 1, 256, "number of concurrent operations")
	f.Int(&o.Validators, "validators", 3, 1, 16, "number of Starling validators (four are needed to survive one stopped or Byzantine validator)")
	var names []string
	for _, op := range operations {
		names = append(names, op.name)
	}
	f.Names(&o.Operations, "operations", names, names, "operations to measure")
	f.Program(&o.EtcdStore, "etcdstore")
}

// WatchOptions configure a run with watchers.
type WatchOptions struct {
	common
	Watchers  int // of one key each; this many keys are written, in turn
	All       int // watchers of all keys
	Shared    bool
	Changes   int // per second
	TxChanges int // per transaction
	Heights   int // that a watcher catches up on
}

// Flags adds the flags of watch.
func (o *WatchOptions) Flags(f *harness.Flags) {
	o.flags(f, 60)
	f.Int(&o.Watchers, "watchers", 1000, 1, 10_000, "number of watchers of one key each; this many keys are written, in turn")
	f.Int(&o.All, "all", 10, 0, 1000, "number of watchers of all keys")
	f.BoolVar(&o.Shared, "shared", false, "all watchers share one client (default: one client per watcher)")
	f.Int(&o.Changes, "changes", 1000, 1, 1_000_000, "changes per second")
	f.Int(&o.TxChanges, "tx-changes", 10, 1, 1000, "changes per transaction")
	f.Int(&o.Heights, "heights", 10_000, 1, 90_000, "number of heights that a watcher catches up on, with 100 changes per block; a node keeps the events of 100,000 heights")
	f.Also(func() error {
		if o.Changes < o.TxChanges {
			return fmt.Errorf("--changes is %d, it must be at least --tx-changes, %d", o.Changes, o.TxChanges)
		}
		return nil
	})
}

// members is the number of etcd processes: three is the minimum that survives the loss of one.
const members = 3

// tolerated returns how many of n validators of equal power may stop or be Byzantine: fewer than a
// third.
func tolerated(n int) int { return (n - 1) / 3 }
