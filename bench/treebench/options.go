package treebench

import (
	"github.com/starling-kv/starling/bench/contestant"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/workload"
)

// Options configure a run.
type Options struct {
	Keys         int
	Batch        int
	Versions     int // without an export, and the same number during one
	IAVLVersions int // Versions for IAVL v1, which is slow
	Against      []string
	Index        bool // also measure Starling with a hash index
	Seed         uint64
	ExportRate   float64 // limit of a concurrent export, in MB/s of leaf records
	Exports      int     // exports and verified imports per contestant
}

// Flags adds the flags of tree. Key identities have 32 bits, like memiavl's sizes.
func (o *Options) Flags(f *harness.Flags) {
	f.Int(&o.Keys, "keys", 1_000_000, workload.MinKeys, 200_000_000, "number of keys to load")
	f.Int(&o.Batch, "batch", 10_000, 1, 1_000_000, "keys per batch of the load")
	f.Int(&o.Versions, "versions", 2_000, 1, 1_000_000, "number of versions without an export, and again during one")
	f.Names(&o.Against, "against", []string{"iavl", "memiavl"}, contestant.Names[1:], "peers: iavl, memiavl; empty for none")
	f.BoolVar(&o.Index, "index", true, "also measure Starling with a hash index")
	f.Seed(&o.Seed)
	f.Int(&o.IAVLVersions, "iavl-versions", 200, 1, 1_000_000, "number of versions for IAVL v1, whose versions take a second; limited to --versions")
	f.Float(&o.ExportRate, "export-rate", 32, 0.001, 10_000, "rate of an export during commits, in MB/s of leaf records")
	f.Int(&o.Exports, "exports", 5, 0, 1_000, "exports and verified imports per contestant (memiavl's take a minute at ten million keys)")
}

func (o Options) spec() workload.Spec {
	return workload.Spec{Seed: o.Seed, Keys: o.Keys, Batch: o.Batch}
}

// versions returns the number of versions that a contestant makes without an export, and again
// during one.
func (o Options) versions(name string) int {
	if name == "iavl" {
		return min(o.IAVLVersions, o.Versions)
	}
	return o.Versions
}

// contestants returns the names of all contestants, Starling first.
func (o Options) contestants() []string {
	names := contestant.Names[:1:1]
	if o.Index {
		names = append(names, contestant.Indexed)
	}
	return append(names, o.Against...)
}
