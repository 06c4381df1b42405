package fastsync

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/cometbft/cometbft/libs/log"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/mailbox"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/scheduler"
	"github.com/starling-kv/starling/transport"
)

// progressEvery is how often the scheduler hears what has arrived of answers under way.
const progressEvery = 100 * time.Millisecond

// Target is where the state is stored. It also remembers a restore that was interrupted.
type Target interface {
	statesync.Resumer
	// Unfinished returns what Continue was last called with by a restore that was interrupted;
	// false if there was none.
	Unfinished() (height int64, manifest *avlstar.Manifest, ok bool)
}

// Options of a Join.
type Options struct {
	Logger  log.Logger
	Peers   *Peers
	Headers Headers
	Target  Target
	// Interval is the chain's snapshot interval, in blocks: other heights are ignored. 0: unknown.
	Interval int64
	// Local is a state that the node has already, that of LocalHeight. Only what differs from it is
	// fetched, and only a newer state. It must stay retained until Join returns. nil: none.
	Local       *avlstar.Version
	LocalHeight int64
	// MinHeight is the least height to join at: a proof alone does not show that a state is recent.
	// 0: any.
	MinHeight int64
	// ChooseTimeout is how long to look for a snapshot before the join ends with ErrNothing; 0:
	// without limit.
	ChooseTimeout time.Duration
	// MemoryBytes limits the bytes of answers that are under way or being verified. 0:
	// scheduler.DefaultMemory.
	MemoryBytes int64
	Metrics     *statesync.Metrics
	// Progress is called from time to time with how far the join is, never concurrently. nil: it is
	// not called.
	Progress func(Progress)
	// View shows the join to others, the status page for example; nil: it is not shown.
	View *View
}

// Result is what a successful Join returns.
type Result struct {
	Height  int64
	Version *avlstar.Version // the caller releases it
	Summary Progress
}

// joiner is a join under way. One goroutine, the loop, decides; others make calls and verify, and
// report to it through the mailbox.
type joiner struct {
	// Constant while the loop runs.
	o          Options
	log        log.Logger
	started    time.Time
	ctx        context.Context // ends the join
	unfinished *choice         // what an interrupted restore was fetching; nil: there was none

	// Used by all goroutines.
	mail     *mailbox.Mailbox[event] // to the loop
	wg       sync.WaitGroup          // all goroutines of the join; Join waits for them
	workers  chan struct{}           // answers being verified, an element each: at most one per CPU
	buffers  buffers                 // that answers land in
	attempts struct {
		sync.Mutex
		failed map[int64]int // attempts to get a height's manifest
	}
	sketches sketches

	// Used by the loop only.
	sched    *scheduler.Scheduler
	conns    map[scheduler.PeerID]transport.Conn
	doubted  map[scheduler.PeerID]bool        // their last wrong answers came unproved
	doubts   map[scheduler.PeerID]int         // how often; who connects anew is not forgotten
	has      map[scheduler.PeerID]Status      // what connected peers claim to serve
	requests map[scheduler.RequestID]*request // asked and not ended, of any round
	items    map[scheduler.ItemID]*item       // not done; of the present round only
	lastItem scheduler.ItemID
	round    *round
	tried    map[int64]bool // heights of all rounds so far
	compared map[int64]bool // heights that the present one was compared with, by a look around
	look     time.Duration  // from the beginning of a round, or the last look, to the next
	count    counters
	done     bool  // all chunks of the round are verified and written
	failed   error // of our own, such as a full disk: it ends the join
}

// Join fetches a snapshot of the chain, verifies it and makes it the state of the target, durably.
// It retries until ctx ends: what was verified until then stays with the target for the next Join.
// Errors: ctx's; ErrNothing; ErrHopeless and conflicts of Options.Headers; failures of the target.
func Join(ctx context.Context, o Options) (*Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	j := &joiner{
		o: o, log: o.Logger, started: time.Now(), ctx: ctx,
		mail: mailbox.New[event](), workers: make(chan struct{}, runtime.GOMAXPROCS(0)),
		sched: scheduler.New(o.MemoryBytes, runtime.GOMAXPROCS(0)),
		conns: map[scheduler.PeerID]transport.Conn{}, has: map[scheduler.PeerID]Status{},
		doubted: map[scheduler.PeerID]bool{}, doubts: map[scheduler.PeerID]int{},
		requests: map[scheduler.RequestID]*request{}, items: map[scheduler.ItemID]*item{}, tried: map[int64]bool{},
		compared: map[int64]bool{}, look: firstLook,
	}
	j.attempts.failed = map[int64]int{}
	o.View.Connecting(o.Peers)
	defer j.wg.Wait()
	defer cancel()
	if height, m, ok := o.Target.Unfinished(); ok {
		j.unfinished = &choice{height, m}
	}
	version, err := j.restore()
	if err != nil {
		return nil, err
	}
	summary, peers := j.progress()
	summary.Phase = PhaseDone
	j.report(summary, peers)
	j.log.Info("Joining: the state is restored", summary.keyvals()...)
	return &Result{j.round.height, version, summary}, nil
}

