// Package statesync serves versions of the tree as snapshots and restores a state from chunks of
// untrusted peers when a node joins.
//
//	serving                                          joining
//
//	Committed(H, v)                                  OfferSnapshot          one untrusted message
//	   │ H a multiple of the interval                   │ judge: hash ‖ metadata = app hash ‖ manifest?
//	   ▼                                                ▼
//	pins (the newest `keep`)                         Restorer ──Begin──► Target
//	   │   │                                            ▲  │  │
//	   │   ├─► ListSnapshots      manifest              │  │  └──Commit──► durable, published
//	   │   └─► LoadSnapshotChunk  chunk k               │  └──Write───► storage, chunk by chunk
//	   │                                                │
//	   │ PinData: description     ApplySnapshotChunk ──►│ worker pool: verifies chunks in parallel
//	   ▼                          ACCEPT at once; a later answer reports bad chunks, the last answer waits
//	disk ─── restart ─── AddStored: a pin whose chunks are read, and verified, on request
//
// Offering a snapshot copies nothing: a snapshot is a retained version, or the part of one that is
// on disk. Whatever transport delivers the chunks, they pass through one Restorer. It verifies each
// chunk against the manifest, which was verified against the app hash of a header. A Byzantine peer
// can waste time, but neither a wrong byte nor a partial state ever reaches the application.
//
// docs/spec/statesync.md specifies the formats and the answers.
package statesync
