package fastsync

import (
	"context"
	"errors"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cometbft/cometbft/libs/log"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/scheduler"
	"github.com/starling-kv/starling/transport"
)

const (
	defaultMemory = 256 << 20
	// progressEvery is how often the scheduler is told what has arrived of requests under way.
	progressEvery = 100 * time.Millisecond
	// firstStall is how long nothing may be verified before another snapshot is looked for. It doubles as long as that does not help.
	firstStall = 15 * time.Second
	maxStall   = 10 * time.Minute
	// starveAfter is how long nobody may have the snapshot before another one is looked for: until everybody was asked again.
	starveAfter = 2 * statusEvery
)

// Target is where the state goes, and what knows of a restore that was interrupted.
type Target interface {
	statesync.Resumer
	// Unfinished returns what Continue was told last by a restore that was interrupted; false where there is none.
	Unfinished() (height int64, manifest *avlstar.Manifest, ok bool)
}

// Options of a Join.
type Options struct {
	Logger  log.Logger
	Peers   *Peers
	Headers Headers
	Target  Target
	// Interval is the chain's snapshot interval: others are not looked at. 0: not known.
	Interval int64
	// Local is a state that the node has already, at LocalHeight: only what differs from it is fetched, and only a newer one. It must stay
	// retained. nil: none.
	Local       *avlstar.Version
	LocalHeight int64
	// MinHeight is the least height that is joined at: a proof alone does not say that a state is new. 0: any.
	MinHeight int64
	// ChooseTimeout is how long to look for a snapshot before the join ends with ErrNothing; 0: as long as it takes.
	ChooseTimeout time.Duration
	// MemoryBytes bounds what is in flight, or waits to be verified. Default 256 MiB.
	MemoryBytes int64
	Metrics     *statesync.Metrics
	// Progress is called now and then, one call at a time, with how far the join is; nil: not.
	Progress func(Progress)
	// View is for others to look at; nil: nobody does.
	View *View
	// LogEvery is the time between two lines of the log; default 5 s.
	LogEvery time.Duration
}

// Result is what a Join ends with.
type Result struct {
	Height  int64
	Version *avlstar.Version // the caller releases it
	Summary Progress
}

// joiner is a join under way. One goroutine (run) owns all but what says otherwise.
type joiner struct {
	o       Options
	log     log.Logger
	started time.Time
	mail    mailbox
	wg      sync.WaitGroup // of everything that was started
	verify  chan struct{}  // as many as may verify at a time

	unfinished *choice // found on disk
	attempts   struct {
		sync.Mutex
		failed map[int64]int // attempts to get a height's manifest
	}

	sched *scheduler.Scheduler
	conns map[scheduler.PeerID]transport.Conn
	has   map[scheduler.PeerID][]int64
	calls map[scheduler.RequestID]*outstanding
	items map[scheduler.ItemID]*item
	next  scheduler.ItemID
	round *round
	tried map[int64]bool // heights of the rounds
	count counters
	done  bool

	failed error // of our own
}

// outstanding is a request that was asked and has not ended.
type outstanding struct {
	item     *item
	peer     scheduler.PeerID
	cancel   context.CancelFunc
	received atomic.Int64
	told     int64
	data     []byte
}

// round is the fetching of one snapshot. A retarget begins another.
type round struct {
	*choice
	group    scheduler.Group
	restorer *statesync.Restorer
	ctx      context.Context
	cancel   context.CancelFunc
	deltas   *deltas

	verified  time.Time     // when something was verified last
	stall     time.Duration // how long that may be ago
	searching bool          // for another snapshot
	lacking   time.Time     // since when nobody says that he has it; zero: somebody does
}

// mailbox collects events from anywhere, without bound and without blocking: their number is bounded by what is under way.
type mailbox struct {
	mu    sync.Mutex
	queue []any
	wake  chan struct{}
}

func (m *mailbox) put(e any) {
	m.mu.Lock()
	m.queue = append(m.queue, e)
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *mailbox) take() []any {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.queue
	m.queue = nil
	return all
}

// Mail of other goroutines to the loop.
type (
	mailUp     struct{ conn transport.Conn }
	mailStatus struct {
		peer scheduler.PeerID
		s    Status
	}
	mailDown   struct{ peer scheduler.PeerID }
	mailAnswer struct {
		request scheduler.RequestID
		data    []byte
		err     error
	}
	mailVerified struct {
		request scheduler.RequestID
		item    *item
		peer    transport.ID
		err     error
		fresh   bool
		delta   *deltaAnswer // what the verified bytes were about, if not a whole chunk
	}
	mailChoice struct {
		of *round
		c  *choice
	}
)

