package syncbench

import (
	"fmt"
	"slices"

	"github.com/starling-kv/starling/bench/workload"
)

// Peers that Starling can be compared with.
const (
	nameSDK     = "sdk"
	nameMemiavl = "memiavl"
)

// Peers are the names that Options.Against takes.
var Peers = []string{nameSDK, nameMemiavl}

// Options of a run.
type Options struct {
	Keys    int
	Seed    uint64
	Against []string
	Repeat  int    // joins of each contestant; the SDK's store makes only one, which is long enough
	Dir     string // for databases; each run makes a folder in it
	SDK     string // the built program of bench/sdkstore; empty: built from its source
}

// Limits: identities of keys have 32 bits, and so have memiavl's sizes.
const (
	maxKeys   = 200_000_000
	maxRepeat = 100
	batch     = 10_000 // keys in a version of the load
)

// Check returns an error that names the flag that is out of range, and the range.
func (o Options) Check() error {
	if err := checkKeys(o.Keys); err != nil {
		return err
	}
	if o.Repeat < 1 || o.Repeat > maxRepeat {
		return fmt.Errorf("--repeat is %d, it must be from 1 to %d", o.Repeat, maxRepeat)
	}
	for i, name := range o.Against {
		if !slices.Contains(Peers, name) {
			return fmt.Errorf("--against names %q, it knows %s and %s (empty: measure Starling alone)", name, nameSDK, nameMemiavl)
		}
		if slices.Contains(o.Against[:i], name) {
			return fmt.Errorf("--against names %s twice, once is enough", name)
		}
	}
	return nil
}

func checkKeys(keys int) error {
	if keys < workload.MinKeys || keys > maxKeys {
		return fmt.Errorf("--keys is %d, it must be from %d to %d", keys, workload.MinKeys, maxKeys)
	}
	return nil
}

func specOf(keys int, seed uint64) workload.Spec {
	return workload.Spec{Seed: seed, Keys: keys, Batch: batch}
}
