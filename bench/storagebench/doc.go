// Package storagebench replays a chain, blocks and state, into different storages side by side: the
// table of ChainKV on this system.
//
//	maker ──▶ requests: blocks · nodes · leaves          chain.go, avl.go (the state as IAVL's nodes), maker.go, trace.go
//	             │          │        │
//	             ├──────────┤        │    mixed      one Pebble                       layout.go
//	             ├──────────┤        │    goleveldb  one goleveldb
//	             ├──────────┤        │    zones      a Pebble each
//	             ├─────────────────▶ ┤    leaves     in key order, by the page        leaves.go, pages.go
//	             └─────────────────▶ ┘    starling   the node's own packages          starling.go
//
//	parent (run.go) ── line-JSON ──▶ a process for each (child.go), one runs at a time, the others are stopped:
//	  load · blocks · reads (queries.go) · cache · recovery, commits, paged (chainer.go)
//	Result (result.go) ─▶ print.go · targets.go · JSON
//
// As in the paper, requests to the database are replayed: the time to make them, by hashing and
// walking a tree, does not count. All contestants have the same memory, and every answer of a read
// is compared with what was written.
package storagebench
