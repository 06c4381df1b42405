package scheduler

import "time"

// PeerID names a peer. Its order is the last tie-break, so it should not be one that peers choose freely.
type PeerID string

// ItemID names an item; the caller chooses it and never uses it twice.
type ItemID uint64

// Group joins the items of one snapshot: a peer that is "gone" for one of them has none of the group any more.
type Group uint32

// RequestID names a request; it is never used twice.
type RequestID uint64

// Item is what is asked for in one piece.
type Item struct {
	ID    ItemID
	Group Group
	Bytes uint64 // of an honest answer, at most: the size of the buffer
	Exact bool   // an honest answer has exactly Bytes
}

// Options are the limits of a Scheduler. Zero values mean the defaults.
type Options struct {
	// MemoryBytes bounds the bytes of requests in flight and of answers that are not yet written or rejected (default 256 MiB).
	// One item is always allowed, however large.
	MemoryBytes int64
	MaxPerPeer  int // requests in flight at one proven peer, at most (default 16)
	MaxCopies   int // requests in flight for one item, at most (default 3)

	// Patience is how often a request is compared with what other peers achieve (default 3 s).
	Patience time.Duration
	// GiveUp is how long a late request without any progress is kept although nobody needs its memory (default 30 s, and never
	// less than Patience). It doubles for a peer whenever a request of its is given up.
	GiveUp     time.Duration
	BackOff    time.Duration // how long a peer is left alone after its first failure; doubles (default 500 ms)
	MaxBackOff time.Duration // and at most so long (default 1 min)
	Horizon    time.Duration // a proven peer is given work for at least so long, however near it is (default 50 ms)
}

const (
	defaultMemory     = 256 << 20
	defaultMaxPerPeer = 16
	defaultMaxCopies  = 3
	defaultPatience   = 3 * time.Second
	defaultGiveUp     = 30 * time.Second
	defaultBackOff    = 500 * time.Millisecond
	defaultMaxBackOff = time.Minute
	defaultHorizon    = 50 * time.Millisecond
)

func (o Options) withDefaults() Options {
	o.MemoryBytes = positive(o.MemoryBytes, defaultMemory)
	o.MaxPerPeer = positive(o.MaxPerPeer, defaultMaxPerPeer)
	o.MaxCopies = positive(o.MaxCopies, defaultMaxCopies)
	o.Patience = positive(o.Patience, defaultPatience)
	o.GiveUp = max(positive(o.GiveUp, defaultGiveUp), o.Patience)
	o.BackOff = positive(o.BackOff, defaultBackOff)
	o.MaxBackOff = max(positive(o.MaxBackOff, defaultMaxBackOff), o.BackOff)
	o.Horizon = positive(o.Horizon, defaultHorizon)
	return o
}

func positive[T int | int64 | time.Duration](v, otherwise T) T {
	if v > 0 {
		return v
	}
	return otherwise
}

// Event is what happened: one of the types below, by value. An event about an unknown, lost or banned peer, or about a request that has
// ended, is ignored, so the caller need not order its threads.
type Event interface{ event() }

type (
	// PeerUp says that a peer is connected.
	PeerUp struct{ Peer PeerID }
	// PeerDown says that the connection is lost, which is no lie. Its requests in flight are cancelled; answers that are being
	// verified go on. What it had must be told again after the next PeerUp; that it is proven, and its failures, are remembered.
	PeerDown struct{ Peer PeerID }
	// PeerHas says which groups a connected peer claims to have. It replaces what was known.
	PeerHas struct {
		Peer   PeerID
		Groups []Group
	}

	// Add brings work, in the order of preference, after all that was added before.
	Add struct{ Items []Item }
	// Drop takes back items that are not wanted any more: their requests in flight are cancelled. A Verify or Write that was
	// already ordered is still to be answered, since its memory is in use until then.
	Drop struct{ Items []ItemID }

	// Progress says that so many bytes of the answer have arrived in all. Any granularity that a slow peer reaches within
	// Options.Patience will do; with a coarser one its requests count as stalled while they arrive.
	Progress struct {
		Request RequestID
		Bytes   uint64
	}
	// Received says that the whole answer is here. A length that is impossible for the item is a proof of a lie, as in Lied.
	Received struct {
		Request RequestID
		Bytes   uint64
	}
	// Verified answers Verify: the bytes are right.
	Verified struct{ Request RequestID }
	// Rejected answers Verify: the bytes are proof of a lie.
	Rejected struct {
		Request RequestID
		Reason  string
	}
	// Failed says that a request in flight will bring no answer.
	Failed struct {
		Request RequestID
		Reason  Reason
		Detail  string // of Lied, for Ban
	}
	// Written answers Write: the item is done and its memory free.
	Written struct{ Item ItemID }

	// Tick says that time has passed. Every other event says so too.
	Tick struct{}
)

