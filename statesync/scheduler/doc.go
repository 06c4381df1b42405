// Package scheduler decides which peer is asked for which part of a snapshot. It is a pure state
// machine: events in, actions out.
//
//	Add ──► pending ──Ask──► in flight ──Received──► verifying ──Verified──► done
//	           ▲                │  │                     │ Rejected: proof of a fault
//	           │   Gone, Busy,  │  └─ Lied: proof ────┐  │
//	           │   Broken, lost │                     ▼  ▼
//	           ├────────────────┘                      Ban
//	           ├───────────────────────────────────────┘
//	           └── late (much slower than others): a second peer is asked; the first request is
//	               cancelled only if its memory is needed
//
// An item is what the caller requests at once: a chunk, a range of a chunk, or a sub-manifest. The
// package has no clock, no network and no goroutines, and nothing in it depends on map order or
// floating point: the same events give the same actions.
//
// A peer has all items of a group or a part of them: spans of their places. It is asked only for
// items that it claims. Each group has heaps, whose top serves peers that have everything. A group
// of which some peer has a part also has an index by place.
//
// # Trust
//
// A peer is new until one of its answers was verified. Until then it has one request in flight, so
// a Byzantine peer wastes at most one item. Then it is proven. A proven peer is trusted until one
// of its requests fails or is given up. A trusted peer has as many requests in flight as keep its
// pipe full (measured rate × twice its round trip). Trusted peers choose first, in the order of
// Add, with refetches before other items. The other peers are probed with the smallest items,
// within half of the memory.
//
// A peer is banned only on proof: bytes that failed verification, or an answer of impossible
// length. A peer that is busy, breaks off, or whose request is given up is not asked for a while,
// for twice as long each time. "Gone" is not a failure.
//
// # Termination
//
// As long as each item has one honest peer, Done comes. An item that no peer has waits. An item
// that stalls is also requested from another peer. The stalled request is cancelled only if its
// memory is needed, or if no byte has arrived for long; its peer then gets twice the time, since
// the only honest peer may be arbitrarily slow. When nothing is left to hand out, idle peers are
// asked for items that other peers would take more than twice as long for; the first good answer
// wins.
package scheduler
