// Package feed decides which updates a validator sends to which replica, which updates it keeps for
// replicas that have not acknowledged them, and when the next block must wait for replicas. It is a
// pure state machine with events in and actions out.
//
//	             heard from, within the lag
//	unheard ──────────────────────────────► in step ◄──────────────────┐ Back: it waits for an
//	   │                                       │                       │ update that is in the queue
//	   │  its lag is above the limit, and      │                       │
//	   └─ min_acks others are within it ───────┴─────► lagging ────────┘
//	                                        Left: it catches up from chunks
//
// # Which validator sends
//
// Every validator has every update and keeps it until the replicas have acknowledged it. For each
// update and replica the validators have an order, which rotates by one with each height. The first
// validator sends at once. The others among the first Senders probe one after another, Stagger
// apart, and send only the missing bytes. If the replica still waits after Patience, the next
// Senders follow, and so on, so one honest validator is enough. A replica that receives a later
// update than the one that it waits for says so in its answer. The validator that receives this
// answer sends the missing update at once.
//
// Validators with the full state count in the order, but make no updates; others may be down. A
// validator leaves out those before it that have missed several turns at a replica, for a while. If
// it is wrong about one, both send at once: an update then crosses the network twice, until this
// while is over.
//
// # What is kept
//
// A replica that is in step pins all updates above its durable height: in a crash it may lose
// updates that are not logged. The queue of a range is therefore at most as long as the allowed lag
// plus one block. A replica that lags more leaves the queue once enough others are within the lag;
// until then the next block waits (Blocked). In addition to the pinned updates, the latest updates
// are kept for a replica that has left and is fetching its range at an earlier block: all ranges
// share one budget (KeepBytes), and the oldest heights go first, whatever range they belong to. The
// last few are always kept while a range has fewer than min_acks replicas in step: no block may
// come after them.
//
// # What an event costs
//
// There can be thousands of ranges, and each of their replicas answers at each height. So an event
// visits only the replicas of the ranges that it concerns, and those to which something is due;
// only a block visits all. What is due, and which ranges are blocked or slow, is in heaps.
package feed
