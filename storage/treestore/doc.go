// Package treestore connects the in-memory tree (package avlstar) to the state zone on disk
// (package storage). It is the application's Store, and the Target of every restore: a join,
// CometBFT's state sync, or a snapshot file.
//
//	app ──Commit(H)──► Store ──changed leaves, heights, stubs──► zone's queue ─flusher─► disk
//	app ◄──Load─────── Store ◄──all leaves or, if paged, the stubs of all pages──────── disk
//	tree ──stub──────► pages ──► cache shared with the block zone ──miss──────────────► disk
//	Restorer ──verified chunk──► Target ──one sorted run──────────────────────────────► disk
//
// It does not decide what to fetch, whom to trust, or when to make a snapshot: statesync,
// lightblocks and the application do. Everything that it stores was verified before; everything
// that it reads back is verified again, by the app hash or page by page.
package treestore
