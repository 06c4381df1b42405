// Package iavlsync cuts the state of a chain on cosmos/iavl v1 into chunks that are proved against
// the chain's own app hash, each alone, the moment it arrives.
//
//	app hash ◀─ names and roots of the stores ◀─ upper nodes ◀─ images of the chunks' roots ◀─ chunks
//	            └──────────────── all of this is derived from the manifest ──────────────┘
//
// Nothing that travels is believed: hashes are computed from images, never read beside them, and
// the keys of inner nodes, to which IAVL's hash does not commit, do not travel at all.
//
//	server   Cut ─▶ Manifest.Encode        Answer ─▶ chunk, halves of one, or part of a leaf
//	joiner   VerifyManifest ─▶ Manifest    VerifyChunk, VerifyHalves, Parts
//
// The package is for formats and proofs only: it knows no database (see Reader), no network and no
// Cosmos SDK. Its formats are binding: docs/spec/iavl.md.
package iavlsync
