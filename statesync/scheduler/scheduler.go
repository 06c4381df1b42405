package scheduler

import "time"

// Scheduler is the state machine: give every event to Step, do what it returns, and give it a Tick when Next says so. It is not safe for
// concurrent use.
type Scheduler struct {
	opts Options
	now  time.Duration
	out  []Action // of the step under way

	peers     map[PeerID]*peer
	connected []*peer // by id
	lost      []*peer // not connected, in the order lost
	groups    map[Group]*group
	wanted    []*group // of these those with live items, by id
	items     map[ItemID]*item
	requests  map[RequestID]*request
	timers    heap[*timer]

	oldest, newest *request // in flight, in the order asked
	used, probing  uint64   // bytes of memory; of these in flight from peers that are not trusted
	seq            uint64
	lastRequest    RequestID
	lastTimer      uint64
	live           int           // items neither written nor dropped
	owing          bool          // Done, when nothing is left
	dropped        bool          // Done waits for the next step
	wake           time.Duration // when the end game wants to look again; 0: never
	endGameAt      time.Duration // the next one, at the earliest
	noRoomUntil    time.Duration // nothing to cancel was found for so long

	added, done                  int
	addedBytes, doneBytes        uint64
	inFlight, verifying, writing int
	asked, refetched, rejected   int
	wasted                       uint64

	refKnown bool // reference is up to date
	refRate  uint64
	refRTT   time.Duration

	// Kept between steps only for their memory.
	trusted, probes, idle []*peer
	list                  []outstanding
	rates                 []uint64
	rtts                  []time.Duration
}

// New returns a Scheduler without peers and items.
func New(opts Options) *Scheduler {
	return &Scheduler{
		opts:  opts.withDefaults(),
		peers: map[PeerID]*peer{}, groups: map[Group]*group{}, items: map[ItemID]*item{}, requests: map[RequestID]*request{},
		timers: heap[*timer]{
			less: func(a, b *timer) bool { return a.at < b.at || a.at == b.at && a.n < b.n },
			at:   func(t *timer) *int { return &t.place },
		},
	}
}

// Step takes an event and says what to do. now never goes back; if it does, it stands still.
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

// take takes an event into account. It reports whether there may be something to hand out now.
func (s *Scheduler) take(e Event) bool {
	switch e := e.(type) {
	case PeerUp:
		s.peerUp(e.Peer)
	case PeerDown:
		s.peerDown(e.Peer)
	case PeerHas:
		if p, ok := s.active(e.Peer); ok {
			s.peerHas(p, e.Groups)
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
		if r := s.requests[e.Request]; r != nil && r.phase == flying {
			s.failed(r, e.Reason, e.Detail)
		}
	case Written:
		if it := s.items[e.Item]; it != nil && it.writing != nil {
			s.written(it)
		}
	}
	return true
}

// expire looks at what is due.
func (s *Scheduler) expire() (due bool) {
	for {
		t, ok := s.timers.first()
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

// settle says what the caller cannot see: that nobody can be asked, or that nothing is left.
func (s *Scheduler) settle(e Event) {
	for _, g := range s.wanted {
		if g.holders == 0 && len(g.order.v) > 0 && !g.starved {
			g.starved = true
			s.do(Starved{g.id})
		}
	}
	if !s.owing || s.live > 0 || s.writing > 0 {
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

// Next says when a Tick is due at the latest, if no other event comes before; false: never.
func (s *Scheduler) Next() (time.Duration, bool) {
	if s.dropped {
		return s.now, true
	}
	at, ok := s.wake, s.wake > 0
	if t, some := s.timers.first(); some && (!ok || t.at < at) {
		at, ok = t.at, true
	}
	return at, ok
}
