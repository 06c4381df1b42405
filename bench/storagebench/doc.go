// Package storagebench replays a chain, with its blocks and state, into different storage layouts:
// it makes the table of the ChainKV paper on this system.
//
//	maker ──▶ requests: blocks · nodes · leaves          chain.go, avl.go (the state as IAVL's nodes), maker.go, trace.go
//	             │          │        │              (and those of geth, geth.go)
//	             ├──────────┤        │    mixed      one Pebble                       layout.go
//	             ├──────────┤        │    goleveldb  one goleveldb
//	             ├──────────┤        │    geth-hash  one Pebble, Ethereum's trie      geth.go
//	             ├──────────┤        │    geth-row   the same, nodes by depth and hash (geth-column: by path and hash)
//	             ├──────────┤        │    geth-path  the same, nodes by path
//	             ├──────────┤        │    zones      separate Pebbles                 layout.go
//	             ├─────────────────▶ ┤    leaves     in key order, read by pages      leaves.go, pages.go
//	             └─────────────────▶ ┘    starling   the node's own packages          starling.go
//
//	parent (run.go) ── line-JSON ──▶ a process for each (child.go); one runs at a time, the others are stopped:
//	  load · blocks · reads (queries.go) · locality (locality.go) · cache · recovery (start.go), commits, paged (chainer.go)
//	Result (result.go) ─▶ print.go · targets.go · JSON
//
// As in the paper, database requests are replayed: the time to compute them, by hashing and walking
// a tree, does not count. All contestants have the same memory, and every value read is compared
// with what was written.
package storagebench
