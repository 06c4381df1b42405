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
//	v0 ──Apply──▶ v1 ──Apply──▶ v2       apply.go: a block of changes        version.go: reading
//	                                     edit.go: insertion, deletion, rotations
//	                                     parallel.go: large blocks by several goroutines
//	                                     resolve.go: hashing, level by level in batches (package sha256mb)
//
// The nodes of all versions of a tree lie in memory without Go pointers, and are freed when no referenced version has them:
//
//	slab   link image, link image, …     node.go: an inner node is its own hash image; memory.go, allocator.go
//	page   record, record, …             leaves, as a chunk carries them
//	held   v0: n3 n7 …  v1: n9 …         tree.go: what died, with the last version that has it
//
// A Partial (partial.go) has stubs, hash and height and bytes, for what is not there. What is not made by Apply is made from leaves in
// key order by one builder (build.go): a chunk (run.go), a whole version from its leaves or its chunks (load.go), the upper tree
// of a manifest, the tree of a range proof.
//
// With the build tag avlstardebug every version is checked as a whole when it is made (debug_on.go).
//
// The formats are specified in docs/spec/tree.md and docs/spec/chunks.md, the proofs (proof.go, range.go) in docs/spec/proofs.md.
package avlstar
