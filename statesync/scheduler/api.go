package scheduler

import "time"

// PeerID identifies a peer. Its order is the last tie-breaker, so peers should not be able to
// choose it freely.
type PeerID string

// ItemID identifies an item. The caller chooses it and never reuses it.
type ItemID uint64

// Group identifies the items of one snapshot. A peer that answers "gone" for one of them no longer
// has any item of the group.
type Group uint32

// RequestID identifies a request. It is never reused.
type RequestID uint64

// Item is what one request asks for.
type Item struct {
	ID    ItemID
	Group Group
	At    uint32 // place in the group, which Part refers to; several items may share it
	Bytes uint64 // maximum length of an honest answer: the size of the buffer
	Exact bool   // an honest answer has exactly Bytes
}

const (
	// DefaultMemory is the memory limit, in bytes, if New is called without one.
	DefaultMemory = 256 << 20

	// patience is the interval of comparing a request with what other peers achieve.
	patience = 3 * time.Second
	// giveUp is how long a late request without any progress is kept if its memory is not needed.
	// It doubles for a peer whenever one of its requests is given up.
	giveUp = 30 * time.Second
	// backOff is how long a peer is not asked after its first failure. It doubles up to maxBackOff.
	backOff    = 500 * time.Millisecond
	maxBackOff = time.Minute
	// horizon is the minimum time ahead for which a proven peer is given work, however short its
	// round trip.
	horizon = 50 * time.Millisecond
	// While more than atHandBytes, in more than limits.atHand answers, have arrived and are not
	// verified yet, no peer is asked for anything.
	atHandBytes = 8 << 20
)

// limits of a Scheduler; zero means the default. Only tests change fields that New does not set.
type limits struct {
	memory  int64 // bytes, see New
	perPeer int   // maximum requests in flight per proven peer
	copies  int   // maximum requests in flight per item
	atHand  int   // see New
}

func (l limits) withDefaults() limits {
	if l.memory <= 0 {
		l.memory = DefaultMemory
	}
	if l.perPeer <= 0 {
		l.perPeer = 16
	}
	if l.copies <= 0 {
		l.copies = 3
	}
	l.atHand = max(l.atHand, 4)
	return l
}

// Event is one of the types below, by value. Events about unknown, lost or banned peers, and about
// requests that have ended, are ignored, so the caller's goroutines need no ordering.
type Event interface{ event() }

type (
	// PeerUp: a peer has connected.
	PeerUp struct{ Peer PeerID }
	// PeerDown: a peer has disconnected, which is not a fault. Its requests in flight are
	// cancelled; its answers that are being verified remain. Its claims must be reported again
	// after the next PeerUp. Whether it is proven, and its failures, are remembered.
	PeerDown struct{ Peer PeerID }
	// PeerHas: a connected peer claims all of these groups and these parts of others, and nothing
	// else.
	PeerHas struct {
		Peer   PeerID
		Groups []Group
		Parts  []Part
	}

	// Doubt: the last wrong answer of a connected peer proves nothing about it, since another
	// sender may have forged it. With Over, the peer has since given a right answer that proved its
	// sender. Until then it has one request at a time, whatever else it answers. PeerDown ends the
	// doubt, too.
	Doubt struct {
		Peer PeerID
		Over bool
	}

	// Add adds work, in order of preference, after everything added before.
	Add struct{ Items []Item }
	// Drop removes items and cancels their requests in flight. A Verify that was already returned
	// must still be answered, since its memory is in use until then.
	Drop struct{ Items []ItemID }

	// Progress: Bytes of the answer have arrived in total. Even a slow peer should cause one at
	// least every 3 s; otherwise its requests count as stalled although they make progress.
	Progress struct {
		Request RequestID
		Bytes   uint64
	}
	// Received: the answer is complete. Verify follows, unless the length is impossible for the
	// item: that proves a fault, and the request has ended.
	Received struct {
		Request RequestID
		Bytes   uint64
	}
	// Verified answers Verify: the bytes are right, and the caller has stored them. The item is
	// done and the memory of the request free.
	Verified struct{ Request RequestID }
	// Rejected answers Verify: the bytes prove a fault.
	Rejected struct {
		Request RequestID
		Reason  string
	}
	// Failed: a request in flight will have no answer. With Broken, it can also answer Verify: the
	// answer is wrong but proves nothing.
	Failed struct {
		Request RequestID
		Reason  Reason
		Detail  string // for Lied: the reason in Ban
	}

	// Tick: time has passed. Time passes with every other event, too.
	Tick struct{}
)

