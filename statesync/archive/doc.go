// Package archive stores a snapshot in one file: the chunks that a node would send to a joining
// node, for transfer by hand.
//
//	writing                                     reading
//
//	Source ── manifest, chunk k                 Open ── header and trailer: is the file complete?   not trusted
//	   │   compressed in parallel                 │
//	   ▼   written in order                     Verify(app hash) ── the manifest                    proved
//	FILE.partial ──sync, rename──► FILE           │
//	                                            Chunks ── one after the other, checksums            not yet proved
//	header ‖ manifest ‖ frame × m ‖ trailer       │
//	                                            Chunk.Data ── unpacked to the manifest's length     the caller's VerifyChunk proves it
//
// The file proves nothing: the reader must know the app hash from elsewhere. Checksums locate
// damage; the trailer distinguishes a truncated file from a damaged one. The same state always
// gives the same bytes.
//
// docs/spec/archive.md specifies the format.
package archive
