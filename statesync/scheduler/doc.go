// Package scheduler decides which peer is asked for which part of a snapshot. It is a pure state
// machine: events in, actions out.
//
//	Add ──► pending ──Ask──► in flight ──Received──► verifying ──Verified──► done
//	           ▲                │  │                     │ Rejected: a proof
//	           │   Gone, Busy,  │  └─ Lied: a proof ──┐  │
//	           │   Broken, lost │                     ▼  ▼
//	           ├────────────────┘                      Ban
//	           ├───────────────────────────────────────┘
//	           └── late (much slower than others): a second peer is asked; the first request is
//	               cancelled only if its memory is needed
//
// An item is whatever the caller asks for in one request: a chunk, a range of a chunk, a
// sub-manifest. The package has no clock, no network and no goroutine, and nothing in it depends on
// the order of a map or on floating point: the same events give the same actions.
//
// A peer has all of a group of items, or a part of it: spans of their places. It is asked for what
// it says that it has. For peers that have everything, the first item is at the top of a heap; a
// group of which somebody has a part has an index by places, too.
//
// # Trust
//
// A peer is new until one of its answers was verified. Until then it has one request in flight, so
// that a liar wastes one item at most. Then it is proven. It is also trusted until one of its
// requests fails or is given up; a trusted peer has as many requests in flight as keep its pipe
// full (measured rate × twice its round trip). Trusted peers choose first, in the order of Add,
// with refetches before the rest. The others are probed: with the smallest items, and within half
// of the memory.
//
// Only a proof bans: bytes that failed verification, or an answer of impossible length. A peer that
// is busy, breaks off or is given up is left alone for a while, twice as long each time. "Gone" is
// no failure.
//
// # Termination
//
// While each item has one honest peer, Done comes. What nobody has waits. An item that stalls is
// requested elsewhere too. The stalled request is cancelled only where its memory is needed, or if
// no byte has come for long, and then its peer gets twice the time: the only honest peer may be
// arbitrarily slow. When nothing is left to hand out, idle peers are asked for what others would
// take more than twice as long for; the first good answer wins.
package scheduler
