// Package comet is CometBFT in this process: all that adapts it to a node whose application runs
// beside it.
//
//	                    Instance ── Make, Start, Stop; replaced once, at the end of a state sync
//	                        │
//	RemoteSigner ──────► CometBFT ◄────── AddressReactor: tells peers where this node's transport listens
//	  or keys in the home   │  │
//	                        │  └─ four ABCI connections without a lock ──► Halter ──► the application, up to a last block
//	                        ▼
//	                    Databases ── data/blocks, or databases of CometBFT's own; Bootstrap: a height that was reached without its blocks
//
// CometBFT reports some of its failures in its log only, so the log that it is given recognises
// them (consensuslog.go, statesync.go). Records for which it has no function are written as it
// would write them (ancestors.go): compare them with a newer CometBFT before an upgrade.
package comet