func (PeerUp) event()   {}
func (PeerDown) event() {}
func (PeerHas) event()  {}
func (Doubt) event()    {}
func (Add) event()      {}
func (Drop) event()     {}
func (Progress) event() {}
func (Received) event() {}
func (Verified) event() {}
func (Rejected) event() {}
func (Failed) event()   {}
func (Tick) event()     {}

// Reason is why a request failed.
type Reason int

const (
	// Gone: the peer no longer has the group. That is not a fault, but the peer is not asked for
	// the group until its next PeerHas.
	Gone Reason = iota + 1
	// Busy: the peer asks to be asked later.
	Busy
	// Refused: the peer will not answer.
	Refused
	// Broken: the stream broke off, or the request failed locally. That proves nothing about the
	// peer.
	Broken
	// Lied: the transport has proof of a fault: an answer that is too long, or shorter than an
	// exact item.
	Lied
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

// Action is one of the types below, by value. The caller performs actions in the given order.
//
// A request ends in exactly one of these ways: the caller reports Failed, Rejected, Verified, or
// Received with an impossible length; or the caller gets Cancel. Its buffer is in use until then.
type Action interface{ action() }

type (
	// Ask: send a request. The caller reports Progress, Received or Failed.
	Ask struct {
		Request RequestID
		Peer    PeerID
		Item    ItemID
	}
	// Cancel: a request in flight is no longer needed.
	Cancel struct{ Request RequestID }
	// Verify: verify the answer to a request and, if it is right, store it. The caller reports
	// Verified, Rejected or Failed. Several answers for one item may be verified at a time; the
	// caller keeps one of the right ones and reports all of them as Verified.
	Verify struct{ Request RequestID }
	// Ban: a peer is provably faulty. Its requests in flight get Cancel.
	Ban struct {
		Peer   PeerID
		Reason string
	}
	// Done: every added item is done or dropped. If the last items were dropped, Done comes with
	// the next Step unless that adds items, so that the caller may drop and add in either order.
	Done struct{}
)

func (Ask) action()    {}
func (Cancel) action() {}
func (Verify) action() {}
func (Ban) action()    {}
func (Done) action()   {}

// PeerState is the state of a peer.
type PeerState int

const (
	StateNew     PeerState = iota // nothing verified yet: one request at a time
	StateProven                   // an answer was verified
	StateLate                     // one of its requests stalls: it gets no other one
	StateWaiting                  // not asked for a while after a failure
	StateDown                     // not connected
	StateBanned                   // proved faulty
)

func (s PeerState) String() string {
	return [...]string{"new", "proven", "late", "waiting", "down", "banned"}[s]
}

// Stats are for a progress display. Counters cover the life of the Scheduler.
type Stats struct {
	Items, ItemsDone int         // items added and not dropped; those that are done
	Bytes, BytesDone uint64      // bytes of the same, by Item.Bytes
	InFlight         int         // requests without an answer
	Verifying        int         // answers being verified, including those for dropped items
	MemoryBytes      int64       // in use
	Asked, Refetched int         // requests; those that were not the first for their item
	Rejected         int         // answers that proved a fault
	WastedBytes      uint64      // received in vain: invalid, broken off, duplicate or dropped
	Rate             uint64      // bytes per second: sum over the connected proven peers
	Peers            []PeerStats // sorted by ID; includes lost peers that are remembered
}

// PeerStats describes a peer in Stats.
type PeerStats struct {
	ID            PeerID
	State         PeerState
	Rate          uint64        // measured bytes per second; 0: unknown
	RoundTrip     time.Duration // shortest time from request to first byte; 0: unknown
	InFlight      int
	Verified      int // items
	VerifiedBytes uint64
	WastedBytes   uint64
}
