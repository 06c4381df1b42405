// Package iavlsync cuts the state of a chain on cosmos/iavl v1 into chunks. Each chunk is verified
// on its own against the chain's app hash as soon as it arrives.
//
//	app hash ◀─ names and roots of the stores ◀─ upper nodes ◀─ images of the chunks' roots ◀─ chunks
//	            └──────────────── all of this is derived from the manifest ──────────────┘
//
// Nothing that a peer sends is trusted. The hash of a node is computed from its image. The keys of
// inner nodes, which IAVL's hash does not bind, are not sent.
//
//	server   Cut ─▶ Manifest.Encode        Answer ─▶ chunk, halves of one, or part of a leaf
//	joiner   VerifyManifest ─▶ Manifest    VerifyChunk, VerifyHalves, Parts
//
// The package has formats and proofs only. It does not depend on a database (see Reader), a network
// or the Cosmos SDK. docs/spec/iavl.md specifies the formats.
package iavlsync
