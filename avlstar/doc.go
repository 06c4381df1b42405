// Package avlstar implements the AVL* tree: a versioned Merkle AVL+ tree that is divided into
// chunks. Given the AppHash, each chunk can be verified alone.
//
//	        AppHash = map{ "chunks": B ‖ m ‖ stat(root), "state": root }        commitment.go
//	           │
//	        (root)           ┐
//	       /      \          │ upper tree: bytes > B                            manifest.go
//	    (n)        \         ┘
//	   /   \        \        ┐
//	 /0\   /1\      /2\      │ chunks: the maximal subtrees of at most B bytes  chunk.go
//	k=v … k=v … … k=v … k=v  ┘ leaves in key order                              package record
//
// The leaves hold the values. A Version is an immutable state. Apply makes the next version, which
// shares the unchanged nodes (copy on write):
//
//	v0 ──Apply──▶ v1 ──Apply──▶ v2       apply.go: a block of changes        version.go: reading
//	                                     edit.go: insertion, deletion, rotations
//	                                     parallel.go: large blocks by several goroutines
//	                                     resolve.go: hashing, level by level in batches (package sha256mb)
//
// The nodes of all versions of a tree lie in memory without Go pointers. A node is freed when no
// referenced version contains it:
//
//	slab   link image, link image, …     node.go: an inner node is its own hash image; memory.go, allocator.go
//	page   record, record, …             leaves, as a chunk carries them
//	frame  slab, slab, …                 frames.go: 2 MiB, a huge page of its own (package hugemem)
//	index  tag, ref, epoch …             index.go: optional; finds a leaf by the hash of its key
//	held   v0: n3 n7 …  v1: n9 …         tree.go: dead nodes, by the last version that contains them
//
// With Paging (paging.go), subtrees that did not change recently leave memory, and are read back
// and verified when they are needed. A read returns an error if a page that it needs cannot be
// read.
//
// A Partial (partial.go) has stubs (hash, height and bytes) in place of missing subtrees.
// Multiproofs (multiproof.go) fill them in, and retention.go drops nodes again. A replica of a key
// range (keyrange.go) is a Partial that is complete inside the range; it follows other replicas'
// versions by updates (update.go, replay.go).
//
// Apart from Apply, a single builder (build.go) makes every tree, from leaves or subtrees in key
// order: a chunk (run.go), a version from its leaves or its chunks (load.go), the upper tree of a
// manifest, the tree of a range proof, and a replica (from_range.go).
//
// With the build tag avlstardebug, every version is checked completely when it is made
// (debug_on.go).
//
// The formats are specified in docs/spec/tree.md and docs/spec/chunks.md, the proofs (proof.go,
// range.go) in docs/spec/proofs.md, the multiproofs in docs/spec/multiproofs.md, the updates in
// docs/spec/updates.md.
package avlstar
