// Package lightclient verifies block headers starting from one that is trusted, as pure functions:
// blocks and the time in, verdicts out.
//
//	         root of trust: a header by its hash (Root), or a genesis document (GenesisRoot)
//	                            │
//	◄── Below, CheckAncestor ───┼─── Climb ──►
//	    hash by hash            │    by light.Verify; a block halfway first where the
//	                            ▼    validators have changed too much
//	                  Blocks: what is verified so far
//
// It has no network, no goroutine and no clock. The caller decides which peers to ask, how long to
// wait, and what happens to a peer that lied: package client has a primary and witnesses, package
// lightblocks treats all peers alike. The rules are those of CometBFT's package light, after its
// specification verification_002_draft.md. CometBFT's own light client ties them to one way of
// asking.
//
// Blocks from peers are hostile input. No function of this package panics over a block that
// CheckBasic or NewBlock has accepted.
package lightclient