// Join fetches a snapshot of the chain, verifies it and makes it the state of the target, durably. It goes on as long as it takes, until
// ctx ends: what was verified until then stays with the target for the next Join.
func Join(ctx context.Context, o Options) (*Result, error) {
	if o.MemoryBytes <= 0 {
		o.MemoryBytes = defaultMemory
	}
	if o.LogEvery <= 0 {
		o.LogEvery = sayEvery
	}
	ctx, cancel := context.WithCancel(ctx)
	j := &joiner{
		o: o, log: o.Logger, started: time.Now(), mail: mailbox{wake: make(chan struct{}, 1)}, verify: make(chan struct{}, runtime.GOMAXPROCS(0)),
		sched: scheduler.New(scheduler.Options{MemoryBytes: o.MemoryBytes}),
		conns: map[scheduler.PeerID]transport.Conn{}, has: map[scheduler.PeerID][]int64{},
		calls: map[scheduler.RequestID]*outstanding{}, items: map[scheduler.ItemID]*item{},
		tried: map[int64]bool{},
	}
	j.attempts.failed = map[int64]int{}
	o.View.Connecting(o.Peers)
	defer j.wg.Wait()
	defer cancel()
	if height, m, ok := o.Target.Unfinished(); ok {
		j.unfinished = &choice{height, m}
	}
	version, err := j.run(ctx)
	if err != nil {
		return nil, err
	}
	summary, peers := j.progress()
	summary.Phase = PhaseDone
	j.report(summary, peers)
	j.log.Info("Joining: the state is restored", summary.keyvals()...)
	return &Result{j.round.height, version, summary}, nil
}

// run is the loop.
func (j *joiner) run(ctx context.Context) (*avlstar.Version, error) {
	c, err := j.choose(ctx, nil)
	if err != nil {
		return nil, err
	}
	if err := j.begin(ctx, c); err != nil {
		return nil, err
	}
	defer j.leave()
	stop := j.o.Peers.Watch(Watcher{
		Up:     func(c transport.Conn) { j.mail.put(mailUp{c}) },
		Status: func(id transport.ID, s Status) { j.mail.put(mailStatus{scheduler.PeerID(id), s}) },
		Down:   func(id transport.ID) { j.mail.put(mailDown{scheduler.PeerID(id)}) },
	})
	defer stop()
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
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-j.mail.wake:
			for _, e := range j.mail.take() {
				j.handle(ctx, e)
			}
		case <-timer.C:
			j.step(scheduler.Tick{})
		case <-ticker.C:
			j.tick()
			if time.Since(logged) >= j.o.LogEvery {
				logged = time.Now()
				p, _ := j.progress()
				j.log.Info("Joining: fetching the state", p.keyvals()...)
			}
		}
	}
	if j.failed != nil {
		return nil, j.failed
	}
	if err := j.conflict(); err != nil { // somebody has shown another header since
		return nil, err
	}
	summary, peers := j.progress()
	summary.Phase = PhaseWriting
	j.report(summary, peers)
	return j.round.restorer.Commit()
}

// begin makes c the snapshot that is fetched: what is on disk or in the local state of it is not asked for.
func (j *joiner) begin(ctx context.Context, c *choice) error {
	old := j.round
	group, stall := scheduler.Group(1), firstStall
	var local locals
	if old != nil {
		group, stall = old.group+1, old.stall
		local.chunks = chunksOf(old)
		j.drop(old)
	}
	if j.o.Local != nil {
		local.version = j.o.Local
	}
	j.log.Info("Joining: restoring a snapshot", "height", c.height, "chunks", len(c.manifest.Entries), "retarget", old != nil)
	restorer, err := statesync.ContinueRestore(ctx, j.o.Target, c.height, c.manifest, func(done int) {
		if done%64 == 0 {
			j.report(Progress{Phase: PhaseVerifying, Height: c.height, Chunks: len(c.manifest.Entries), ChunksDone: done}, nil)
		}
	})
	if err != nil {
		return err
	}
	r := &round{choice: c, group: group, restorer: restorer, verified: time.Now(), stall: stall}
	r.ctx, r.cancel = context.WithCancel(ctx) //nolint:gosec // drop and leave call it
	j.round = r
	j.tried[c.height] = true
	j.count.begin(c.manifest, restorer)
	j.o.Metrics.Restoring(len(c.manifest.Entries))
	r.deltas = newDeltas(c.manifest.ChunkBytes, local)
	if err := j.copyLocal(r, local); err != nil {
		return err
	}
	j.o.View.begin(r)
	j.plan(r)
	for peer, heights := range j.has {
		j.tell(peer, heights)
	}
	return j.failed
}

