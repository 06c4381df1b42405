// Package ask decides which nodes a validator asks for the parts of the state that its tree does
// not have. It is a pure state machine with events in and actions out.
//
//	Fetch ─► a leg for each range:
//
//	         opening   each part asks the replicas, each at the nearest height that it claims
//	            │ no replica opened anything: the paths lead elsewhere at their heights
//	            ▼
//	         neighbours ⇄ finding   the paths to the neighbours of the keys, one step further each time
//	            │ nothing there either, or no answer
//	            ▼
//	         helping   validators and full-state nodes at the exact height; earlier if replicas are slow
//	            │ no answer
//	            ▼
//	         Missed ─► Done once all legs are over, or enough has come
//
// A part is a set of wants of one range that fits into a request. Package hedge runs one search for
// each part: after a failure it asks the next node at once, and if a node is slow it asks further
// ones. Parts of several ranges that are asked of the same node in one step, at the same height and
// for the same fetch, share a request. If the node has no answer to it, because one range does not
// have the height or the answer would be too large, the node gets a request for each part.
//
// # Order
//
// Replicas are ordered by these criteria: no invalid answer so far; no recent "too large" answer; a
// claimed height; the nearest such height; the expected latency times the requests in flight. The
// latency estimate decays, so a slow node is tried again. Claims are hints: a replica without
// claims comes last, but it is asked.
//
// # Trust
//
// The caller validates answers, since only it has the tree. It reports an answer that no honest
// node sends as Refuted: the node is reported and avoided, for twice as long each time. "Gone" is
// not a fault; "busy" and "broken" cost a short pause. A helper that omits a path is not at fault
// either: helpers send only what they have.
//
// # Too large
//
// A node may wrongly claim that an answer would be too large, so another replica gets the same
// request. If it agrees, or there is no other, the wants are halved; a range of keys is cut in the
// middle. A want that cannot be halved is Oversized.
//
// # Termination
//
// Each replica and each helper is asked once for a part, or twice after a shared request, so a
// fetch ends whatever the nodes do. The caller then fetches the missing parts again.
package ask
