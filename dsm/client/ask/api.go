package ask

import (
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
)

// FetchID identifies a fetch. The caller chooses it and never reuses it.
type FetchID uint64

// RequestID identifies a request. It is never reused.
type RequestID uint64

// Policy holds the tunable parameters. All must be positive.
type Policy struct {
	Slow    time.Duration // a request that takes longer is hedged
	GiveUp  time.Duration // a request that takes longer is cancelled, and counts as broken
	Copies  int           // maximum number of requests in flight to replicas for one part
	Wants   int           // maximum number of wants in a request
	Claim   time.Duration // how long a range waits for a first claim
	Help    time.Duration // helpers are asked for a range without an answer for so long
	Helpers int           // maximum number of helpers for one part
	Grace   time.Duration // minimum time between the first answer of a fetch and its end

	Doubt               time.Duration // how long "gone" and "too large" count against a node
	BackOff, MaxBackOff time.Duration // pause after a node's failure; it doubles
	Avoid, MaxAvoid     time.Duration // pause after a node's invalid answer; it doubles
	Forget              time.Duration // half-life of the estimate of a node's latency
}

// DefaultPolicy is for nodes within a data centre or a continent.
func DefaultPolicy() Policy {
	return Policy{
		Slow: 150 * time.Millisecond, GiveUp: 5 * time.Second, Copies: 3, Wants: 2048,
		Claim: time.Second, Help: 300 * time.Millisecond, Helpers: 8, Grace: 20 * time.Millisecond,
		Doubt: 2 * time.Second, BackOff: 100 * time.Millisecond, MaxBackOff: 2 * time.Second,
		Avoid: 10 * time.Second, MaxAvoid: 10 * time.Minute, Forget: 10 * time.Second,
	}
}

// Event is one of the types below, by value. Events about unknown nodes, and about fetches and
// requests that have ended, are ignored.
type Event interface{ event() }

type (
	// Fetch begins a fetch.
	Fetch struct {
		ID     FetchID
		Height int64 // height of the requested state
		// Parts is the result of (*dsm.Ranges).Route. Held is the number of hashes in each request
		// for a part. Upper requests the upper tree from each range instead; Parts and Held are
		// then nil.
		Parts []dsm.Part
		Held  []int
		Upper bool
		// The fetch ends once answers total MaxBytes; 0: no limit.
		MaxBytes int
		// Helpers are connected nodes other than storage nodes, in order of preference.
		Helpers []dsm.NodeID
	}
	// Drop ends a fetch and cancels its requests in flight. A Missed follows for each unfinished
	// range.
	Drop struct{ ID FetchID }
	// Proved: the answer to a request opens what was requested. Bytes is its length.
	Proved struct {
		Request RequestID
		Bytes   int
		// Nothing are those ranges of Ask.Ranges in which the answer opens nothing.
		Nothing []int
		// Leaves answers Ask.Around: for each key the adjacent leaf, or nil if there is none.
		Leaves [][]byte
	}
	// Refuted: the answer to a request proves that its node is faulty. Left are the request's wants
	// that the answer did not open; nil: it opened none of them.
	Refuted struct {
		Request RequestID
		Verdict Verdict
		Bytes   int
		Left    []avlstar.Want
		// Nothing is that of Proved.
		Nothing []int
	}
	// Failed: a request ended without a usable answer. This does not prove a fault.
	Failed struct {
		Request RequestID
		Reason  Reason
	}
	// Claimed: a node reported its claims. They replace its previous claims.
	Claimed struct {
		Node   dsm.NodeID
		Claims []dsm.Claim
	}
	// Up: a storage node has connected. Its failures are forgotten, its invalid answers are not.
	Up struct{ Node dsm.NodeID }
	// Tick: time has passed. Time passes with every other event, too.
	Tick struct{}
)

func (Fetch) event()   {}
func (Drop) event()    {}
func (Proved) event()  {}
func (Refuted) event() {}
func (Failed) event()  {}
func (Claimed) event() {}
func (Up) event()      {}
func (Tick) event()    {}

// Verdict says why an answer cannot come from an honest node.
type Verdict string

