package treebench

import (
	"fmt"
	"slices"

	"github.com/starling-kv/starling/bench/contestant"
	"github.com/starling-kv/starling/bench/workload"
)

// Options of a run.
type Options struct {
	Keys         int
	Batch        int
	Versions     int // without an export, and as many beside one
	IAVLVersions int // the same for IAVL v1, which is slow
	Against      []string
	Index        bool // Starling with an index by hash takes part, too
	Seed         uint64
	ExportRate   float64 // MB/s of leaf records, the limit of a concurrent export
	Exports      int     // exports and verified imports of each
	Dir          string  // for databases; each run makes a folder in it
}

// Limits: identities of keys have 32 bits, and so have memiavl's sizes.
const (
	maxKeys     = 200_000_000
	maxBatch    = 1_000_000
	maxVersions = 1_000_000
	maxRate     = 10_000
	maxExports  = 1_000
)

// Check returns an error that names the flag that is out of range, and the range.
func (o Options) Check() error {
	switch {
	case o.Keys < workload.MinKeys || o.Keys > maxKeys:
		return fmt.Errorf("--keys is %d, it must be from %d to %d", o.Keys, workload.MinKeys, maxKeys)
	case o.Batch < 1 || o.Batch > maxBatch:
		return fmt.Errorf("--batch is %d, it must be from 1 to %d", o.Batch, maxBatch)
	case o.Versions < 1 || o.Versions > maxVersions:
		return fmt.Errorf("--versions is %d, it must be from 1 to %d (use 2000 for meaningful percentiles)", o.Versions, maxVersions)
	case o.IAVLVersions < 1 || o.IAVLVersions > maxVersions:
		return fmt.Errorf("--iavl-versions is %d, it must be from 1 to %d", o.IAVLVersions, maxVersions)
	case !(o.ExportRate > 0 && o.ExportRate <= maxRate):
		return fmt.Errorf("--export-rate is %v MB/s, it must be above 0 and at most %d", o.ExportRate, maxRate)
	case o.Exports < 0 || o.Exports > maxExports:
		return fmt.Errorf("--exports is %d, it must be from 0 to %d", o.Exports, maxExports)
	}
	for i, name := range o.Against {
		peers := contestant.Names[1:]
		if !slices.Contains(peers, name) {
			return fmt.Errorf("--against names %q, it knows %s and %s (empty: measure Starling alone)", name, peers[0], peers[1])
		}
		if slices.Contains(o.Against[:i], name) {
			return fmt.Errorf("--against names %s twice, once is enough", name)
		}
	}
	return nil
}

func (o Options) spec() workload.Spec {
	return workload.Spec{Seed: o.Seed, Keys: o.Keys, Batch: o.Batch}
}

// versions is the number of versions that a contestant makes without an export, and again beside
// one.
func (o Options) versions(name string) int {
	if name == "iavl" {
		return min(o.IAVLVersions, o.Versions)
	}
	return o.Versions
}

// contestants are the names of all that take part, Starling first.
func (o Options) contestants() []string {
	names := contestant.Names[:1:1]
	if o.Index {
		names = append(names, contestant.Indexed)
	}
	return append(names, o.Against...)
}