// drop ends a round; what was written stays with the target.
func (j *joiner) drop(r *round) {
	ids := make([]scheduler.ItemID, 0, len(j.items))
	for id := range j.items {
		ids = append(ids, id)
	}
	r.cancel()
	j.step(scheduler.Drop{Items: ids})
	clear(j.items)
	j.done = false // dropping all is not being done
	r.restorer.Leave()
}

// leave ends the round under way, if the restore is not over.
func (j *joiner) leave() {
	j.round.cancel()
	for _, c := range j.calls {
		c.cancel()
	}
	j.wg.Wait()
	j.round.restorer.Leave()
}

// tick looks after what only time tells.
func (j *joiner) tick() {
	for id, c := range j.calls {
		if n := c.received.Load(); n > c.told {
			c.told = n
			j.step(scheduler.Progress{Request: id, Bytes: uint64(n)})
		}
	}
	r := j.round
	if err := j.conflict(); err != nil {
		j.fail(err)
	}
	switch idle := time.Since(r.verified); {
	case r.searching:
	case j.lacks(r):
		j.log.Info("Joining: no peer has the snapshot any more, looking for another", "height", r.height)
		j.search()
	case idle > r.stall:
		j.log.Info("Joining: nothing has come for a while, looking for another snapshot", "height", r.height, "seconds", int(idle.Seconds()))
		j.search()
	}
	if len(j.items) == 0 && !j.done && r.restorer.Missing() > 0 {
		j.log.Error("Joining: chunks are missing that nothing is under way for: asking for them again", "missing", r.restorer.Missing())
		j.plan(r)
	}
	p, peers := j.progress()
	j.report(p, peers)
}

// lacks says that for a while nobody has said that he has the snapshot.
func (j *joiner) lacks(r *round) bool {
	for _, heights := range j.has {
		if slices.Contains(heights, r.height) {
			r.lacking = time.Time{}
			return false
		}
	}
	if r.lacking.IsZero() {
		r.lacking = time.Now()
	}
	return time.Since(r.lacking) > starveAfter
}

// search looks for another snapshot than the present one, in the background: the best one that was not tried.
func (j *joiner) search() {
	r := j.round
	r.searching = true
	tried := maps.Clone(j.tried)
	j.wg.Go(func() {
		timed, cancel := context.WithTimeout(r.ctx, r.stall)
		defer cancel()
		c, err := j.choose(timed, func(h int64) int {
			switch {
			case h == r.height:
				return 1
			case tried[h]:
				return 2
			}
			return 0
		})
		if err != nil {
			c = nil
		}
		j.mail.put(mailChoice{r, c})
	})
}

// handle handles one piece of mail.
func (j *joiner) handle(ctx context.Context, e any) {
	switch e := e.(type) {
	case mailUp:
		id := scheduler.PeerID(e.conn.Remote().ID)
		j.conns[id] = e.conn
		j.step(scheduler.PeerUp{Peer: id})
	case mailDown:
		delete(j.conns, e.peer)
		delete(j.has, e.peer)
		j.step(scheduler.PeerDown{Peer: e.peer})
	case mailStatus:
		j.has[e.peer] = e.s.Snapshots
		j.tell(e.peer, e.s.Snapshots)
	case mailAnswer:
		j.answered(e)
	case mailVerified:
		j.verifiedMail(e)
	case mailChoice:
		if e.of != j.round {
			return
		}
		j.round.searching = false
		j.round.verified = time.Now() // wait again
		if e.c == nil || e.c.height == j.round.height {
			j.round.stall = min(2*j.round.stall, maxStall) // there is no other
			return
		}
		if !j.tried[e.c.height] {
			j.round.stall = firstStall
		}
		if err := j.begin(ctx, e.c); err != nil {
			j.fail(err)
		}
	}
}

// tell tells the scheduler whether a peer has the snapshot of this round.
func (j *joiner) tell(peer scheduler.PeerID, heights []int64) {
	var groups []scheduler.Group
	for _, h := range heights {
		if h == j.round.height {
			groups = append(groups, j.round.group)
		}
	}
	j.step(scheduler.PeerHas{Peer: peer, Groups: groups})
}

func (j *joiner) fail(err error) {
	if j.failed == nil {
		j.failed = err
	}
}

