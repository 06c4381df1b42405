// Package syncbench compares how a new node gets a state, from a peer's to its own, verified and durable.
//
//	           parent (run.go): one join at a time; Starling and memiavl in turns
//	              │                          │                             │
//	    ┌─────────┴─────────┐       ┌────────┴────────┐        ┌───────────┴────────────┐
//	    │ server ──TCP──▶   │       │ memiavl         │        │ sdkstore, built before │
//	    │ joiner ─▶ disk    │       │ export ─▶       │        │ snapshot files ─▶      │
//	    │ two processes     │       │ import ─▶ disk  │        │ restore ─▶ goleveldb   │
//	    └─────────┬─────────┘       └────────┬────────┘        └───────────┬────────────┘
//	              ▼                          ▼                             ▼
//	floor (floor.go): loopback · hashes · disk · CPU seconds ─▶ Result (result.go) ─▶ table.go · goals.go · JSON
//
// All get the same seeded keys; loading them is not timed. What the network would cost is in Starling's figure alone: the peers hand their
// bytes over in one process.
//
// Byzantine (byzantine.go) is a join from many peers, some of which lie. Hiccup (hiccup.go) is the commits of a validator while nodes join
// from it.
package syncbench