// The verdicts that callers report.
const (
	Undecodable  Verdict = "the answer is not a multiproof"
	OpensNothing Verdict = "the multiproof opens nothing that was missing"
	Omits        Verdict = "the multiproof omits the path to a key of its range"
	TooLong      Verdict = "the answer is longer than allowed"
	Unasked      Verdict = "the multiproof contains nodes that were not requested"
)

// Reason is why a request failed.
type Reason int

const (
	// Gone: the node does not have the height, either not yet or no longer.
	Gone Reason = iota + 1
	// Busy: the node asks to be asked later.
	Busy
	// Refused: the node does not answer such requests.
	Refused
	// Broken: the connection was lost, the request timed out, or it failed locally.
	Broken
	// TooLarge: the answer would be longer than allowed. Another replica gets the same request. If
	// it agrees, or there is no other, the wants are halved.
	TooLarge
	// Nothing: the node has the height, but nothing opens below the stubs, because the paths lead
	// elsewhere at that height.
	Nothing
)

func (r Reason) String() string {
	names := [...]string{Gone: "gone", Busy: "busy", Refused: "refused", Broken: "broken", TooLarge: "too large", Nothing: "nothing"}
	if r < Gone || int(r) >= len(names) {
		return "unknown"
	}
	return names[r]
}

// Action is what the caller must do: one of the types below, by value, in the given order.
type Action interface{ action() }

// Kind is what a request asks for.
type Kind int

const (
	Open     Kind = iota // the wants, below the stubs of the fetch for range Ask.Of
	Neighbor             // paths to neighbours of wanted keys, below the same stubs
	Path                 // the same paths from the root, to find the neighbours; see Ask.Around
	Upper                // the upper tree
)

type (
	// Ask sends a request to a node. The caller reports Proved, Refuted or Failed, unless it
	// receives Cancel first. The caller must not modify the wants.
	Ask struct {
		Request RequestID
		Fetch   FetchID
		Node    dsm.NodeID
		Kind    Kind
		Height  int64
		Shard   int // number of the range that contains the wants
		Of      int // number of the range that the fetch needs them for
		// Also are further ranges of the node, each of which contains some of the wants and needs
		// them for itself. Used with Open only.
		Also  []int
		Wants []avlstar.Want
		// Around are keys whose neighbours the answer shows: the next lower leaves, or the next
		// higher leaves if Above is set. Used with Path only.
		Around [][]byte
		Above  bool
	}
	// Cancel abandons a request; the caller must discard its outcome.
	Cancel struct{ Request RequestID }
	// Lied names a node that sent an invalid answer for a range. It is not asked before Until.
	Lied struct {
		Node    dsm.NodeID
		Shard   int
		Verdict Verdict
		Until   time.Duration
	}
	// Missed: a range of a fetch was not opened completely. It is sent at most once for a range.
	Missed struct {
		Fetch  FetchID
		Shard  int
		Height int64 // height of the last attempt
		Why    Why
		Tried  []Trial // the outcome of each replica, if none of them served a part
		// Oldest is the lowest height that a replica claims, if all replicas claim only heights
		// above that of the fetch and nothing was opened; otherwise 0.
		Oldest int64
	}
	// Done is the last action of a fetch.
	Done struct{ Fetch FetchID }
)

// Ranges returns the numbers of the ranges that the fetch needs the wants for.
func (a Ask) Ranges() []int { return append([]int{a.Of}, a.Also...) }

func (Ask) action()    {}
func (Cancel) action() {}
func (Lied) action()   {}
func (Missed) action() {}
func (Done) action()   {}

// Why is why a range was missed.
type Why int

const (
	// Unserved: no replica and no helper answered.
	Unserved Why = iota + 1
	// Elsewhere: replicas have a height, but at that height neither the paths to the keys nor the
	// paths to their neighbours open anything.
	Elsewhere
	// Oversized: the answer to a single want would be too large.
	Oversized
	// Late: the fetch was dropped, reached MaxBytes, or passed its deadline.
	Late
)

func (w Why) String() string {
	return [...]string{Unserved: "unserved", Elsewhere: "elsewhere", Oversized: "oversized", Late: "late"}[w]
}

// Trial is the outcome of asking a replica.
type Trial struct {
	Node dsm.NodeID
	Why  string
}
