// Package join brings a node to a height that CometBFT continues from, over the transports of many
// peers, before there is a CometBFT.
//
//	peers ──► headers, proved from the trusted one ──► state of H, durable ──► CometBFT told of H ──► CometBFT made, block sync from H+1
//	 Network: peers, verifier                          fastsync.Join, State    Chain
//
// After a kill at any point a join continues where it was: a half-restored state zone is resumed;
// one that is complete, but that no block belongs to, is kept, and only the rest is done. A node
// that catches up has old blocks, which are put aside once the new state is complete.
//
// A node whose state storage nodes keep takes up its upper tree from them, and has no state zone
// (sharded.go).
//
// Decide returns, once, what a start has to do. Run does it.
package join
