// Package treebench compares authenticated trees in one run.
//
//	       parent (run.go)                  one process per contestant (child.go)
//	┌──────────────────────────┐  line-JSON  ┌────────────────────────────────┐
//	│ phases in small slices:  │────────────▶│ workload ─▶ contestant ─▶ clock│ starling   also measures the floor
//	│  load     10 batches     │             ├────────────────────────────────┤
//	│  versions 50, 50 during  │────────────▶│ the same operations            │ memiavl    stopped while others
//	│           an export, …   │             ├────────────────────────────────┤            work (package harness)
//	│  memory · get · proof    │────────────▶│ the same operations            │ iavl
//	│  export and import       │             └────────────────────────────────┘ memiavl mapped   from here on: a snapshot of the load
//	└──────────┬───────────────┘
//	           ▼
//	Result (result.go) ─▶ table.go · targets.go · JSON
//
// One process runs at a time and the others are stopped (SIGSTOP), so no garbage collection or
// compaction runs in another contestant's time. Slices of all contestants alternate, so that noise
// on the machine affects all alike. Each process makes the seeded operations itself, outside the
// timed parts.
//
// The floor (floor.go) is the time for the hashes of a commit, computed in bulk with the best
// kernel on one core: no tree with these hashes can be faster without more cores. The walk is
// reported with it: the time of the cache misses on the changed paths, at the latency of this
// memory.
package treebench
