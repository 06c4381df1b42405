// Package fastsync fetches the state of the chain for a joining node, over our own transport, from
// many peers at once, none of which it trusts.
//
//	peers.go       addresses ──dial──► connections ──status──► who has which snapshots; more addresses
//	connect.go     the life of a connection
//	book.go        what peers have told of others: up to four addresses of a node; draws.go: whom to
//	               dial, and at whose cost; visits.go: what came of it, and who makes room
//	hosts.go       the networks that a host lies in; which addresses are public
//	choose.go      newest height that a header proves and a peer serves ──► manifest, proved
//	manifest.go    a manifest, from several peers: the slow ones give their places up
//	draft.go       what came of a manifest before it is proved; who is asked next continues it
//	join.go        Join: one loop; what other goroutines report reaches it as an event (event.go)
//	round.go       a snapshot: what is missing, when it stalls or is slow, when another takes its place
//	look.go        a round that will take long is compared with other snapshots
//	request.go     a chunk: requested ──► received ──► verified and written ──► counted
//	delta.go       what the node has: equal chunks are copied, changed ones assembled from pieces
//	view.go        the join as the status page shows it
//	server.go      the other side: it answers from pinned snapshots
//	messages.go    methods, bodies and answers (docs/spec/transport.md#methods)
//
// Life of a chunk: on Ask of the scheduler, a buffer of exactly its length is lent to the
// transport. What lands there is verified against the manifest and written by statesync.Restorer,
// which alone knows who writes it. Only then does the scheduler hear that the chunk is done. A peer
// is banned for bytes that prove a lie, never for being slow, nor for what it does not have.
//
// # Words
//
//	snapshot   the state after a block, as peers serve it: a height, a manifest and chunks
//	round      the fetching of one snapshot; a retarget ends it and begins another
//	item       what one request asks for: a chunk, a sub-manifest or a range
//	request    an item asked of one peer; an item may have several at a time
//	chunk      a subtree of the state, about 1 MiB: the unit that is verified, written, and still there after a crash
//	run        the records of a chunk in the order of their keys, as a target stores them
//	cut        a chunk, or a state, divided into pieces; a chunk's has a sub-manifest
//	piece      one part of a cut, at most 16 KiB: the least that can be verified alone
//	range      consecutive bytes of a chunk, as one request asks for them; in a delta, those of whole pieces
//	delta      the assembly of a chunk from pieces that the node has and ranges that it fetches
package fastsync
