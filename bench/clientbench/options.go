package clientbench

import (
	"fmt"
	"time"

	"github.com/starling-kv/starling/bench/harness"
)

// Options configure a run against etcd.
type Options struct {
	common
	Keys       int // written before the measurement
	ValueBytes int
	RangeKeys  int // in one range
	Workers    int // concurrent operations
	Validators int // Starling's; etcd has three members
	EtcdStore  string
}

// common has the options of both benchmarks.
type common struct {
	Rounds        int
	Seconds       int           // for each operation or phase of a round
	TimeoutCommit time.Duration // pause between blocks
	Starlingd     string
}

func (n *common) flags(f *harness.Flags, seconds int) {
	f.Int(&n.Rounds, "rounds", 3, 1, 100, "number of rounds; each measures everything once")
	f.Int(&n.Seconds, "seconds", seconds, 1, 3600, "duration of each measurement in a round, in seconds")
	f.Time(&n.TimeoutCommit, "timeout-commit", time.Second, 0, time.Minute, "pause between blocks (default: CometBFT's)")
	f.Program(&n.Starlingd, "starlingd")
}

// Flags adds the flags of client.
func (o *Options) Flags(f *harness.Flags) {
	o.flags(f, 10)
	f.Int(&o.Keys, "keys", 10_000, 1, 10_000_000, "number of keys written before the measurement")
	f.Int(&o.ValueBytes, "value-bytes", 128, 16, 4096, "length of a value")
	f.Int(&o.RangeKeys, "range-keys", 100, 1, 1000, "number of keys in a range")
	f.Int(&o.Workers, "workers", 32, 1, 256, "number of concurrent operations")
	f.Int(&o.Validators, "validators", 3, 1, 16, "number of Starling validators (four are needed to survive one stopped or Byzantine validator)")
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
