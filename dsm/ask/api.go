package ask

import (
	"time"

	"github.com/starling-kv/starling/dsm"
)

// FetchID names a fetch. The caller chooses it, and never uses it twice.
type FetchID uint64

// RequestID names a request; it is never used twice.
type RequestID uint64

// Policy holds what is a matter of judgement. All must be positive.
type Policy struct {
	Slow   time.Duration // a request that takes longer has another beside it
	GiveUp time.Duration // a request that takes longer is cancelled, and counts as broken
	Copies int           // maximum number of requests in flight for one part
	Wants  int           // maximum number of wants in a request

	Retry, MaxRetry     time.Duration // between two rounds; it doubles
	BackOff, MaxBackOff time.Duration // after a failure of a node; it doubles
	Avoid, MaxAvoid     time.Duration // after a lie of a node; it doubles
	Forget              time.Duration // half-life of the estimate of a node's time
}

// DefaultPolicy is for nodes within a data centre or a continent.
func DefaultPolicy() Policy {
	return Policy{
		Slow: 150 * time.Millisecond, GiveUp: 5 * time.Second, Copies: 3, Wants: 2048,
		Retry: 50 * time.Millisecond, MaxRetry: 2 * time.Second,
		BackOff: 100 * time.Millisecond, MaxBackOff: 2 * time.Second,
		Avoid: 10 * time.Second, MaxAvoid: 10 * time.Minute,
		Forget: 10 * time.Second,
	}
}

// Event is what happened: one of the types below, by value. Events about unknown nodes, and about
// fetches and requests that have ended, are ignored.
type Event interface{ event() }

type (
	// Fetch begins a fetch of what (*dsm.Ranges).Route returned. Rounds limits how often the
	// replicas of a range are asked; 0: until they answer.
	Fetch struct {
		ID     FetchID
		Height int64
		Parts  []dsm.Part
		Rounds int
	}
	// Drop ends a fetch: its requests in flight are cancelled.
	Drop struct{ ID FetchID }
	// Proved: the answer to a request opens what was wanted.
	Proved struct{ Request RequestID }
	// Refuted: the answer to a request proves that its node lied. Left are those of the request's
	// wants that are still to be opened, if the answer opened some all the same; nil: all of them.
	Refuted struct {
		Request RequestID
		Verdict Verdict
		Left    []dsm.Want
	}
	// Failed: a request has no usable answer, which proves nothing.
	Failed struct {
		Request RequestID
		Reason  Reason
	}
	// Claimed: a node says what it has. It replaces what it said before.
	Claimed struct {
		Node   dsm.Node
		Claims []dsm.Claim
	}
	// Up: a node is connected (again). Its failures are forgotten, but not its lies, and what waits
	// for one of its ranges is asked at once.
	Up struct{ Node dsm.Node }
	// Tick: time has passed, as with every other event.
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

// Verdict is what a lie consists of, in words for logs and metrics.
type Verdict string

// The verdicts that callers pronounce.
const (
	Undecodable  Verdict = "the answer is no bag"
	OpensNothing Verdict = "the bag opens nothing that was missing"
	Omits        Verdict = "the bag leaves out the way to a key of its range"
	TooLong      Verdict = "the answer is longer than was allowed"
	Unasked      Verdict = "the bag has what nobody asked for"
)

// Reason is why a request has failed.
type Reason int

const (
	// Gone: the node does not have the height, not yet or no longer.
	Gone Reason = iota + 1
	// Busy: the node wants to be asked later.
	Busy
	// Refused: the node does not answer such requests.
	Refused
	// Broken: the connection is lost, the request took too long, or our own side failed.
	Broken
	// TooLarge: what is wanted takes more than an answer can have. Another replica is asked for the
	// same; if that one says so too, or there is none, it is asked for in halves.
	TooLarge
)

func (r Reason) String() string {
	switch r {
	case Gone:
		return "gone"
	case Busy:
		return "busy"
	case Refused:
		return "refused"
	case Broken:
		return "broken"
	case TooLarge:
		return "too large"
	}
	return "unknown"
}

// Action is what the caller must do: one of the types below, by value, in the order given.
type Action interface{ action() }

type (
	// Ask sends a request to a node. The caller reports Proved, Refuted or Failed, unless Cancel
	// comes before. The wants must not be changed.
	Ask struct {
		Request RequestID
		Fetch   FetchID
		Node    dsm.Node
		Height  int64
		Range   dsm.Range
		Wants   []dsm.Want
	}
	// Cancel abandons a request: nothing that comes of it is wanted.
	Cancel struct{ Request RequestID }
	// Lied names a node that lied about a range; it is not asked for anything until then.
	Lied struct {
		Node    dsm.Node
		Range   dsm.Range
		Verdict Verdict
		Until   time.Duration
	}
	// Unserved: no replica of a range has answered in a whole round. It comes once for a range of a
	// fetch. The replicas are asked again unless GaveUp follows.
	Unserved struct {
		Fetch  FetchID
		Height int64
		Range  dsm.Range
		Tried  []Trial
	}
	// Oversized: the way to one key takes more than an answer can have. It is given up: there is no
	// smaller question. GaveUp follows when the rest of the fetch has ended.
	Oversized struct {
		Fetch FetchID
		Range dsm.Range
		Want  dsm.Want
	}
	// Done: everything of a fetch is open.
	Done struct{ Fetch FetchID }
	// GaveUp: a fetch ended, and of these ranges not all was served: in all its rounds, or since a
	// want was Oversized.
	GaveUp struct {
		Fetch  FetchID
		Ranges []dsm.Range
	}
)

func (Ask) action()       {}
func (Cancel) action()    {}
func (Lied) action()      {}
func (Unserved) action()  {}
func (Oversized) action() {}
func (Done) action()      {}
func (GaveUp) action()    {}

// Trial is what came of a replica in the last round of a part.
type Trial struct {
	Node dsm.Node
	Why  string
}

// Wait is a range that a fetch waits for, although all its replicas were asked.
type Wait struct {
	Fetch  FetchID
	Height int64
	Range  dsm.Range
	Since  time.Duration // since when
	Tried  []Trial
}
