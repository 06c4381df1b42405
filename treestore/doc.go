// Package treestore joins the tree in memory (package avlstar) with the state zone on disk (package
// storage). It is the application's Store, and the Target of every restore: a join, CometBFT's
// state sync, a snapshot file.
//
//	app ──Commit(H)──► Store ──changed leaves, new heights──► zone's queue ──flusher──► disk
//	app ◄──Load─────── Store ◄──all leaves, in one pass─────────────────────────────── disk
//	tree ──stub──────► Pages ──► cache shared with the block zone ──miss──────────────► disk
//	Restorer ──verified chunk──► Target ──one sorted run──────────────────────────────► disk
//
// It does not decide what is fetched, whom to trust, or when a snapshot is due: those are the
// business of statesync, lightblocks and the application. What it stores was verified before; what
// it reads back is verified again, by the app hash or page by page.
package treestore
