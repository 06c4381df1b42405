// Package storagebench replays a chain, blocks and state, into different storages side by side: the table of ChainKV on this system.
//
//	maker ──▶ requests: blocks · nodes · leaves          chain.go, avl.go (the state as IAVL's nodes), maker.go, trace.go
//	             │          │        │
//	             ├──────────┤        │    mixed      one Pebble                       layout.go
//	             ├──────────┤        │    goleveldb  one goleveldb
//	             ├──────────┤        │    zones      a Pebble each
//	             ├─────────────────▶ ┤    leaves     in key order, by the page        leaves.go, pages.go
//	             └─────────────────▶ ┘    starling   the node's own packages          starling.go
//
//	parent (run.go) ── line-JSON ──▶ a process for each (child.go), one works at a time, the others stand still:
//	  load · blocks · reads (queries.go) · cache · recovery and commits (chainer.go)
//	Result (result.go) ─▶ print.go · targets.go · JSON
//
// As in the paper, what is replayed are requests to the database: hashing and walking a tree to make them is nobody's time. All have
// the same memory, and every answer of a read is compared with what was written.
package storagebench
