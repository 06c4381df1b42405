package syncbench

import (
	"fmt"
	"slices"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/bench/workload"
)

// Contestants; the peers that Starling can be compared with are last.
const (
	nameStarling      = "starling"
	namePaged         = "paged"        // Starling, whose joiner pages its state
	nameDefaultChunks = "1 MiB chunks" // Starling, where its own chunks have another limit

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
	Repeat  int // joins of Starling and of memiavl
	// SDKRepeat is the number of restores of the SDK's store, which take long; at most Repeat are
	// made.
	SDKRepeat int
	// ChunkBytes is the limit of a chunk. If it is not the default, the same keys in chunks of the
	// default are joined as well.
	ChunkBytes uint64
	Dir        string // for databases; each run makes a folder in it
	SDK        string // the built program of bench/sdkstore; empty: built from its source
}

// A paged joiner has a quarter of the state as its memory, or the least that a node takes.
const (
	pagedPart  = 4
	leastPaged = 16 << 20
	pagedJoins = 3 // at most: it is measured for its memory
)

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
	if o.SDKRepeat < 1 || o.SDKRepeat > maxRepeat {
		return fmt.Errorf("--sdk-repeat is %d, it must be from 1 to %d", o.SDKRepeat, maxRepeat)
	}
	if o.ChunkBytes < 1 || o.ChunkBytes > avlstar.MaxChunkBytes {
		return fmt.Errorf("--chunk-bytes is %d, it must be from 1 to %d", o.ChunkBytes, avlstar.MaxChunkBytes)
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
