// Package serve answers the two questions of a sharded state that every node can answer from the
// states that it holds: witness (method 13) and upper (method 14) of docs/spec/dsm.md.
//
//	request ── decode ──► the state of its height ──► wants ──► bag, or "less at once"
//	              │         Handler: whole, or a validator's part
//	              └───────  storagenode: of the replica that has the range
//
// A Handler serves a validator, in local or in sharded mode. What it lacks, it leaves as stubs. A
// storage node takes the parts for its ranges. Nothing here is trusted by who asked: bags prove
// themselves.
package serve
