// Package liar turns an honest node into one that lies to nodes that join from it.
//
//	  CometBFT of the lying node                       joining nodes
//	consensus, mempool, query │ snapshot connection          │ transport
//	                          │                              │
//	                       ┌──▼── Wrap ─────────────┐  ┌─────▼─ Over ─────────────────┐
//	                       │ ListSnapshots          │  │ status, commitment, manifest │
//	                       │ LoadSnapshotChunk      │  │ chunk, light block           │
//	                       └──┬─────────────────────┘  └─────┬────────────────────────┘
//	        ▼                 ▼                              ▼
//	       the honest application                    the honest handler
//
// All else passes through: the node follows the chain and so offers the very snapshots that the
// honest peers offer, which is what makes its lies reach a joiner. What it serves in the place of
// the truth is certain to be wrong, never wrong by luck.
package liar
