package rdma

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// maxDoubts is the number of wrong answers received over a path after which the path is ended.
const maxDoubts = 2

// lender implements tcp.Lender: the successive paths of an outbound connection.
type lender struct {
	fabric *Fabric
	conn   *tcp.Conn
	peer   transport.ID

	mu struct {
		sync.Mutex
		lent   *lending // of the path that is up, or is being set up; nil: none
		up     bool     // the path is up
		closed bool
		told   string // the reason that was reported last
	}
}

// Dialled implements tcp.Sides.
func (f *Fabric) Dialled(c *tcp.Conn) tcp.Lender {
	return &lender{fabric: f, conn: c, peer: c.Remote().ID}
}

// Start implements tcp.Lender.
func (l *lender) Start() {
	if !l.fabric.allowed(l.peer, l.conn.RemoteAddr()) {
		return
	}
	go l.run()
}

// run proposes paths until the connection or the fabric ends.
func (l *lender) run() {
	o := &l.fabric.o
	wait := o.retryLeast
	for {
		began := time.Now()
		s, err := l.propose()
		if err == nil {
			<-s.path.told
			if err = s.path.why(); !errors.Is(err, ErrPeerEnded) {
				l.conn.SideLost() // before the next path is proposed
			}
			// The delay is reset if the path lasted longer than the delay, unless its answers were
			// wrong.
			if time.Since(began) > wait && !errors.Is(err, ErrDoubted) {
				wait = o.retryLeast
			}
		}
		l.tell(err)
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-l.conn.Done():
		case <-l.fabric.ctx.Done():
		}
		t.Stop()
		if l.conn.Err() != nil || l.fabric.ctx.Err() != nil {
			return
		}
		wait = min(2*wait, o.retryMost)
	}
}

// tell reports a reason to the hook, unless it equals the last one.
func (l *lender) tell(why error) {
	if errors.Is(why, ErrConnEnded) {
		return
	}
	l.mu.Lock()
	again := l.mu.told == why.Error()
	l.mu.told = why.Error()
	l.mu.Unlock()
	if hook := l.fabric.o.Hooks.Down; hook != nil && !again {
		hook(l.peer, why)
	}
}

// propose sets up a path and returns it when it is up.
func (l *lender) propose() (*lending, error) {
	f := l.fabric
	ctx, cancel := context.WithTimeout(f.ctx, f.o.stall)
	defer cancel()
	d, err := f.device(l.conn.LocalAddr())
	if err != nil {
		return nil, err
	}
	s := &lending{lender: l}
	s.mu.places, s.mu.slots = newPlaces(f.o.units), make(map[int]*slot)
	p, err := f.newPath(d, l.peer, s, lendingSizes(f.o.units))
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.mu.lent, l.mu.up = s, false
	closed := l.mu.closed
	l.mu.Unlock()
	if closed {
		p.end(ErrConnEnded)
	}
	answer, err := l.conn.Call(ctx, transport.Call{Method: Method, Body: p.proposal().encode(), Max: proposalLength})
	if err != nil {
		p.end(err)
		return nil, fmt.Errorf("the exchange: %w", err)
	}
	theirs, err := decodeProposal(answer)
	if err == nil {
		err = p.connect(theirs, true)
	}
	if err == nil {
		select {
		case <-p.up:
		case <-p.ended:
			err = p.why()
		case <-l.conn.Done():
			err = ErrConnEnded
		case <-ctx.Done():
			err = fmt.Errorf("%w: no greeting", ErrStalled)
		}
	}
	if err == nil {
		err = l.adopt(s, theirs.endpoint.MTU)
	}
	if err != nil {
		p.end(err)
		l.conn.SideLost()
		return nil, p.why()
	}
	return s, nil
}

// adopt starts lending memory of a path.
func (l *lender) adopt(s *lending, peerMTU int) error {
	l.mu.Lock()
	lost := l.mu.lent != s
	if !lost {
		l.mu.up, l.mu.told = true, ""
	}
	l.mu.Unlock()
	if lost {
		return s.path.why()
	}
	if hook := l.fabric.o.Hooks.Up; hook != nil {
		hook(l.peer, Way{l.conn.LocalAddr().String(), s.path.queue.Local().MTU, peerMTU})
	}
	return nil
}

// lent returns the current path, nil if there is none. With up, only a path that is up counts.
func (l *lender) lent(up bool) *lending {
	l.mu.Lock()
	defer l.mu.Unlock()
	if up && !l.mu.up {
		return nil
	}
	return l.mu.lent
}

// Lend implements tcp.Lender.
func (l *lender) Lend(n int, landed func([]byte, bool) error, lost func()) tcp.Slot {
	if s := l.lent(true); s != nil {
		return s.lend(n, landed, lost)
	}
	return nil
}

// Up implements tcp.Lender.
func (l *lender) Up() bool { return l.lent(true) != nil }

// PeerLost implements tcp.Lender. The peer may mean an earlier path. Then this path ends
// needlessly, and a later one is set up.
func (l *lender) PeerLost() {
	if s := l.lent(false); s != nil {
		s.path.end(ErrPeerEnded)
	}
}

// Doubt implements tcp.Lender.
func (l *lender) Doubt() {
	if s := l.lent(true); s != nil && s.doubt() >= maxDoubts {
		go s.path.end(ErrDoubted)
	}
}

// Close implements tcp.Lender.
func (l *lender) Close() {
	l.mu.Lock()
	l.mu.closed = true
	s := l.mu.lent
	l.mu.Unlock()
	if s != nil {
		s.path.end(ErrConnEnded)
	}
}

