package e2ebench

import (
	"context"
	"errors"
	"fmt"
	"time"

	cfg "github.com/cometbft/cometbft/config"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/network"
)

// Names of the networks.
const (
	nameStarling = "starling"
	nameKVStore  = "kvstore"
)

// Options configure a run.
type Options struct {
	Network
	Rounds   int
	Seconds  int      // per load and round
	Loads    []string // of Loads
	Rate     int      // tx/s for the latencies; 0: half the slower network's rate
	KVStore  string
	CometBFT string // path of a built program
}

// Flags adds the flags of e2e.
func (o *Options) Flags(f *harness.Flags) {
	f.Int(&o.Rounds, "rounds", 5, 1, 100, "number of rounds; each runs every load on every network")
	f.Int(&o.Seconds, "seconds", 15, 2, 3600, "seconds of each load in each round, and of its latency measurement")
	f.Names(&o.Loads, "loads", Loads, Loads, "loads: own (CometBFT's loadtime: one key), distinct")
	f.Int(&o.Rate, "rate", 0, 0, 1_000_000, "transactions per second for the latencies (0: half the rate of the slower network)")
	f.OneOf(&o.KVStore, "kvstore", []string{"persistent_kvstore", "kvstore"}, "CometBFT's kvstore, on goleveldb or in memory")
	f.Program(&o.CometBFT, "cometbft")
	o.flags(f, 1)
	o.inFlight(f, usualMempoolTxs)
	o.txBytes(f, 256)
	f.Also(func() error {
		if len(o.Loads) == 0 {
			return errors.New("--loads names no load")
		}
		return nil
	})
}

// Network is the configuration that all networks share.
type Network struct {
	Validators    int
	TimeoutCommit time.Duration // pause between blocks
	InFlight      int           // maximum number of transactions sent but not yet in a block
	TxBytes       int
	Indexer       string // kv or null
	Starlingd     string // path of a built program
}

const (
	maxValidators = 16
	// usualMempoolTxs is CometBFT's default for mempool.size. maxInFlight is below it, so that no
	// transaction is rejected.
	usualMempoolTxs = 5_000
	maxInFlight     = 4_500
	minTxBytes      = 160 // loadtime's fields as hexadecimal digits, without padding
	maxTxBytes      = 64 << 10

	// roomForTx is the transaction limit that `starlingd init` writes; the limit of a request body
	// is twice that.
	roomForTx = 4 << 20
)

// flags adds the flags that all benchmarks have; inFlight and txBytes add one for those in which it
// has an effect. least is the minimum number of validators.
func (n *Network) flags(f *harness.Flags, least int) {
	f.Int(&n.Validators, "validators", 4, least, maxValidators, "number of validators in a network")
	f.Time(&n.TimeoutCommit, "timeout-commit", time.Second, 0, time.Minute, "pause between blocks (default: CometBFT's)")
	f.OneOf(&n.Indexer, "indexer", []string{"kv", "null"}, "transaction indexer")
	f.Program(&n.Starlingd, "starlingd")
}

func (n *Network) inFlight(f *harness.Flags, mempool int) {
	f.Int(&n.InFlight, "in-flight", 4000, 1, maxInFlight, fmt.Sprintf("maximum number of pending transactions (a mempool holds %s)", harness.Group(mempool)))
}

func (n *Network) txBytes(f *harness.Flags, value int) {
	f.Int(&n.TxBytes, "tx-bytes", value, minTxBytes, maxTxBytes, "length of a transaction")
}

// configure sets what must be equal in all networks: CometBFT's defaults, and a mempool that
// accepts the largest transaction of starlingd.
func (n *Network) configure(c *cfg.Config) {
	standard := cfg.DefaultConfig()
	c.Mempool, c.Consensus = standard.Mempool, standard.Consensus
	c.Mempool.MaxTxBytes = roomForTx
	c.RPC.MaxBodyBytes = 2 * roomForTx
	c.Consensus.TimeoutCommit = n.TimeoutCommit
	c.TxIndex.Indexer = n.Indexer
}

// kind is a program that a network can consist of.
type kind struct {
	name string
	network.Options
}

func (n *Network) starling(program string, appState any) kind {
	return kind{nameStarling, network.Options{Program: program, AppState: appState, Validators: n.Validators, Edit: n.configure}}
}

func (n *Network) kvstore(program, app string) kind {
	return kind{nameKVStore, network.Options{
		Program: program, AppState: struct{}{}, Validators: n.Validators,
		Init: func(_, dir string) []string { return []string{"init", "--home", dir} },
		Edit: func(c *cfg.Config) {
			n.configure(c)
			c.ProxyApp = app
		},
	}}
}

// start starts a network of this kind.
func (k kind) start(ctx context.Context, dir string) (*network.Network, error) {
	k.Dir = dir
	return network.Start(ctx, k.Options)
}
