// Package ask decides which replica of which range is asked for which witness. It is a pure state
// machine, events in and actions out.
//
//	Fetch ──► parts ──── a round: each replica once at most ──────────────┐
//	           ▲  │                                                       │ none is left
//	           │  └─Ask─► asked ──Proved──► done ──► Done                 ▼
//	           │           │ │ │                                     Unserved, with the range
//	           │           │ │ └─ slow: the next replica beside           │
//	           │           │ └─── gone, busy, broken: the next            │ after a while, or when
//	           │           └───── Refuted: Lied, and the next             │ a node is Up again
//	           └──────────────────────────────────────────────────────────┘ GaveUp after Rounds
//
// A fetch is what one execution lacks at one height, cut into parts by package dsm: wants of one
// range, few enough for a request. Each part goes through rounds; in a round package hedge asks the
// replicas, the best first. What is asked beside, and when, is its business.
//
// # Whom first
//
// A node that never lied before one that did, one that did not lately say "too large" before one
// that did, one whose claims have the height before one whose claims do not, then by the time that
// its answers took, times the requests that it owes. The
// estimate of a node that is not asked halves with time, so a slow one is tried again. Claims are
// hints: a replica without the right ones is asked last, but it is asked.
//
// # Trust
//
// The caller judges answers: only it knows the tree. A bag that does not decode, that opens nothing
// which was missing, or that leaves out the way to a key in the range, is a lie: its node is named
// and not asked for a while, twice as long each time. Gone is no fault, busy and broken are small
// ones.
//
// # Too large
//
// Who says that an answer would be too large blames itself: another replica is asked for the same.
// If that one agrees, or there is no other to ask, the wants are halved, and a range of keys is cut
// in the middle. What has no halves ends as Oversized.
//
// # Termination
//
// Without a limit of rounds a fetch ends when an honest replica of each range answers, whatever the
// others do. Between rounds the time doubles up to a limit. With a limit, it ends.
package ask
