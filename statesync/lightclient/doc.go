// Package lightclient verifies block headers starting from a trusted one. It consists of pure
// functions: their inputs are blocks and the time, their results are verdicts.
//
//	         root of trust: a header by its hash (Root), or a genesis document (GenesisRoot)
//	                            │
//	◄── Below, CheckAncestor ───┼─── Climb ──►
//	    hash by hash            │    by light.Verify; a block halfway first where the
//	                            ▼    validators have changed too much
//	                  Blocks: what is verified so far
//
// It has no network, no goroutine and no clock. The caller decides which peers to ask, how long to
// wait, and what happens to a Byzantine peer: package client has a primary and witnesses, package
// lightblocks treats all peers alike. The rules are those of CometBFT's package light, which follow
// its specification verification_002_draft.md. CometBFT's own light client cannot be used because
// it ties the rules to one method of asking peers.
//
// Blocks from peers are hostile input. No function of this package panics over a block that
// CheckBasic or NewBlock has accepted.
package lightclient
