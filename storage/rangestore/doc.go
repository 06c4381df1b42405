// Package rangestore keeps a key range of a sharded state: a tree whose pages leave memory (package
// avlstar), over a state zone that holds the leaves of the range (package storage). A storage node
// has one Store for each of its ranges, and one Memory for all of them.
//
//	Create(height, leaves) ──► zone: empty ──runs──► the state at that height, durable
//	Fill: Add(piece) …, Commit(height) ──────────────────┘
//	Load ──► stubs of pages, boundary proof ──► avlstar.Partial, without its pages
//	                                        │ Replay, by the caller, many versions ahead
//	Commit(height) ◄────────────────────────┘
//	   └─► changed leaves, heights, stubs ──► the zone's queue ──flusher──► the durable height
//	Memory ──► pages that were read: one cache │ trees: a budget for each range, by use
//
// The zone trails the newest version: the caller commits a version once it no longer serves the one
// before. What is not durable stays in memory.
//
// Next to the leaves, the zone has what is needed to build the tree, as storage.Meta.Extra: see
// extra. The package decides neither what to fetch nor whom to trust. What it reads back is
// verified against the commitment of the state that was stored, as a whole or page by page.
package rangestore
