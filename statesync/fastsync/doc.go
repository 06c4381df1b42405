// Package fastsync brings a node the state of its chain over our own transport, from many peers at once, none of which it trusts.
//
//	peers.go       addresses ──dial──► connections ──status──► which peer has which snapshots; further addresses
//	choose.go      newest height that a header proves, and somebody serves ──► commitment ──► manifest, proved
//	join.go        one loop: events into the scheduler, its actions into calls; workers verify and write
//	delta.go       what the node has already: equal chunks are copied, changed ones patched by the pieces that differ
//	server.go      the other side: answers from pinned snapshots
//	messages.go    bodies and answers (docs/spec/transport.md)
//
// Life of a chunk: an Ask of the scheduler lends a buffer of exactly its length; what lands there is verified against the manifest by
// statesync.Restorer, which writes it; only then does the scheduler hear of it. A peer is banned for bytes that prove a lie, never for
// slowness, nor for what it does not have.
package fastsync
