// Package client connects a validator to the storage nodes of its state. It fetches the parts of
// the tree that the validator does not have, and sends the changes of each block to the storage
// nodes.
//
//	app ── Fetch(height, wants) ─► ask.Machine ──► witness (13) ──► storage nodes of each range
//	 ▲                              │   ▲                               │
//	 └────────── multiproofs ◄─────────────┘   └─ verdicts: lies, gone, busy ◄─┘
//
//	app ── Committed(height, v) ─► updates ─► feed.Machine ──► update (15) ──► every replica
//	 ▲                                          │  ▲                              │
//	 └── Room waits, Durable ◄──────────────────┘  └── claims (12), answers ◄─────┘
//
// Packages ask and feed choose the nodes to ask and to update; both are pure. This package adds
// connections, timers and the validation of answers.
//
// # Heights
//
// A storage node applies a block once the next header is proved, so it is two blocks behind. The
// validator has the changes of these two blocks in memory, and a stub in its tree has the same hash
// at the storage node; each replica is therefore asked at the newest height that it claims. Only
// the path to a key can differ, if a leaf next to it was deleted since. Then nothing opens below
// the stub, and the machine asks for the paths to the key's neighbours.
//
// # Trust
//
// Multiproofs are verified when they are grafted. Before that, trees with unrequested roots are
// dropped. A node that sends an answer that no honest node sends is reported with the range and the
// reason, and is not asked for a while.
package client
