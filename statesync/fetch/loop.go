// Package fetch fetches items from many peers at once, as package scheduler decides. It is the
// shell around that state machine: it makes calls, has answers verified, and reports both. The Work
// of its user defines the items and how they are proved. No peer is trusted.
//
//	loop.go      Loop: one goroutine decides; other goroutines send it functions (Post)
//	request.go   the life of a request
//	buffers.go   memory for answers
//
// A peer is banned for bytes that prove that it is Byzantine, never for being slow or for missing
// data.
package fetch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/starling-kv/starling/internal/bounded"
	"github.com/starling-kv/starling/internal/mailbox"
	"github.com/starling-kv/starling/statesync/scheduler"
	"github.com/starling-kv/starling/transport"
)

// TickEvery is the interval at which the scheduler is informed of the bytes received.
const TickEvery = 100 * time.Millisecond

// maxDoubted limits for how many peers doubts are remembered.
const maxDoubted = 1024

// ErrOver may be returned by Work.Verify: the item is no longer wanted.
var ErrOver = errors.New("the item is no longer wanted")

// OwnError is a local failure during Work.Call, such as a full disk.
type OwnError struct{ Err error }

func (e *OwnError) Error() string { return e.Err.Error() }
func (e *OwnError) Unwrap() error { return e.Err }

// Stage is a stage in the life of a request.
type Stage int

// The stages.
const (
	Asked   Stage = iota // the request was sent
	Growing              // bytes of the answer have arrived
	Arrived              // the answer is complete and about to be verified
	Wrong                // the answer proves that the peer is Byzantine
	Ended                // always the last stage
)

// Work defines what a Loop fetches: items I, from whose answers Verify derives F. The Loop's
// goroutine calls the methods, except Call and Verify.
type Work[I, F any] interface {
	// Spec describes an item to the scheduler. The Loop sets the ID.
	Spec(item I) scheduler.Item
	// Call requests an item from a peer, in its own goroutine. The transport must count the bytes
	// received in r.Received. Errors: an error of the transport; OwnError ends the Loop; an Invalid
	// one bans the peer.
	Call(ctx context.Context, conn transport.Conn, r *Request[I]) (Answer, error)
	// Verify checks an answer and stores what it completes. At most one worker per CPU calls it;
	// several may have answers for the same item. Errors: an Invalid one bans the peer; ErrOver;
	// any other is a local failure and ends the Loop.
	Verify(r *Request[I], a Answer) (F, error)
	// Invalid reports whether an error of Call or Verify proves that the answer is wrong.
	Invalid(err error) bool
	// Verified receives the result of Verify. Items that it adds keep the scheduler from being
	// done.
	Verified(r *Request[I], found F)
	// At is called at each stage of a request.
	At(r *Request[I], s Stage)
	// Ban is called for a peer that sent what no honest peer sends.
	Ban(peer scheduler.PeerID, reason string)
	// Done is called when every item is done or dropped. It reports whether the Loop ends.
	Done() bool
}

// Loop fetches items. Its methods must be called on the goroutine that calls Run or Handle: from
// posted functions and from methods of Work. Post, Go and Stop may be called from any goroutine.
type Loop[I, F any] struct {
	work    Work[I, F]
	weigh   func(arrived int64) int64
	started time.Time

	// Used by all goroutines.
	ctx     context.Context // ends with Stop
	cancel  context.CancelFunc
	mail    *mailbox.Mailbox[func()]
	wg      sync.WaitGroup
	workers chan struct{} // one element per answer being verified

	sched    *scheduler.Scheduler
	conns    map[scheduler.PeerID]transport.Conn
	doubts   *bounded.Map[scheduler.PeerID, transport.Doubts]
	requests map[scheduler.RequestID]*Request[I] // sent and not ended
	items    map[scheduler.ItemID]I              // neither done nor dropped
	lastItem scheduler.ItemID
	done     bool
	failed   error
}

// New returns a Loop that runs until ctx ends. memoryBytes limits the bytes of answers in flight or
// being verified; 0: scheduler.DefaultMemory. weigh returns the number of bytes to report to the
// scheduler when that many have arrived; nil: the same number.
func New[I, F any](ctx context.Context, memoryBytes int64, weigh func(arrived int64) int64, work Work[I, F]) *Loop[I, F] {
	if weigh == nil {
		weigh = func(arrived int64) int64 { return arrived }
	}
	l := &Loop[I, F]{
		work: work, weigh: weigh, started: time.Now(), mail: mailbox.New[func()](), workers: make(chan struct{}, runtime.GOMAXPROCS(0)),
		sched: scheduler.New(memoryBytes, runtime.GOMAXPROCS(0)), conns: map[scheduler.PeerID]transport.Conn{},
		doubts: bounded.New[scheduler.PeerID, transport.Doubts](maxDoubted), requests: map[scheduler.RequestID]*Request[I]{}, items: map[scheduler.ItemID]I{},
	}
	l.ctx, l.cancel = context.WithCancel(ctx) //nolint:gosec // Stop calls it
	return l
}

// Post schedules f on the Loop's goroutine, after all functions posted before. It never blocks.
func (l *Loop[I, F]) Post(f func()) { l.mail.Put(f) }

