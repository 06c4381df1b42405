package syncbench

import (
	"fmt"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/workload"
)

// Names of the contestants. The peers with which Starling can be compared are last.
const (
	nameStarling      = "starling"
	namePaged         = "paged"        // Starling, with a joiner that pages its state
	nameDefaultChunks = "1 MiB chunks" // Starling with default chunks, if the run's limit differs

	nameSDK     = "sdk"
	nameMemiavl = "memiavl"
)

// Peers are the names that Options.Against accepts.
var Peers = []string{nameSDK, nameMemiavl}

// Options configure a run.
type Options struct {
	Keys    int
	Seed    uint64
	Against []string
	Repeat  int // number of joins of Starling and of memiavl
	// SDKRepeat is the number of restores of the SDK's store, which are slow; it is limited to
	// Repeat.
	SDKRepeat int
	// ChunkBytes is the chunk limit. If it is not the default, the same keys are also joined in
	// chunks of the default limit.
	ChunkBytes uint64
	SDK        string // path of the built program of bench/sdk
}

// The memory of a paged joiner is a quarter of the state, or the minimum that a node accepts.
const (
	pagedPart  = 4
	leastPaged = 16 << 20
	pagedJoins = 3 // maximum: only its memory matters
)

const batch = 10_000 // keys per version of the load

// Flags adds the flags of sync.
func (o *Options) Flags(f *harness.Flags) {
	keys(f, &o.Keys)
	f.Names(&o.Against, "against", Peers, Peers, "peers: sdk (whose load takes two minutes), memiavl; empty for none")
	f.Int(&o.Repeat, "repeat", 5, 1, 100, "number of joins of Starling and of memiavl; the result has their medians")
	f.Int(&o.SDKRepeat, "sdk-repeat", 3, 1, 100, "number of restores of the SDK's store; limited to --repeat")
	f.Uint64Var(&o.ChunkBytes, "chunk-bytes", avlstar.DefaultChunkBytes, "chunk limit in bytes; if it is not the default, the default is also measured")
	f.Seed(&o.Seed)
	f.Program(&o.SDK, "sdk")
	f.Also(func() error {
		if o.ChunkBytes < 1 || o.ChunkBytes > avlstar.MaxChunkBytes {
			return fmt.Errorf("--chunk-bytes is %d, it must be from 1 to %d", o.ChunkBytes, avlstar.MaxChunkBytes)
		}
		return nil
	})
}

// keys adds --keys. Key identities have 32 bits, like memiavl's sizes.
func keys(f *harness.Flags, p *int) {
	f.Int(p, "keys", 1_000_000, workload.MinKeys, 200_000_000, "number of keys in the state")
}

func specOf(keys int, seed uint64) workload.Spec {
	return workload.Spec{Seed: seed, Keys: keys, Batch: batch}
}