func (PeerUp) event()   {}
func (PeerDown) event() {}
func (PeerHas) event()  {}
func (Add) event()      {}
func (Drop) event()     {}
func (Progress) event() {}
func (Received) event() {}
func (Verified) event() {}
func (Rejected) event() {}
func (Failed) event()   {}
func (Written) event()  {}
func (Tick) event()     {}

// Reason is why a request failed.
type Reason int

const (
	Gone    Reason = iota + 1 // the peer has the group no longer: no lie, but it is not asked for that group until the next PeerHas
	Busy                      // ask later
	Refused                   // the peer does not want to
	Broken                    // the stream broke off, or our own side failed: nobody's proven fault
	Lied                      // proof at the level of the transport: an answer too long, or shorter than an exact item
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
	case Lied:
		return "lied"
	}
	return "unknown"
}

// Action is what the caller is to do: one of the types below, by value, in the order given.
//
// A request that was asked ends in exactly one of these ways: the caller reported Failed or Rejected, or Written for its Write; or
// it got Cancel. Its buffer is free then and only then.
type Action interface{ action() }

type (
	// Ask is to be answered by Progress, Received or Failed.
	Ask struct {
		Request RequestID
		Peer    PeerID
		Item    ItemID
	}
	// Cancel says that a request is not needed any more, or its answer, if that was reported as Verified.
	Cancel struct{ Request RequestID }
	// Verify is to be answered by Verified or Rejected.
	Verify struct{ Request RequestID }
	// Write is to be answered by Written.
	Write struct {
		Request RequestID
		Item    ItemID
	}
	// Ban says that a peer has lied, and there is proof. Its requests in flight get Cancel.
	Ban struct {
		Peer   PeerID
		Reason string
	}
	// Starved says, once, that items of the group are to be asked for and nobody connected has it: retarget, or wait.
	Starved struct{ Group Group }
	// Done says that nothing is left: every item added is written or dropped. If the last ones were dropped, it comes with the
	// next Step unless that adds items, so that dropping and adding may come in either order.
	Done struct{}
)

func (Ask) action()     {}
func (Cancel) action()  {}
func (Verify) action()  {}
func (Write) action()   {}
func (Ban) action()     {}
func (Starved) action() {}
func (Done) action()    {}

// PeerState says how a peer stands.
type PeerState int

const (
	StateNew     PeerState = iota // nothing verified yet: one request at a time
	StateProven                   // has given something true
	StateLate                     // a request of its stalls: it gets no other
	StateWaiting                  // left alone for a while after a failure
	StateDown                     // not connected
	StateBanned                   // has lied
)

func (s PeerState) String() string {
	return [...]string{"new", "proven", "late", "waiting", "down", "banned"}[s]
}

// Stats is for a progress display. Counters cover the life of the Scheduler.
type Stats struct {
	Items, ItemsDone   int         // added and not dropped; of these written
	Bytes, BytesDone   uint64      // of these items, by Item.Bytes
	InFlight           int         // requests waiting for an answer
	Verifying, Writing int         // answers; dropped items count until the caller has answered
	MemoryBytes        int64       // in use
	Asked, Refetched   int         // requests; of these not the first for their item
	Rejected           int         // answers that were proof of a lie
	WastedBytes        uint64      // arrived for nothing: lies, broken off, second copies, dropped
	Rate               uint64      // bytes per second: sum over the connected proven peers
	Peers              []PeerStats // in order of ID; lost ones too, as long as they are remembered
}

// PeerStats is a peer in Stats.
type PeerStats struct {
	ID            PeerID
	State         PeerState
	Rate          uint64        // bytes per second, as measured; 0: not yet
	RoundTrip     time.Duration // least time from asking to the first byte; 0: not yet
	InFlight      int
	Verified      int // items
	VerifiedBytes uint64
	WastedBytes   uint64
}
