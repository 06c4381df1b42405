// Package scheduler decides which peer is asked for which part of a snapshot, as a pure state machine: events in, actions out.
//
//	Add ──► pending ──Ask──► in flight ──Received──► verifying ──Verified──► writing ──Written──► done
//	           ▲                │  │                     │ Rejected: a proof
//	           │   Gone, Busy,  │  └─ Lied: a proof ──┐  │
//	           │   Broken, lost │                     ▼  ▼
//	           ├────────────────┘                      Ban
//	           ├───────────────────────────────────────┘
//	           └── late (much slower than others): asked a second time, not cancelled unless its memory is needed
//
// An item is whatever the caller asks for in one piece: a chunk, a range of one, a sub-manifest. The package has no clock, no net and
// no goroutine, and nothing in it depends on the order of a map or on floating point: the same events give the same actions.
//
// # Trust
//
// A peer is new until an item of its was verified: so long it has one request in flight, and so a liar wastes one item at most. Then it is
// proven; it is also trusted until a request of its fails or is given up, and has as many in flight as keep its pipe full (measured rate ×
// twice its round trip). Trusted peers choose first, in the order of Add, with refetches before the rest; the others are probed, with the
// smallest items, and within half of the memory. Only a proof bans: bytes that failed verification, or an answer of impossible length.
// Who is busy, breaks off or is given up is left alone for a while, twice as long each time. "Gone" is no failure.
//
// # Ends
//
// As long as one honest peer has the group, Done comes. What stalls is asked elsewhere; it is cancelled only where its memory is needed, or
// if nothing at all has come for long, and then its peer gets twice the time: the only honest peer may be as slow as it likes. When
// nothing is left to hand out, idle peers are asked for what others would take more than twice as long for; the first good answer wins.
package scheduler
