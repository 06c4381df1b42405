// Package archive is a snapshot as one file: what a node would send to a joining one, chunk by
// chunk, for whoever carries it by hand.
//
//	writing                                     reading
//
//	Source ── manifest, chunk k                 Open ── header and trailer: is it all there?     nothing is believed
//	   │   compressed in parallel                 │
//	   ▼   written in order                     Verify(app hash) ── the manifest                 proved
//	FILE.partial ──sync, rename──► FILE           │
//	                                            Chunks ── one after the other, checksums         not yet proved
//	header ‖ manifest ‖ frame × m ‖ trailer       │
//	                                            Chunk.Data ── unpacked to the manifest's length  the caller's VerifyChunk proves it
//
// The file proves nothing: who reads it must know the app hash from elsewhere. Checksums are there
// to tell where a file was damaged, the trailer to tell a file that was cut short from one that was
// damaged. The same state gives the same bytes.
//
// The format is in docs/spec/archive.md.
package archive
