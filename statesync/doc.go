// Package statesync offers the versions of the tree as snapshots and takes part in joining: chunks
// from untrusted peers become a state.
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
//	   │ PinData: description     ApplySnapshotChunk ──►│ pool of workers: one verifies one chunk
//	   ▼                          ACCEPT at once; bad ones are named in a later answer, the last answer waits
//	disk ─── restart ─── AddStored: a pin whose chunks are read, and verified, on request
//
// Nothing is copied to offer a snapshot: it is a version that is kept, or what the disk keeps of
// one. Whoever carries the chunks, they pass one Restorer, which verifies each alone against the
// manifest, which was verified against the app hash of a header. So a liar can waste time, but
// neither a wrong byte nor a part of a state ever reaches the application.
//
// The formats and the rules of the answers are in docs/spec/statesync.md.
package statesync
