package scheduler

import "time"

// PeerID names a peer. Its order is the last tie-break, so it should not be one that peers can
// choose freely.
type PeerID string

// ItemID names an item. The caller chooses it, and never uses it twice.
type ItemID uint64

// Group joins the items of one snapshot. A peer that answers "gone" for one of them no longer has
// any of the group, nor the part of it that it had.
type Group uint32

// RequestID names a request; it is never used twice.
type RequestID uint64

// Item is what one request asks for.
type Item struct {
	ID    ItemID
	Group Group
	At    uint32 // its place in the group, by which Part counts; several items may have the same
	Bytes uint64 // of an honest answer, at most: the size of the buffer
	Exact bool   // an honest answer has exactly Bytes
}

const (
	// DefaultMemory is the limit, in bytes, of a Scheduler that is made without one.
	DefaultMemory = 256 << 20

	// patience is how often a request is compared with what other peers achieve.
	patience = 3 * time.Second
	// giveUp is how long a late request without any progress is kept although no other needs its
	// memory. It doubles for a peer whenever one of its requests is given up.
	giveUp = 30 * time.Second
	// backOff is how long a peer is left alone after its first failure. It doubles up to
	// maxBackOff.
	backOff    = 500 * time.Millisecond
	maxBackOff = time.Minute
	// horizon is how far ahead a proven peer is given work at least, however short its round trip.
	horizon = 50 * time.Millisecond
	// atHandBytes of answers that are here and not verified are enough, if they are more answers
	// than limits.atHand: while there are more, nobody is asked for anything.
	atHandBytes = 8 << 20
)

// limits of a Scheduler. Zero means the default. Only tests change any but those of New.
type limits struct {
	memory  int64 // see New
	perPeer int   // requests in flight at one proven peer, at most
	copies  int   // requests in flight for one item, at most
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

// Event is something that has happened: one of the types below, by value. An event about an
// unknown, lost or banned peer, or about a request that has ended, is ignored, so the caller's
// goroutines need not be ordered.
type Event interface{ event() }

type (
	// PeerUp: a peer is connected.
	PeerUp struct{ Peer PeerID }
	// PeerDown: the connection is lost, which is no lie. Its requests in flight are cancelled; its
	// answers that are being verified remain. What it has must be told again after the next PeerUp;
	// that it is proven, and its failures, are remembered.
	PeerDown struct{ Peer PeerID }
	// PeerHas: a connected peer claims all of these groups, and these parts of others, and nothing
	// else.
	PeerHas struct {
		Peer   PeerID
		Groups []Group
		Parts  []Part
	}

	// Doubt: the last wrong answer of a connected peer proves nothing about it, since somebody else
	// may have sent it. With Over, it has given a right one since that proves who sent it.
	// Meanwhile it has one request at a time, whatever else it answers. PeerDown ends it, too.
	Doubt struct {
		Peer PeerID
		Over bool
	}

	// Add brings work, in the order of preference, after everything that was added before.
	Add struct{ Items []Item }
	// Drop takes items back: their requests in flight are cancelled. A Verify that was already
	// ordered is still to be answered, since its memory is in use until then.
	Drop struct{ Items []ItemID }

	// Progress: Bytes of the answer have arrived in total. It may be rare, if only a slow peer
	// causes one every 3 s; else its requests count as stalled although they arrive.
	Progress struct {
		Request RequestID
		Bytes   uint64
	}
	// Received: the whole answer is here. Verify follows, unless its length is impossible for the
	// item: that proves a lie, and the request has ended.
	Received struct {
		Request RequestID
		Bytes   uint64
	}
	// Verified answers Verify: the bytes are right, and the caller has put them where they belong.
	// The item is done and the memory of the request free.
	Verified struct{ Request RequestID }
	// Rejected answers Verify: the bytes prove a lie.
	Rejected struct {
		Request RequestID
		Reason  string
	}
	// Failed: a request in flight will have no answer; or, with Broken, the one that is being
	// verified is wrong and proves nothing.
	Failed struct {
		Request RequestID
		Reason  Reason
		Detail  string // of Lied, for Ban
	}

	// Tick: time has passed, as with every other event.
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

// Reason is why a request has failed.
type Reason int

const (
	// Gone: the peer no longer has the group. That is no lie, but it is not asked for that group
	// until the next PeerHas.
	Gone Reason = iota + 1
	// Busy: the peer wants to be asked later.
	Busy
	// Refused: the peer will not answer.
	Refused
	// Broken: the stream broke off, or our own side failed. That proves nothing about the peer.
	Broken
	// Lied: the transport has proof: an answer that is too long, or shorter than an exact item.
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

// Action is an order to the caller: one of the types below, by value, to be carried out in the
// order given.
//
// A request that was asked ends in exactly one of these ways: the caller reports Failed, Rejected,
// Verified, or Received with an impossible length; or it gets Cancel. Its buffer is free then and
// only then.
type Action interface{ action() }

type (
	// Ask is to be answered by Progress, Received or Failed.
	Ask struct {
		Request RequestID
		Peer    PeerID
		Item    ItemID
	}
	// Cancel: a request in flight is no longer needed.
	Cancel struct{ Request RequestID }
	// Verify has the answer of a request checked and, if it is right, put where it belongs. It is
	// to be answered by Verified, Rejected or Failed. There may be several at a time for one item;
	// the caller keeps one of the right answers and reports all as Verified.
	Verify struct{ Request RequestID }
	// Ban: a peer has lied, and there is proof. Its requests in flight get Cancel.
	Ban struct {
		Peer   PeerID
		Reason string
	}
	// Done: every item that was added is done or dropped. If the last ones were dropped, it comes
	// with the next Step, unless that adds items, so that dropping and adding may come in either
	// order.
	Done struct{}
)

func (Ask) action()    {}
func (Cancel) action() {}
func (Verify) action() {}
func (Ban) action()    {}
func (Done) action()   {}

// PeerState is the standing of a peer.
type PeerState int

const (
	StateNew     PeerState = iota // nothing verified yet: one request at a time
	StateProven                   // has given something true
	StateLate                     // one of its requests stalls: it gets no other
	StateWaiting                  // left alone for a while after a failure
	StateDown                     // not connected
	StateBanned                   // has lied
)

func (s PeerState) String() string {
	return [...]string{"new", "proven", "late", "waiting", "down", "banned"}[s]
}

// Stats is for a progress display. Counters cover the life of the Scheduler.
type Stats struct {
	Items, ItemsDone int         // added and not dropped; of these done
	Bytes, BytesDone uint64      // of these items, by Item.Bytes
	InFlight         int         // requests without an answer
	Verifying        int         // answers; also of dropped items
	MemoryBytes      int64       // in use
	Asked, Refetched int         // requests; of these not the first for their item
	Rejected         int         // answers that were proof of a lie
	WastedBytes      uint64      // that were of no use: lies, broken off, second copies, dropped
	Rate             uint64      // bytes per second: sum over the connected proven peers
	Peers            []PeerStats // in order of ID; lost ones too, while they are remembered
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
