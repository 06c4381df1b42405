// Package liar turns an honest node into one that sends invalid data to nodes that join from it.
//
//	  CometBFT of the Byzantine node                      joining nodes
//	consensus, mempool, query │ snapshot connection          │ transport
//	                          │                              │
//	                       ┌──▼── Wrap ─────────────┐  ┌─────▼─ Over ─────────────────┐
//	                       │ ListSnapshots          │  │ status, commitment, manifest │
//	                       │ LoadSnapshotChunk      │  │ chunk, light block           │
//	                       └──┬─────────────────────┘  └─────┬────────────────────────┘
//	        ▼                 ▼                              ▼
//	       the honest application                    the honest handler
//
// WrapSimulations wraps Query: clients that simulate calls of programs get false answers.
//
// All other calls pass through: the node follows the chain and so offers the same snapshots as the
// honest peers, so that joiners request chunks from it. Its responses are invalid with certainty,
// never correct by chance.
package liar
