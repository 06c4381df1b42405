// Package shard is a storage node as a process: it keeps ranges of a sharded state on disk, follows
// the chain by proved headers, and answers over the transport.
//
//	validators' transports ──► join.Connect ──► follower: headers ──┐ app hashes
//	                                                                ▼
//	update (15) ──► storagenode.Node: one Replica for each range ◄──┴── data/ranges/NNN
//	witness (13), upper (14), ranges (12) ◄──┘          ▲
//	                                                    └── no state: genesis, or takeover from who has the range
//
// It trusts one header: that of the initial height if the genesis validators signed it, or the one
// that the [statesync] section names, and after a restart the last that it proved. Everything else
// follows by signatures and hashes. dsm/storagenode is the library around which this package puts
// folders, connections, time and metrics; docs/spec/storagenode.md describes both.
package shard
