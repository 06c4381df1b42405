// Package avlstar is the AVL* tree: a versioned Merkle AVL+ tree that falls into chunks, each of which whoever knows the AppHash can
// check alone.
//
//	        AppHash = map{ "chunks": B ‖ m ‖ stat(root), "state": root }        commitment.go
//	           │
//	        (root)           ┐
//	       /      \          │ upper tree: bytes > B                            manifest.go
//	    (n)        \         ┘
//	   /   \        \        ┐
//	 /0\   /1\      /2\      │ chunks: the maximal subtrees of at most B bytes  chunk.go
//	k=v … k=v … … k=v … k=v  ┘ leaves in key order                              record.go
//
// Values are in the leaves. A Version is one immutable state; Apply makes the next, sharing what did not change (copy on write):
//
//	v0 ──Apply──▶ v1 ──Apply──▶ v2       tree.go: insertion, deletion, rotations; version.go: reading; hash.go: what is hashed
//
// What is known only by its hash stands in a partial tree as a stub. One builder (build.go) makes every tree that is not made by
// Apply: a chunk, the upper tree of a manifest, a whole version from its leaves or its chunks, the tree of a range proof.
//
// The formats are specified in docs/spec/tree.md and docs/spec/chunks.md, the proofs (proof.go, range.go) in docs/spec/proofs.md.
package avlstar
