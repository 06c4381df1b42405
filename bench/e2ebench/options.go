package e2ebench

import (
	"fmt"
	"slices"
	"time"
)

// The networks.
const (
	nameStarling = "starling"
	nameKVStore  = "kvstore"
)

// KVStores are the variants of CometBFT's kvstore, by their names for --proxy_app: with goleveldb,
// and only in memory.
var KVStores = []string{"persistent_kvstore", "kvstore"}

// Options of a run.
type Options struct {
	Network
	Rounds  int
	Seconds int      // of each load in each round
	Loads   []string // of Loads
	Rate    int      // transactions a second for the latencies; 0: half the slower network's rate
	KVStore string   // of KVStores

	CometBFT string // a built cometbft; empty: built
}

// Network is the configuration that all networks share.
type Network struct {
	Validators    int
	TimeoutCommit time.Duration // pause between blocks
	InFlight      int           // limit of transactions sent and not yet in a block
	TxBytes       int
	Indexer       string // kv or null
	Dir           string // for the homes; each run makes a folder in it
	Starlingd     string // a built starlingd; empty: built
}

const (
	maxValidators = 16
	// maxInFlight is below a mempool's limit of 5,000 (mempool.size), so that none is refused.
	maxInFlight = 4_500
	minTxBytes  = 160 // loadtime's fields in hexadecimal digits, without padding
	maxTxBytes  = 64 << 10
)

// Check returns an error that names the flag that is out of range, and the range.
func (o Options) Check() error {
	if err := o.check(); err != nil {
		return err
	}
	switch {
	case o.Rounds < 1 || o.Rounds > 100:
		return fmt.Errorf("--rounds is %d, it must be from 1 to 100", o.Rounds)
	case o.Seconds < 2 || o.Seconds > 3600:
		return fmt.Errorf("--seconds is %d, it must be from 2 to 3600 (use 15 for meaningful figures)", o.Seconds)
	case o.Rate < 0 || o.Rate > 1_000_000:
		return fmt.Errorf("--rate is %d, it must be from 1 to 1000000 transactions a second, or 0: half the rate of the slower network", o.Rate)
	case !slices.Contains(KVStores, o.KVStore):
		return fmt.Errorf("--kvstore is %q, it must be %s", o.KVStore, names(KVStores))
	case len(o.Loads) == 0:
		return fmt.Errorf("--loads names none, it takes %s", names(Loads))
	}
	for i, name := range o.Loads {
		switch {
		case !slices.Contains(Loads, name):
			return fmt.Errorf("--loads names %q, it knows %s", name, names(Loads))
		case slices.Contains(o.Loads[:i], name):
			return fmt.Errorf("--loads names %s twice, once is enough", name)
		}
	}
	return nil
}

func (n Network) check() error {
	switch {
	case n.Validators < 1 || n.Validators > maxValidators:
		return fmt.Errorf("--validators is %d, it must be from 1 to %d", n.Validators, maxValidators)
	case n.TimeoutCommit < 0 || n.TimeoutCommit > time.Minute:
		return fmt.Errorf("--timeout-commit is %v, it must be from 0 to 1m", n.TimeoutCommit)
	case n.InFlight < 1 || n.InFlight > maxInFlight:
		return fmt.Errorf("--in-flight is %d, it must be from 1 to %d: a mempool takes 5,000 transactions", n.InFlight, maxInFlight)
	case n.TxBytes < minTxBytes || n.TxBytes > maxTxBytes:
		return fmt.Errorf("--tx-bytes is %d, it must be from %d to %d", n.TxBytes, minTxBytes, maxTxBytes)
	case n.Indexer != "kv" && n.Indexer != "null":
		return fmt.Errorf("--indexer is %q, it must be kv or null", n.Indexer)
	}
	return nil
}

func names(of []string) string {
	text := of[0]
	for _, name := range of[1:] {
		text += " or " + name
	}
	return text
}