// restore chooses a snapshot, fetches it, or the one that takes its place, and commits it.
func (j *joiner) restore() (*avlstar.Version, error) {
	c, err := j.choose(j.ctx, nil)
	if err != nil {
		return nil, err
	}
	if err := j.begin(c); err != nil {
		return nil, err
	}
	defer j.leave()
	stop := j.o.Peers.Watch(Watcher{
		Up:     func(c transport.Conn) { j.mail.Put(peerUp{c}) },
		Status: func(id transport.ID, s Status) { j.mail.Put(peerStatus{scheduler.PeerID(id), s}) },
		Down:   func(id transport.ID) { j.mail.Put(peerDown{scheduler.PeerID(id)}) },
	})
	defer stop()
	if err := j.loop(); err != nil {
		return nil, err
	}
	if err := j.o.Headers.Conflict(); err != nil { // a peer may have sent another header since
		return nil, err
	}
	summary, peers := j.progress()
	summary.Phase = PhaseWriting
	j.report(summary, peers)
	return j.round.restorer.Commit()
}

// loop handles events until all chunks of the round are written, or something of our own fails. It
// alone steps the scheduler.
func (j *joiner) loop() error {
	ticker := time.NewTicker(progressEvery)
	defer ticker.Stop()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	logged := time.Now()
	for !j.done && j.failed == nil {
		if at, ok := j.sched.Next(); ok {
			timer.Reset(max(at-time.Since(j.started), 0))
		} else {
			timer.Reset(time.Hour)
		}
		select {
		case <-j.ctx.Done():
			return j.ctx.Err()
		case <-j.mail.Wake():
			for _, e := range j.mail.Take() {
				e.handle(j)
			}
		case <-timer.C:
			j.step(scheduler.Tick{})
		case <-ticker.C:
			j.tellProgress()
			j.watch()
			p, peers := j.progress()
			j.report(p, peers)
			if time.Since(logged) >= sayEvery {
				logged = time.Now()
				j.log.Info("Joining: fetching the state", p.keyvals()...)
			}
		}
	}
	return j.failed
}

func (j *joiner) fail(err error) {
	if j.failed == nil {
		j.failed = err
	}
}

// step gives the scheduler an event and carries out what it orders, until it orders nothing more.
func (j *joiner) step(e scheduler.Event) {
	for queue := []scheduler.Event{e}; len(queue) > 0; queue = queue[1:] {
		for _, a := range j.sched.Step(time.Since(j.started), queue[0]) {
			if more := j.do(a); more != nil {
				queue = append(queue, more)
			}
		}
	}
}

// do carries out an action of the scheduler. It returns the event that this has caused at once, if
// any.
func (j *joiner) do(a scheduler.Action) scheduler.Event {
	switch a := a.(type) {
	case scheduler.Ask:
		if !j.ask(a) {
			return scheduler.Failed{Request: a.Request, Reason: scheduler.Broken}
		}
	case scheduler.Cancel:
		// Where ask has failed there is no request, as the scheduler is about to hear.
		if r := j.requests[a.Request]; r != nil {
			j.end(r)
		}
	case scheduler.Verify:
		j.check(j.requests[a.Request])
	case scheduler.Ban:
		j.o.Metrics.ChunkRejected()
		j.o.Peers.Ban(transport.ID(a.Peer), statesync.BanChunk, a.Reason)
	case scheduler.Done:
		j.done = j.round.restorer.Missing() == 0
	default:
		panic(fmt.Sprintf("fastsync: unknown action %T", a))
	}
	return nil
}

// The events of Peers.
type (
	peerUp     struct{ conn transport.Conn }
	peerStatus struct {
		peer scheduler.PeerID
		s    Status
	}
	peerDown struct{ peer scheduler.PeerID }
)

func (e peerUp) handle(j *joiner) {
	id := scheduler.PeerID(e.conn.Remote().ID)
	j.conns[id] = e.conn
	j.step(scheduler.PeerUp{Peer: id})
}

func (e peerStatus) handle(j *joiner) {
	j.has[e.peer] = e.s
	j.tell(e.peer)
}

func (e peerDown) handle(j *joiner) {
	delete(j.conns, e.peer)
	delete(j.doubted, e.peer)
	delete(j.has, e.peer)
	j.step(scheduler.PeerDown{Peer: e.peer})
}

// tell gives the scheduler what a peer has of this round.
func (j *joiner) tell(peer scheduler.PeerID) {
	whole, parts := j.has[peer].chunksOf(j.round)
	j.step(scheduler.PeerHas{Peer: peer, Groups: whole, Parts: parts})
}
