package scheduler

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/starling-kv/starling/internal/heap"
)

// world is a joiner with its peers in virtual time: the I/O shell, the network and the peers,
// reduced to what the scheduler sees.
//
//	scheduler ──Ask──► peer: queue ──segments at its rate──► latency ──► downlink, shared ──► Progress, Received, Failed
//	    ▲                                                                                          │
//	    └── Verified, Rejected ◄── disk ◄── verifier ◄── Verify ◄────────────────────────────────────┘
type world struct {
	rng    *rand.Rand
	s      *Scheduler
	limits limits
	now    time.Duration
	queue  heap.Heap[*happening]
	n      uint64
	tick   *happening // for the time returned by Next

	downRate uint64 // bytes per second; 0: unlimited
	downFree time.Duration
	verify   time.Duration // per answer
	write    time.Duration
	segments int

	peers    []*simPeer
	items    map[ItemID]*simItem
	lastItem ItemID
	reqs     map[RequestID]*simRequest
	held     int64 // bytes lent
	group    Group // the newest one
	done     bool

	check    bool // check the invariants after every step
	steps    int
	asks     int
	liedOnly uint64 // bytes sent by faulty peers
	trace    func(format string, args ...any)
}

type happening struct {
	at    time.Duration
	n     uint64
	place int
	do    func() error
}

type simItem struct {
	Item
	verifying int           // answers
	writing   bool          // a right answer is being written or has been written
	waiting   []*simRequest // other right answers, until then
	written   bool
	dropped   bool
}

type simRequest struct {
	id        RequestID
	peer      *simPeer
	item      *simItem
	epoch     int
	got       uint64
	received  bool
	good      bool // the answer is right
	verifying bool
	ended     bool // its buffer is free
}

func newWorld(seed uint64, l limits) *world {
	w := &world{
		rng: rand.New(rand.NewPCG(seed, 0)), s: newScheduler(l), limits: l.withDefaults(), segments: 3, check: true,
		items: map[ItemID]*simItem{}, reqs: map[RequestID]*simRequest{},
		queue: heap.Heap[*happening]{
			Before: func(a, b *happening) bool { return a.at < b.at || a.at == b.at && a.n < b.n },
			Place:  func(h *happening) *int { return &h.place },
		},
	}
	return w
}

func (w *world) at(t time.Duration, do func() error) *happening {
	w.n++
	h := &happening{at: max(t, w.now), n: w.n, do: do}
	w.queue.Push(h)
	return h
}

func (w *world) after(d time.Duration, do func() error) { w.at(w.now+d, do) }

// addItems creates n items of a new group.
func (w *world) addItems(n int, size func(i int) (bytes uint64, exact bool)) []Item {
	w.group++
	var items []Item
	for i := range n {
		w.lastItem++
		it := Item{ID: w.lastItem, Group: w.group, At: uint32(i)}
		it.Bytes, it.Exact = size(i)
		w.items[it.ID] = &simItem{Item: it}
		items = append(items, it)
	}
	return items
}

// run executes events until the scheduler is done.
func (w *world) run(limit time.Duration) error {
	for !w.done {
		if w.tick != nil {
			w.queue.Remove(w.tick)
			w.tick = nil
		}
		if at, ok := w.s.Next(); ok {
			w.tick = w.at(at, func() error {
				w.tick = nil
				return w.step(Tick{})
			})
		}
		h, ok := w.queue.First()
		if !ok {
			return fmt.Errorf("at %v nothing will ever happen again; %s", w.now, w.left())
		}
		w.queue.Remove(h)
		w.now = h.at
		if w.now > limit {
			return fmt.Errorf("not done after %v; %s", limit, w.left())
		}
		if err := h.do(); err != nil {
			return fmt.Errorf("at %v: %w", w.now, err)
		}
	}
	for id, it := range w.items {
		if !it.dropped && !it.written {
			return fmt.Errorf("done at %v, but item %d is not written", w.now, id)
		}
	}
	return nil
}

func (w *world) left() string {
	st := w.s.Stats()
	return fmt.Sprintf("%d of %d items, %d in flight, peers %+v", st.ItemsDone, st.Items, st.InFlight, st.Peers)
}

// step passes an event to the scheduler, performs its actions, and checks both sides.
func (w *world) step(e Event) error {
	w.steps++
	if e, is := e.(PeerHas); is {
		for _, p := range w.peers {
			if p.id == e.Peer {
				p.told = slices.Clone(e.Groups)
				for _, part := range e.Parts {
					p.told = append(p.told, part.Group)
				}
			}
		}
	}
	actions := w.s.Step(w.now, e)
	if w.trace != nil {
		w.trace("%v %T%+v -> %T %+v", w.now, e, e, actions, actions)
	}
	for _, a := range actions {
		if err := w.act(a); err != nil {
			return fmt.Errorf("%T%+v: %T%+v: %w", e, e, a, a, err)
		}
	}
	if w.held > w.limits.memory && w.live() > 1 {
		return fmt.Errorf("%d bytes lent in %d requests: %v", w.held, w.live(), slices.Sorted(maps.Keys(w.reqs)))
	}
	if !w.check {
		return nil
	}
	return w.s.checkInvariants()
}

func (w *world) live() (n int) {
	for _, r := range w.reqs {
		if !r.ended {
			n++
		}
	}
	return n
}

