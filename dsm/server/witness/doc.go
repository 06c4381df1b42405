// Package witness answers the two methods of a sharded state that any node can serve from the
// states that it holds: witness (method 13) and upper (method 14) of docs/spec/dsm.md.
//
//	request ── decode ──► the state of its height ──► wants ──► multiproof, or "ask for less at once"
//	              │         Handler: a full state, or a validator's partial state
//	              └───────  server: the replica that has the range
//
// A Handler serves a full-state or partial-state validator; nodes that it does not have stay stubs.
// A storage node uses the functions of this package for its ranges. Requesters need not trust the
// answers: multiproofs are self-verifying.
package witness