// Go starts a goroutine that Stop waits for.
func (l *Loop[I, F]) Go(f func()) { l.wg.Go(f) }

// Stop cancels all calls and waits for all goroutines.
func (l *Loop[I, F]) Stop() {
	l.cancel()
	l.wg.Wait()
}

// Posted receives an element when there may be something to Handle.
func (l *Loop[I, F]) Posted() <-chan struct{} { return l.mail.Wake() }

// Handle calls the posted functions. Run does so, too.
func (l *Loop[I, F]) Handle() {
	for _, f := range l.mail.Take() {
		f()
	}
}

// Run fetches until Work.Done, Finish or Fail ends it, or ctx does. It calls tick every TickEvery.
func (l *Loop[I, F]) Run(tick func()) error {
	ticker := time.NewTicker(TickEvery)
	defer ticker.Stop()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for !l.done && l.failed == nil {
		if at, ok := l.sched.Next(); ok {
			timer.Reset(max(at-time.Since(l.started), 0))
		} else {
			timer.Reset(time.Hour)
		}
		select {
		case <-l.ctx.Done():
			return l.ctx.Err()
		case <-l.mail.Wake():
			l.Handle()
		case <-timer.C:
			l.step(scheduler.Tick{})
		case <-ticker.C:
			l.progress()
			tick()
		}
	}
	return l.failed
}

// Finish ends Run.
func (l *Loop[I, F]) Finish() { l.done = true }

// Fail ends Run with an error: the first one.
func (l *Loop[I, F]) Fail(err error) {
	if l.failed == nil {
		l.failed = err
	}
}

// Failed returns the error passed to Fail, or nil.
func (l *Loop[I, F]) Failed() error { return l.failed }

// Stats returns the state of the scheduler.
func (l *Loop[I, F]) Stats() scheduler.Stats { return l.sched.Stats() }

// Items returns the number of items that are neither done nor dropped.
func (l *Loop[I, F]) Items() int { return len(l.items) }

// Arriving returns the number of bytes received of answers in flight, as of the last tick.
func (l *Loop[I, F]) Arriving() (bytes int64) {
	for _, r := range l.requests {
		bytes += r.seen
	}
	return bytes
}

// Add adds items, in order of preference.
func (l *Loop[I, F]) Add(items ...I) {
	if len(items) == 0 {
		return
	}
	list := make([]scheduler.Item, 0, len(items))
	for _, item := range items {
		l.lastItem++
		l.items[l.lastItem] = item
		spec := l.work.Spec(item)
		spec.ID = l.lastItem
		list = append(list, spec)
	}
	l.step(scheduler.Add{Items: list})
}

// Drop removes all items and cancels their calls.
func (l *Loop[I, F]) Drop() {
	l.step(scheduler.Drop{Items: slices.Collect(maps.Keys(l.items))})
	clear(l.items)
	l.done = false
}

// Up records that a peer has connected.
func (l *Loop[I, F]) Up(conn transport.Conn) {
	id := scheduler.PeerID(conn.Remote().ID)
	l.conns[id] = conn
	l.step(scheduler.PeerUp{Peer: id})
}

// Has records a connected peer's claims: it has these groups and parts of groups, and nothing else.
func (l *Loop[I, F]) Has(peer scheduler.PeerID, groups []scheduler.Group, parts []scheduler.Part) {
	l.step(scheduler.PeerHas{Peer: peer, Groups: groups, Parts: parts})
}

// Down records that a peer has disconnected.
func (l *Loop[I, F]) Down(peer scheduler.PeerID) {
	delete(l.conns, peer)
	if d, ok := l.doubts.Get(peer); ok {
		d.Reconnected()
		l.doubts.Set(peer, d)
	}
	l.step(scheduler.PeerDown{Peer: peer})
}

// step passes an event to the scheduler and performs its actions, until there are no more.
func (l *Loop[I, F]) step(e scheduler.Event) {
	for queue := []scheduler.Event{e}; len(queue) > 0; queue = queue[1:] {
		for _, a := range l.sched.Step(time.Since(l.started), queue[0]) {
			switch a := a.(type) {
			case scheduler.Ask:
				if !l.ask(a) {
					queue = append(queue, scheduler.Failed{Request: a.Request, Reason: scheduler.Broken})
				}
			case scheduler.Cancel:
				// If ask failed, there is no request; the queued event reports that to the
				// scheduler.
				if r := l.requests[a.Request]; r != nil {
					l.end(r)
				}
			case scheduler.Verify:
				l.check(l.requests[a.Request])
			case scheduler.Ban:
				l.work.Ban(a.Peer, a.Reason)
			case scheduler.Done:
				l.done = l.work.Done()
			default:
				panic(fmt.Sprintf("fetch: unknown action %T", a))
			}
		}
	}
}

// progress reports to the scheduler how much of each answer has arrived.
func (l *Loop[I, F]) progress() {
	for _, r := range l.requests {
		arrived := r.Received.Load()
		if arrived <= r.seen {
			continue
		}
		r.seen = arrived
		l.work.At(r, Growing)
		if n := l.weigh(arrived); n > r.told {
			r.told = n
			l.step(scheduler.Progress{Request: r.id, Bytes: uint64(n)})
		}
	}
}
