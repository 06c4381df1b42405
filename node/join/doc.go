// Package join brings a node to a height that CometBFT can continue from, over the transports of
// many peers, before CometBFT is made.
//
//	peers ──► headers, proved from the trusted one ──► state of H, durable ──► H recorded for CometBFT ──► CometBFT made, block sync from H+1
//	 Network: peers, verifier                          restore.Run, State    Chain
//
// After a kill at any point a join continues where it was: a half-restored state zone is resumed; a
// complete one without a block is kept, and only the remaining steps are done. A node that catches
// up has old blocks, which are removed once the new state is complete.
//
// A sharded node fetches its upper tree from storage nodes, and has no state zone (sharded.go).
//
// Decide determines, once, what a start has to do. Run does it.
package join
