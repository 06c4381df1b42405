// Package source connects a validator to the storage nodes of its state: it fetches what the tree
// lacks, and sends them what blocks change.
//
//	app ── Fetch(height, wants) ─► ask.Machine ──► witness (13) ──► storage nodes of each range
//	 ▲                              │   ▲                               │
//	 └────────── bags ◄─────────────┘   └─ verdicts: lies, gone, busy ◄─┘
//
//	app ── Committed(height, v) ─► updates ─► feed.Machine ──► update (15) ──► every replica
//	 ▲                                          │  ▲                              │
//	 └── Room waits, Durable ◄──────────────────┘  └── claims (12), answers ◄─────┘
//
// Whom to ask and whom to send to is decided by packages dsm/ask and dsm/feed, which are pure. This
// package has what they lack: a connection to each node, timers, and the tree that judges answers.
//
// # Heights
//
// A storage node takes a block up when the next header is proved, so it is two blocks behind. What
// changed in these blocks is in the validator's memory, and a stub of its tree has the same hash
// there: so each range is asked at the newest height that its replicas claim. Only the way to a key
// can differ: a leaf beside it may have been deleted since. Then nothing opens below the stub, and
// the way to the key's predecessor is asked for.
//
// # Trust
//
// Bags prove themselves when they are grafted. Before that, trees whose root nobody asked for are
// dropped, and what no honest node can have sent is a lie: its node is named, with range and
// reason, and not asked for a while (see package dsm/ask).
package source
