package scheduler

import (
	"time"

	"github.com/starling-kv/starling/internal/heap"
)

// Scheduler is the state machine. The caller passes every event to Step, performs the returned
// actions, and passes a Tick when Next is due. It is not safe for concurrent use.
type Scheduler struct {
	limits limits
	now    time.Duration
	out    []Action // actions of the current step

	peers     map[PeerID]*peer
	connected []*peer // sorted by ID
	lost      []*peer // disconnected, in order of disconnection
	groups    map[Group]*group
	wanted    []*group // groups with live items, sorted by ID
	items     map[ItemID]*item
	requests  map[RequestID]*request
	timers    heap.Heap[*timer]

	oldest, newest *request // ends of the list of requests in flight, in order of sending
	used, probing  uint64   // bytes of memory in use; the share in flight from untrusted peers
	seq            uint64
	lastRequest    RequestID
	lastTimer      uint64
	live           int           // items neither done nor dropped
	owing          bool          // Done must be returned when nothing is left
	dropped        bool          // Done is deferred to the next step
	wake           time.Duration // time of the next end game; 0: none
	endGameAt      time.Duration // earliest time of the next end game
	noRoomUntil    time.Duration // makeRoom found nothing to cancel and is not tried before

	added, done                int
	addedBytes, doneBytes      uint64
	inFlight, verifying        int
	unverified                 uint64 // bytes of answers being verified
	asked, refetched, rejected int
	wasted                     uint64

	refKnown bool // reference is up to date
	refRate  uint64
	refRTT   time.Duration

	// Kept between steps to reuse their memory.
	trusted, probes, idle []*peer
	list                  []outstanding
	rates                 []uint64
	rtts                  []time.Duration
}

// New returns a Scheduler without peers and items. memoryBytes limits the bytes of requests in
// flight and of answers being verified; 0 means DefaultMemory. One item is always allowed, however
// large. verifiers is the number of answers verified at a time. Once slightly more answers are
// waiting, no further requests are sent, unless the answers are short.
func New(memoryBytes int64, verifiers int) *Scheduler {
	return newScheduler(limits{memory: memoryBytes, atHand: verifiers + 2})
}

func newScheduler(l limits) *Scheduler {
	return &Scheduler{
		limits: l.withDefaults(),
		peers:  map[PeerID]*peer{}, groups: map[Group]*group{}, items: map[ItemID]*item{}, requests: map[RequestID]*request{},
		timers: heap.Heap[*timer]{
			Before: func(a, b *timer) bool { return a.at < b.at || a.at == b.at && a.n < b.n },
			Place:  func(t *timer) *int { return &t.place },
		},
	}
}

// Step takes an event and returns the actions for the caller. A now before that of an earlier Step
// counts as the latest.
func (s *Scheduler) Step(now time.Duration, e Event) []Action {
	s.now = max(s.now, now)
	s.out = nil
	changed := s.take(e)
	if s.expire() || changed {
		s.assign()
		s.settle(e)
	}
	return s.out
}

func (s *Scheduler) do(a Action) { s.out = append(s.out, a) }

// take changes the state according to an event. It reports whether there may now be something to
// hand out.
func (s *Scheduler) take(e Event) bool {
	switch e := e.(type) {
	case PeerUp:
		s.peerUp(e.Peer)
	case PeerDown:
		s.peerDown(e.Peer)
	case PeerHas:
		if p, ok := s.active(e.Peer); ok {
			s.peerHas(p, e.Groups, e.Parts)
		}
	case Doubt:
		if p, ok := s.active(e.Peer); ok {
			p.doubted = !e.Over
		}
	case Add:
		s.add(e.Items)
	case Drop:
		s.drop(e.Items)
	case Progress:
		r := s.requests[e.Request]
		if r == nil || r.phase != flying {
			return false
		}
		had := s.room(r.peer)
		s.arrived(r, e.Bytes)
		return !had && s.room(r.peer)
	case Received:
		if r := s.requests[e.Request]; r != nil && r.phase == flying {
			s.received(r, e.Bytes)
		}
	case Verified:
		if r := s.requests[e.Request]; r != nil && r.phase == verifying {
			s.verified(r)
		}
	case Rejected:
		if r := s.requests[e.Request]; r != nil && r.phase == verifying {
			s.lied(r, e.Reason)
		}
	case Failed:
		if r := s.requests[e.Request]; r != nil && (r.phase == flying || e.Reason == Broken) {
			s.failed(r, e.Reason, e.Detail)
		}
	}
	return true
}

// expire performs the checks that are due.
func (s *Scheduler) expire() (due bool) {
	for {
		t, ok := s.timers.First()
		if !ok || t.at > s.now {
			return due || s.wake > 0 && s.wake <= s.now
		}
		due = true
		s.stopTimer(t)
		if t.request != nil {
			s.check(t.request)
		}
	}
}

// settle returns Done when nothing is left.
func (s *Scheduler) settle(e Event) {
	if !s.owing || s.live > 0 {
		s.dropped = false
		return
	}
	if _, is := e.(Drop); is {
		s.dropped = true
		return
	}
	s.owing, s.dropped = false, false
	s.do(Done{})
}

// Next returns when a Tick is due if no other event comes before; false: never.
func (s *Scheduler) Next() (time.Duration, bool) {
	if s.dropped {
		return s.now, true
	}
	at, ok := s.wake, s.wake > 0
	if t, some := s.timers.First(); some && (!ok || t.at < at) {
		at, ok = t.at, true
	}
	return at, ok
}