func (w *world) act(a Action) error {
	switch a := a.(type) {
	case Ask:
		return w.ask(a)
	case Cancel:
		r := w.reqs[a.Request]
		if r == nil || r.ended || r.received {
			return fmt.Errorf("is not to be cancelled: %+v", r)
		}
		w.free(r)
	case Verify:
		r := w.reqs[a.Request]
		if r == nil || r.ended || !r.received || r.verifying {
			return fmt.Errorf("is not to be verified: %+v", r)
		}
		r.verifying = true
		r.item.verifying++
		w.after(w.verify, func() error { return w.verdict(r) })
	case Ban:
		p := w.peer(a.Peer)
		if p.honest() {
			return fmt.Errorf("an honest peer is banned: %s", a.Reason)
		}
		if p.banned {
			return fmt.Errorf("banned twice")
		}
		p.banned = true
		w.after(0, func() error { return w.disconnect(p) })
	case Done:
		w.done = true
	}
	return nil
}

// retargetAfter calls f once, as the shell does: when no connected peer has claimed group 1 for a
// while, or after d, since Byzantine peers may claim items that they never send.
func (w *world) retargetAfter(d time.Duration, f func()) {
	deadline, had := w.now+d, w.now
	var look func() error
	look = func() error {
		if w.done {
			return nil
		}
		for _, p := range w.peers {
			if p.connected && slices.Contains(p.told, 1) {
				had = w.now
			}
		}
		if w.now < deadline && w.now < had+4*time.Second {
			w.after(100*time.Millisecond, look)
			return nil
		}
		f()
		return nil
	}
	w.after(0, look)
}

func (w *world) peer(id PeerID) *simPeer {
	return w.peers[slices.IndexFunc(w.peers, func(p *simPeer) bool { return p.id == id })]
}

func (w *world) ask(a Ask) error {
	p, it := w.peer(a.Peer), w.items[a.Item]
	if !p.covers(it.At) {
		return fmt.Errorf("has %v, and is asked for %d", p.spans, it.At)
	}
	if !p.connected || p.banned || w.reqs[a.Request] != nil || it.dropped || it.verifying > 0 || it.written {
		return fmt.Errorf("is not to be asked: connected %v, banned %v, item %+v", p.connected, p.banned, it)
	}
	r := &simRequest{id: a.Request, peer: p, item: it, epoch: p.epoch}
	w.reqs[a.Request] = r
	w.held += int64(it.Bytes)
	w.asks++
	p.open++
	if p.open > 1 && p.verified == 0 {
		return fmt.Errorf("has nothing verified and %d requests", p.open)
	}
	w.after(p.latency/2, func() error { return p.take(w, r) })
	return nil
}

// free ends a request: its buffer belongs to the shell again.
func (w *world) free(r *simRequest) {
	if !r.ended {
		r.ended = true
		if r.verifying {
			r.item.verifying--
		}
		w.held -= int64(r.item.Bytes)
		r.peer.open--
		delete(w.reqs, r.id)
	}
}

// arrive is called when bytes come out of the downlink; total is their sum. The shell cuts off what
// is too long.
func (w *world) arrive(r *simRequest, total uint64, last, good bool) error {
	if !r.peer.honest() {
		w.liedOnly += total - r.got
	}
	r.got = total
	if r.ended && w.rng.IntN(2) == 0 {
		return nil // the shell knows; otherwise it does not know yet
	}
	switch {
	case r.received:
		return nil
	case total > r.item.Bytes:
		if !r.ended && w.rng.IntN(2) == 0 { // the scheduler detects it
			w.free(r)
			return w.step(Received{r.id, total})
		}
		return w.fail(r, Lied)
	case !last:
		return w.step(Progress{r.id, total})
	case r.item.Exact && total < r.item.Bytes:
		return w.fail(r, Lied)
	}
	if !r.ended {
		r.received, r.good = true, good
	}
	return w.step(Received{r.id, total})
}

func (w *world) fail(r *simRequest, why Reason) error {
	w.free(r)
	return w.step(Failed{Request: r.id, Reason: why})
}

func (w *world) verdict(r *simRequest) error {
	if r.ended {
		return fmt.Errorf("request %d ended while it was verified", r.id)
	}
	if !r.good {
		r.peer.rejected++
		w.free(r)
		if r.peer.honest() {
			return fmt.Errorf("the world is wrong: %s sent wrong bytes", r.peer.id)
		}
		return w.step(Rejected{r.id, "bad bytes"})
	}
	switch it := r.item; {
	case it.written || it.dropped:
		return w.verified(r)
	case it.writing: // answers that are Verified have been written
		it.waiting = append(it.waiting, r)
	default:
		it.writing = true
		w.after(w.write, func() error {
			it.written = true
			for _, r := range append([]*simRequest{r}, it.waiting...) {
				if err := w.verified(r); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return nil
}

func (w *world) verified(r *simRequest) error {
	r.peer.verified++
	w.free(r)
	return w.step(Verified{r.id})
}

// drop removes the unwritten items of all groups except the newest.
func (w *world) drop(g Group) error {
	var ids []ItemID
	for id := ItemID(1); id <= w.lastItem; id++ {
		if it := w.items[id]; it.Group == g && !it.written && !it.dropped {
			it.dropped = true
			ids = append(ids, id)
		}
	}
	return w.step(Drop{ids})
}
