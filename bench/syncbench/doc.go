// Package syncbench compares how a new node gets a state, from a peer's state until it is verified
// and durable.
//
//	           parent (run.go): one join at a time, in turns; the processes of the others are stopped
//	              │                          │                             │
//	    ┌─────────┴─────────┐       ┌────────┴────────┐        ┌───────────┴────────────┐
//	    │ server ──TCP──▶   │       │ mapped snapshot │        │ sdkstore, built before │
//	    │ joiner ─▶ disk    │       │ export ─pipe─▶  │        │ snapshot files ─▶      │
//	    │ two processes     │       │ import ─▶ disk  │        │ restore ─▶ goleveldb   │
//	    └─────────┬─────────┘       └────────┬────────┘        └───────────┬────────────┘
//	              ▼                          ▼                             ▼
//	floor (floor.go): loopback · hashes · disk ─▶ Result (result.go) ─▶ table.go · targets.go · JSON
//
// All contestants have the same seeded keys. Loading them and making a snapshot are not timed. Only
// Starling's figure includes a network: for the others, source and target share one process, which
// is a new one for each of memiavl's joins.
//
// byzantine.go measures a join from many peers, some of them Byzantine. hiccup.go measures the
// commits of a validator while nodes join from it. siege.go measures a join, and a validator, under
// attack. sharded.go measures a network of sharded validators and storage nodes under attack:
//
//	4 validators ◀──▶ 6 storage nodes ◀── witnesses ── witnessprobe.go
//	  ▲      ▲          ▲          ▲
//	 load  joiner     strangers.go, a process with many loopback addresses
package syncbench
