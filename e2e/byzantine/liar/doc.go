// Package liar turns an honest application into one that lies to nodes that sync from it.
//
//	       CometBFT of the lying node
//	consensus, mempool, query │ snapshot connection
//	                          │
//	                       ┌──▼── Wrap ─────────────────────┐
//	                       │ ListSnapshots      alias, lone │
//	                       │ LoadSnapshotChunk  the rest    │
//	                       └──┬─────────────────────────────┘
//	        ▼                 ▼
//	       the honest application
//
// All else passes through: the node follows the chain and so offers the very snapshots that the honest peers offer, which is what
// makes its lies reach a joiner. What it serves in the place of a chunk is certain to be wrong, never wrong by luck.
package liar
