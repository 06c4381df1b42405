// Package dsm holds what the nodes of a sharded state share (RainBlock's DSM-Tree, section 4): the
// key ranges, the nodes that serve each range, and the messages between validators and storage
// nodes.
//
//	              ranges (12): a hint        ┌── replica ── [ , g)
//	             upper (14), witness (13)    │
//	validator ◄──────────────────────────────┼── replica ── [g, p)
//	          ───────────────────────────────►
//	             update (15), of each block  └── replica ── [p, )
//
// Ranges is the configuration: an immutable value, validated once, that routes wants to the nodes
// that serve them. The configuration needs no trust: every answer is proved by hashes
// (docs/spec/dsm.md). Packages below dsm/client run on validators, packages below dsm/server on
// storage nodes. This package is pure and does no network I/O; it treats multiproofs, updates and
// commitments as opaque bytes.
package dsm
