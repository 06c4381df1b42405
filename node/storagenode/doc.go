// Package storagenode implements the storage node process: it keeps ranges of a sharded state on
// disk, follows the chain by proved headers, and serves them over the transport.
//
//	validators' transports ──► join.Connect ──► follower: headers ──┐ app hashes
//	                                                                ▼
//	update (15) ──► server.Server: one Replica   for each range ◄──┴── data/ranges/NNN
//	witness (13), upper (14), ranges (12) ◄──┘          ▲
//	                                                    └── no state: start from genesis, or takeover from other nodes
//
// It trusts one header: that of the initial height if the genesis validators signed it, or the one
// in the [statesync] section, and after a restart the last header that it proved. Everything else
// is verified by signatures and hashes. dsm/server is the library; this package adds folders,
// connections, timers and metrics. docs/spec/storagenode.md describes both.
package storagenode
