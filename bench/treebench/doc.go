// Package treebench compares authenticated trees side by side in one run.
//
//	       parent (run.go)                  one process per contestant (child.go)
//	┌──────────────────────────┐  line-JSON  ┌────────────────────────────────┐
//	│ phases in small slices:  │────────────▶│ workload ─▶ contestant ─▶ clock│ starling   also measures the floor
//	│  load     10 batches     │             ├────────────────────────────────┤
//	│  versions 50, 50 beside  │────────────▶│ the same operations            │ memiavl    frozen while others
//	│           an export, …   │             ├────────────────────────────────┤            work (package harness)
//	│  memory · get · proof    │────────────▶│ the same operations            │ iavl
//	│  export and import       │             └────────────────────────────────┘ memiavl mapped   from here on: a snapshot of the load
//	└──────────┬───────────────┘
//	           ▼
//	Result (result.go) ─▶ table.go · targets.go · JSON
//
// One process runs at a time, the others are stopped (SIGSTOP), so no garbage collector or
// compaction runs in another contestant's time. Slices of all contestants alternate, so that the
// machine's noise affects all alike. Each process makes the seeded operations itself, outside the
// timed part.
//
// The floor (floor.go) is the time for the hashes of a commit, computed in bulk with the best
// kernel on one core: no tree with these hashes can be faster without more cores. Beside it stands
// the walk: the cache misses on the changed paths, at the latency of this memory.
package treebench
