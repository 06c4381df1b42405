// Package syncbench compares how a new node gets a state: from a peer's, until it is verified and
// durable.
//
//	           parent (run.go): one join at a time, in turns; the processes of the others are stopped
//	              │                          │                             │
//	    ┌─────────┴─────────┐       ┌────────┴────────┐        ┌───────────┴────────────┐
//	    │ server ──TCP──▶   │       │ mapped snapshot │        │ sdkstore, built before │
//	    │ joiner ─▶ disk    │       │ export ─pipe─▶  │        │ snapshot files ─▶      │
//	    │ two processes     │       │ import ─▶ disk  │        │ restore ─▶ goleveldb   │
//	    └─────────┬─────────┘       └────────┬────────┘        └───────────┬────────────┘
//	              ▼                          ▼                             ▼
//	floor (floor.go): loopback · hashes · disk ─▶ Result (result.go) ─▶ table.go · goals.go · JSON
//
// All get the same seeded keys; loading them is not timed, nor is making a snapshot. Only
// Starling's figure includes a network: the peers hand their bytes over within one process, which
// is new for each of memiavl's joins.
//
// Byzantine (byzantine.go) measures a join from many peers, some of which lie. Hiccup (hiccup.go)
// measures the commits of a validator while nodes join from it.
package syncbench
