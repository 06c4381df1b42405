// Package restore fetches the state of the chain for a joining node, over Starling's own transport,
// from many untrusted peers at once.
//
//	join.go      Run: chooses a snapshot (package snapshot), fetches it (package fetch), and commits it
//	round.go     a snapshot: its missing chunks, when it stalls or is slow, when another one replaces it
//	look.go      compares a round that will take long with other snapshots
//	item.go      what is requested, and how an answer is verified
//	delta.go     reuse of local data: equal chunks are copied, changed ones assembled from pieces
//	progress.go  progress, for package view
//
// Life of a chunk: on Ask of the scheduler, a buffer of exactly its length is lent to the
// transport. The answer in that buffer is verified against the manifest and written by
// statesync.Restorer. Only then is the chunk reported to the scheduler as done.
//
// # Words
//
//	snapshot   the state after a block, as peers serve it: a height, a manifest and chunks
//	round      the fetching of one snapshot; a retarget ends it and begins another
//	item       what one request asks for: a chunk, a sub-manifest or a range
//	request    an item requested from one peer; an item may have several requests at a time
//	chunk      a subtree of the state, about 1 MiB: the unit that is verified and written, and that survives a crash
//	run        the records of a chunk in key order, as a target stores them
//	cut        a division of a chunk, or of a state, into pieces; that of a chunk has a sub-manifest
//	piece      one part of a cut, at most 16 KiB: the smallest unit that can be verified alone
//	range      consecutive bytes of a chunk, as in one request; in a delta, consecutive whole pieces
//	delta      the assembly of a chunk from local pieces and fetched ranges
package restore
