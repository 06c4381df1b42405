// Package feed decides which updates a validator sends to which replica, what it keeps for those
// that have not acknowledged, and when a block must wait for them. It is a pure state machine,
// events in and actions out.
//
//	             heard of, within the lag
//	unheard ──────────────────────────────► in step ◄──────────────────┐ Back: it waits for an
//	   │                                       │                       │ update that is in the queue
//	   │  its lag is beyond the limit, and     │                       │
//	   └─ min_acks others are within it ───────┴─────► lagging ────────┘
//	                                        Left: it catches up by chunks
//
// # Who sends
//
// Every validator has every update, and every one of them keeps it until the replicas have
// acknowledged it. For each update and replica the validators have an order, which moves on by one
// with each height. The first sends at once. The next ones, Senders in all, probe one after
// another, Stagger apart, and send only what is not there yet; if the replica still waits after
// Patience, so do Senders more, and so on: one honest validator is enough. A replica that is sent a
// later update than the one that it waits for says so in its answer, and then gets that from
// whoever hears it, at once.
//
// # What is kept
//
// A replica that is in step pins the updates since its durable height: it may lose in a crash what
// is not logged. So the queue of a range is at most as long as the lag that is allowed, plus one
// block: a replica that lags more leaves it, once enough others are within the lag; as long as they
// are not, no further block is made (Blocked). Beyond what is pinned, the last updates are kept for
// a replica that has left and has chunks of some blocks ago.
package feed