// step gives an event to the scheduler and does what it orders, until it orders no more.
func (j *joiner) step(events ...scheduler.Event) {
	for len(events) > 0 {
		e := events[0]
		events = events[1:]
		for _, a := range j.sched.Step(time.Since(j.started), e) {
			switch a := a.(type) {
			case scheduler.Ask:
				events = append(events, j.ask(a)...)
			case scheduler.Cancel:
				if c := j.calls[a.Request]; c != nil {
					c.cancel()
				}
				j.ended(a.Request)
			case scheduler.Verify:
				j.verifyAnswer(a.Request)
			case scheduler.Write: // that is done already, see verifyAnswer
				j.ended(a.Request)
				delete(j.items, a.Item)
				events = append(events, scheduler.Written{Item: a.Item})
			case scheduler.Ban:
				j.o.Metrics.ChunkRejected()
				j.o.Peers.Ban(transport.ID(a.Peer), statesync.BanChunk, a.Reason)
			case scheduler.Starved: // see lacks: it comes before anybody was told of the round
			case scheduler.Done:
				j.done = j.round.restorer.Missing() == 0
			}
		}
	}
}

// ask sends a request, into a buffer of exactly the length that was proved.
func (j *joiner) ask(a scheduler.Ask) []scheduler.Event {
	it, conn := j.items[a.Item], j.conns[a.Peer]
	if it == nil || conn == nil {
		return []scheduler.Event{scheduler.Failed{Request: a.Request, Reason: scheduler.Broken}}
	}
	ctx, cancel := context.WithCancel(j.round.ctx)
	c := &outstanding{item: it, peer: a.Peer, cancel: cancel}
	j.calls[a.Request] = c
	j.o.View.asked(it, a.Peer)
	call := it.call(j.round.height)
	call.Received = &c.received
	j.wg.Go(func() {
		defer cancel()
		if it.exact() {
			call.Into = make([]byte, it.bytes)
		}
		data, err := conn.Call(ctx, call)
		j.mail.put(mailAnswer{a.Request, data, err})
	})
	return nil
}

// answered passes on how a request ended.
func (j *joiner) answered(m mailAnswer) {
	c := j.calls[m.request]
	if c == nil {
		return // cancelled
	}
	if m.err == nil {
		c.data = m.data
		j.step(scheduler.Received{Request: m.request, Bytes: uint64(len(m.data))})
		return
	}
	reason := scheduler.Broken
	switch {
	case isLie(m.err):
		reason = scheduler.Lied
		j.o.View.lied(c.item)
	case errors.Is(m.err, transport.ErrGone):
		reason = scheduler.Gone
	case errors.Is(m.err, transport.ErrBusy):
		reason = scheduler.Busy
	case errors.Is(m.err, transport.ErrRefused):
		reason = scheduler.Refused
	}
	j.ended(m.request)
	j.step(scheduler.Failed{Request: m.request, Reason: reason, Detail: m.err.Error()})
}

// ended forgets a request.
func (j *joiner) ended(id scheduler.RequestID) {
	if c := j.calls[id]; c != nil {
		j.o.View.ended(c.item)
		delete(j.calls, id)
	}
}

// verifyAnswer has an answer verified, and what it completes written, by a worker.
func (j *joiner) verifyAnswer(request scheduler.RequestID) {
	c := j.calls[request]
	data, it, peer := c.data, c.item, transport.ID(c.peer)
	c.data = nil
	j.o.View.arrived(it, c.peer)
	j.wg.Go(func() {
		j.verify <- struct{}{}
		defer func() { <-j.verify }()
		fresh, delta, err := it.verify(data)
		j.mail.put(mailVerified{request, it, peer, err, fresh, delta})
	})
}

// verifiedMail passes on what a worker found.
func (j *joiner) verifiedMail(m mailVerified) {
	switch {
	case m.err == nil:
	case errors.Is(m.err, avlstar.ErrInvalidChunk), errors.Is(m.err, avlstar.ErrInvalidManifest):
		j.o.View.lied(m.item)
		j.ended(m.request)
		j.step(scheduler.Rejected{Request: m.request, Reason: m.err.Error()})
		return
	case errors.Is(m.err, statesync.ErrOver): // the round is, and its items were dropped
		j.ended(m.request)
		j.step(scheduler.Verified{Request: m.request})
		return
	default:
		j.fail(m.err)
		return
	}
	j.round.verified, j.round.stall = time.Now(), firstStall
	j.o.Peers.Useful(m.peer)
	if m.item.r == j.round && m.fresh {
		j.count.verified(m.item)
		if m.item.kind == wholeChunk {
			j.o.Metrics.ChunkVerified(int(m.item.bytes))
		}
		if m.item.kind == wholeChunk || m.delta != nil && m.delta.done {
			j.o.View.stored(m.item, m.peer)
		}
		if m.delta != nil {
			j.deltaAnswer(m.item, m.delta)
		}
	}
	j.step(scheduler.Verified{Request: m.request})
}
