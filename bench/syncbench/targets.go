package syncbench

import (
	"fmt"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/opsbench"
)

// besideTreeMB is the target for the joiner's memory without its tree.
const besideTreeMB = 64

// joinTimes are the targets for joins of a Cosmos node, over the SDK's create and restore.
var joinTimes = map[string]float64{"goleveldb": 8, "pebbledb": 15}

// targets judges the joins of a result, and the commits of nodes. They are set for a million keys.
func (r *CosmosResult) targets() (t []harness.Target) {
	for _, engine := range Engines {
		f, measured := r.Engines[engine]
		if !measured {
			continue
		}
		t = append(t,
			harness.AtLeast(fmt.Sprintf("%s: a join at least %g× as fast as the SDK's create and restore", engine, joinTimes[engine]), joinTimes[engine], f.Times),
			harness.AtLeast(engine+": from a server that has served before, at least 20×", 20, harness.Ratio(f.SDKCreateS+f.SDKRestoreS, f.AgainS)),
			harness.Within(engine+": a manifest within 50 ms", 50, f.ManifestMS, "ms"),
			harness.Within(engine+": verification within 1 s of CPU time", 1, f.VerifyCPUS, "s"),
			harness.Within(engine+": at most 6 bytes per leaf without keys and values", 6, f.Overhead, "bytes"),
			harness.AtMost(engine+": at most 1.1× the bytes of the SDK's snapshot", 1.1, f.BytesX))
		if len(f.Commits) > 0 {
			t = append(t, harness.AtMost(engine+": p99 of Commit with a joiner at most 1.1× that of the unwrapped application", 1.1, f.CommitP99).OfBlocks(r.Commits, harness.FewBlocks))
		}
	}
	ours, measured := r.Stores[opsbench.Starling]
	if theirs, both := r.Stores[opsbench.MemiavlSynced]; measured && both {
		t = append(t, harness.AtLeast("a durable commit at least 4× as fast as memiavl's with a synced log", 4, harness.Ratio(theirs.CommitP50MS, ours.CommitP50MS)))
	}
	return t
}

// targets judges a result. Targets that were not measured are left out.
func (r *Result) targets() (g []harness.Target) {
	if r.SDK != nil {
		g = append(g, harness.AtLeast("at least 80× faster than the SDK's store restores", 80, harness.Ratio(r.SDKRestoreS, r.StarlingS)))
	}
	if r.Memiavl != nil {
		g = append(g, harness.AtLeast("at least 3× faster than memiavl", 3, harness.Ratio(r.MemiavlS, r.StarlingS)))
	}
	if d := r.DefaultChunks; d != nil {
		g = append(g, harness.AtMost("within 2× of the same keys in chunks of 1 MiB", 2, harness.Ratio(r.StarlingS, d.StarlingS)))
	}
	g = append(g, harness.AtMost("within 8× of the floor", 8, harness.Ratio(r.StarlingS, r.FloorS)))
	cpu := func(name string, most, seconds float64) {
		perMillion := harness.Ratio(seconds*1e6, float64(r.Keys))
		g = append(g, harness.Target{
			Name: fmt.Sprintf("%s at most %.3g s of CPU time per million keys", name, most), Met: perMillion <= most, Figure: perMillion, Measure: fmt.Sprintf("%.3g s", perMillion),
		})
	}
	if r.JoinerCPUS > 0 {
		cpu("the joiner takes", 1.1, r.JoinerCPUS)
	}
	if r.ServerCPUS > 0 {
		cpu("the server takes", 0.35, r.ServerCPUS)
	}
	memory := func(name string, bytes int64) {
		mb := float64(bytes) / 1e6
		g = append(g, harness.Target{Name: fmt.Sprintf("%s at most %d MB", name, besideTreeMB), Met: mb <= besideTreeMB, Figure: mb, Measure: fmt.Sprintf("%.0f MB", mb)})
	}
	if n := r.Starling.BesideTree; n > 0 {
		memory("the joiner's anonymous memory without its tree", n)
	}
	if p := r.Paged; p != nil {
		memory("a paged joiner's anonymous memory beyond its budget", p.BesideBudget)
	}
	return g
}
