// Package comet runs CometBFT in this process and adapts it to an in-process application.
//
//	                    Instance ── Make, Start, Stop; replaced once, at the end of a state sync
//	                        │
//	RemoteSigner ──────► CometBFT ◄────── AddressReactor: advertises this node's transport to peers
//	  or keys in the home   │  │
//	                        │  └─ four ABCI connections without a lock ──► Halter ──► the application, up to its last block
//	                        ▼
//	                    Databases ── data/blocks, or CometBFT's own databases; Bootstrap: a height reached without its blocks
//
// CometBFT reports some failures only in its log, so the logger passed to it detects them
// (consensuslog.go, statesync.go). Records for which CometBFT has no function are written in its
// format (ancestors.go): compare them with the new version before upgrading CometBFT.
package comet