// lending is the memory of a path that is lent to the server in slots.
type lending struct {
	lender *lender
	path   *path
	memory []byte
	outbox

	mu struct {
		sync.Mutex
		places *places
		slots  map[int]*slot // by their first units
		// late is the number of immediates that can still arrive for returned slots.
		late   int
		doubts int
		ended  bool
	}
}

// slot implements tcp.Slot. It is lent for one call.
//
//	lent ──► landed completely ─┬─► returned
//	  └────► ended by the server┘        both, or the ending without an answer
type slot struct {
	lending *lending
	number  uint32
	length  int
	landed  func([]byte, bool) error
	lost    func()

	// Guarded by lending.mu.
	pieces    int
	got       int         // bytes that have landed
	whole     bool        // the last piece has landed
	busy      bool        // landed is being called
	ended     bool        // by the server
	abandoned bool        // by the call, before its answer arrived
	total     int         // as reported by the server; negative: the slot holds no answer
	stall     *time.Timer // runs if the call has ended and its last piece has not landed
}

// join implements side.
func (s *lending) join(p *path) {
	s.path, s.outbox.path, s.memory = p, p, lentBy(p)
}

func unitsOf(bytes int) int { return (bytes + unit - 1) / unit }

func (s *lending) doubt() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.doubts++
	return s.mu.doubts
}

// lend returns a slot, or nil.
func (s *lending) lend(n int, landed func([]byte, bool) error, lost func()) tcp.Slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.ended || n < 1 {
		return nil
	}
	first, round, ok := s.mu.places.take(unitsOf(n))
	if !ok {
		return nil
	}
	t := &slot{lending: s, number: slotNumber(round, first), length: n, landed: landed, lost: lost}
	s.mu.slots[first] = t
	return t
}

// landed implements side.
func (s *lending) landed(immediate uint32, length int) error {
	last := immediate&immediateLast != 0
	t, err := s.begin(immediate&^immediateLast, length)
	if t == nil || err != nil {
		return err
	}
	from := firstUnit(t.number)*unit + t.got
	if err := t.landed(s.memory[from:from+length], last); err != nil {
		return fmt.Errorf("%w: %w", ErrBreach, err)
	}
	hooks := &s.path.fabric.o.Hooks
	if hooks.Received != nil {
		hooks.Received(s.path.peer, length)
	}
	if hooks.Called != nil && last {
		hooks.Called(s.path.peer)
	}
	return s.finish(t, length, last)
}

// begin returns the slot of a piece; nil if the slot was returned already.
func (s *lending) begin(number uint32, length int) (*slot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.mu.slots[firstUnit(number)]
	if t == nil || t.number != number {
		if s.mu.late == 0 {
			return nil, fmt.Errorf("%w: an immediate for a slot that is not lent", ErrBreach)
		}
		s.mu.late--
		return nil, nil //nolint:nilnil // it is late
	}
	switch {
	case t.whole || t.pieces == unitsOf(t.length):
		return nil, fmt.Errorf("%w: more pieces than a slot has units", ErrBreach)
	case length < 1 || length > unit || length > t.length-t.got:
		return nil, fmt.Errorf("%w: a piece of %d bytes", ErrBreach, length)
	}
	t.busy = true
	t.pieces++
	return t, nil
}

// finish records that a piece was copied.
func (s *lending) finish(t *slot, length int, last bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.busy = false
	t.got += length
	t.whole = last
	return s.settle(t)
}

// settle returns a slot whose call has ended on both sides. The caller holds s.mu.
func (s *lending) settle(t *slot) error {
	first := firstUnit(t.number)
	switch {
	case !t.ended || t.busy || s.mu.slots[first] != t:
		return nil
	case t.total < 0: // pieces may have landed and not been handled yet
		s.mu.late = min(s.mu.late+unitsOf(t.length)-t.pieces, s.path.fabric.o.units)
	case !t.whole:
		if t.stall == nil {
			t.stall = time.AfterFunc(s.path.fabric.o.stall, func() { s.path.end(ErrStalled) })
		}
		return nil
	case t.total != t.got:
		return fmt.Errorf("%w: %d bytes arrived of an answer of %d", ErrBreach, t.got, t.total)
	}
	if t.stall != nil {
		t.stall.Stop()
	}
	delete(s.mu.slots, first)
	s.mu.places.giveBack(first, unitsOf(t.length))
	return nil
}

// Number implements tcp.Slot.
func (t *slot) Number() uint32 { return t.number }

// Abandoned implements tcp.Slot.
func (t *slot) Abandoned() {
	t.lending.mu.Lock()
	defer t.lending.mu.Unlock()
	t.abandoned = true
}

// Ended implements tcp.Slot.
func (t *slot) Ended(total int) {
	s := t.lending
	s.mu.Lock()
	t.ended, t.total = true, total
	err := s.settle(t)
	s.mu.Unlock()
	if err != nil {
		s.path.end(err)
	}
}

// lost implements side.
func (s *lending) lost(error) {
	s.mu.Lock()
	s.mu.ended = true
	slots := s.mu.slots
	s.mu.slots = nil
	s.outbox.end()
	for _, t := range slots {
		if t.stall != nil {
			t.stall.Stop()
		}
	}
	s.mu.Unlock()
	// Calls are notified first. The server sends frame 9 and then error 5 for each call, and
	// PeerLost blocks only while this path is still set.
	for _, t := range slots {
		t.lost() // no effect on a call that has ended
	}
	l := s.lender
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.lent == s {
		l.mu.lent, l.mu.up = nil, false
	}
}
