package restore

import (
	"context"
	"errors"
	"time"

	"github.com/cometbft/cometbft/libs/log"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/fetch"
	"github.com/starling-kv/starling/statesync/peers"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/statesync/scheduler"
	"github.com/starling-kv/starling/statesync/snapshot"
	"github.com/starling-kv/starling/statesync/view"
	"github.com/starling-kv/starling/transport"
)

// reportEvery is the interval of progress log lines.
const reportEvery = 5 * time.Second

// Target stores the state. It also remembers an interrupted restore.
type Target interface {
	statesync.Resumer
	// Unfinished returns the arguments of an interrupted restore's last Continue; false if there is
	// none.
	Unfinished() (height int64, manifest *avlstar.Manifest, ok bool)
}

// Options configure Run.
type Options struct {
	Logger  log.Logger
	Peers   *peers.Peers
	Headers snapshot.Headers
	Target  Target
	// Interval is the chain's snapshot interval, in blocks: other heights are ignored. 0: unknown.
	Interval int64
	// Local is a state that the node already has, at LocalHeight. Run fetches only a newer state,
	// and only what differs from Local. The caller must retain it until Run returns. nil: none.
	Local       *avlstar.Version
	LocalHeight int64
	// MinHeight is the minimum height to join at: a proof alone does not show that a state is
	// recent. 0: any.
	MinHeight int64
	// ChooseTimeout limits the search for a snapshot, after which the join ends with
	// snapshot.ErrNothing; 0: no limit.
	ChooseTimeout time.Duration
	// MemoryBytes limits the bytes of answers in flight or being verified. 0:
	// scheduler.DefaultMemory.
	MemoryBytes int64
	// Begun, if not nil, is called with the height of each snapshot whose fetching begins, never
	// concurrently.
	Begun   func(height int64)
	Metrics *statesync.Metrics
	// Progress, if not nil, is called periodically, never concurrently.
	Progress func(view.Progress)
	// View publishes the progress of the join, for instance to the status page; nil: nowhere.
	View *view.Join
}

// Result is what a successful Run returns.
type Result struct {
	Height  int64
	Version *avlstar.Version // the caller releases it
	Summary view.Progress
}

// joiner is a running join: the Work of a fetch.Loop. The Loop's goroutine uses its fields unless
// their comments say otherwise.
type joiner struct {
	// Constant while the loop runs.
	o       Options
	log     log.Logger
	started time.Time
	ctx     context.Context // ends the join
	loop    *fetch.Loop[*item, found]
	finder  *snapshot.Finder

	buffers fetch.Buffers // for answers; used by all goroutines

	has      map[scheduler.PeerID]protocol.Status // claims of the connected peers
	lost     time.Time                            // when a peer with the snapshot was last lost
	round    *round
	tried    map[int64]bool // heights of all rounds so far
	compared map[int64]bool // heights that the current one was compared with by lookAround
	look     time.Duration  // from the start of a round, or the last look, to the next look
	logged   time.Time      // when the progress was last logged
	count    counters
}

// Run fetches a snapshot of the chain, verifies it and durably makes it the state of the target. It
// retries until ctx ends; everything verified by then stays with the target for the next Run.
// Errors: that of ctx; snapshot.ErrNothing; snapshot.ErrHopeless and conflicts of Options.Headers;
// failures of the target.
func Run(ctx context.Context, o Options) (*Result, error) {
	j := &joiner{
		o: o, log: o.Logger, started: time.Now(), logged: time.Now(), ctx: ctx, has: map[scheduler.PeerID]protocol.Status{},
		tried: map[int64]bool{}, compared: map[int64]bool{}, look: firstLook,
	}
	j.loop = fetch.New(ctx, o.MemoryBytes, nil, j)
	defer j.loop.Stop()
	search := snapshot.Options{
		Logger: o.Logger, Peers: o.Peers, Headers: o.Headers, Interval: o.Interval,
		Local: o.Local, LocalHeight: o.LocalHeight, MinHeight: o.MinHeight, Timeout: o.ChooseTimeout, Go: j.loop.Go,
	}
	if height, m, ok := o.Target.Unfinished(); ok {
		search.Unfinished = &snapshot.Choice{Height: height, Manifest: m}
	}
	j.finder = snapshot.New(search)
	o.View.Connecting(o.Peers)
	version, err := j.restore()
	if err != nil {
		return nil, err
	}
	summary := j.report(view.PhaseDone)
	j.log.Info("Joining: the state is restored", summary.Keyvals()...)
	return &Result{j.round.Height, version, summary}, nil
}

// restore chooses a snapshot, fetches it or its replacement, and commits it.
func (j *joiner) restore() (*avlstar.Version, error) {
	c, err := j.finder.Choose(j.ctx, nil)
	if err != nil {
		return nil, err
	}
	chosen := time.Now()
	if err := j.begin(c); err != nil {
		return nil, err
	}
	defer j.leave()
	if time.Since(chosen) > peers.StatusEvery {
		// While begin verified the chunks on disk, a peer may have been lost: nothing watched,
		// since the statuses of so long a time would pile up.
		j.lost = time.Now()
	}
	stop := j.o.Peers.Watch(peers.Watcher{
		Up: func(c transport.Conn) { j.loop.Post(func() { j.loop.Up(c) }) },
		Status: func(id transport.ID, s protocol.Status) {
			j.loop.Post(func() {
				j.has[scheduler.PeerID(id)] = s
				j.claim(scheduler.PeerID(id))
			})
		},
		Down: func(id transport.ID) {
			j.loop.Post(func() {
				if _, _, had := j.has[scheduler.PeerID(id)].Part(j.round.Height); had {
					j.lost = time.Now()
				}
				delete(j.has, scheduler.PeerID(id))
				j.loop.Down(scheduler.PeerID(id))
			})
		},
	})
	defer stop()
	if err := j.loop.Run(j.tick); err != nil {
		return nil, err
	}
	if err := j.o.Headers.Conflict(); err != nil { // a peer may have sent another header meanwhile
		return nil, err
	}
	j.report(view.PhaseWriting)
	return j.round.restorer.Commit()
}

// tick performs time-based checks.
func (j *joiner) tick() {
	j.watch()
	p := j.report(view.PhaseFetching)
	if time.Since(j.logged) >= reportEvery {
		j.logged = time.Now()
		j.log.Info("Joining: fetching the state", p.Keyvals()...)
	}
}

// claim passes a peer's claims for this round to the scheduler.
func (j *joiner) claim(peer scheduler.PeerID) {
	whole, parts := chunksHeld(j.has[peer], j.round)
	j.loop.Has(peer, whole, parts)
}

// found is what a worker derived from a right answer.
type found struct {
	fresh bool         // it is the first right answer for its item
	delta *deltaAnswer // continues the answer's delta; nil: none
}

// Spec implements fetch.Work.
func (j *joiner) Spec(it *item) scheduler.Item {
	return scheduler.Item{Group: it.r.group, At: it.k, Bytes: it.bytes, Exact: it.exact()}
}

// Call implements fetch.Work.
func (j *joiner) Call(ctx context.Context, conn transport.Conn, r *fetch.Request[*item]) (fetch.Answer, error) {
	it := r.Item
	call := it.call()
	call.Received, call.Proved = &r.Received, r.Proved
	if it.exact() {
		call.Into = j.buffers.Take(int(it.bytes))
	}
	data, err := conn.Call(ctx, call)
	if err != nil {
		j.buffers.Give(call.Into)
		if errors.Is(err, transport.ErrGone) {
			j.o.Peers.AskAgain(conn.Remote().ID)
		}
		return fetch.Answer{}, err
	}
	// Only answers in a lent buffer can bypass TLS.
	unproved := !call.Proved && call.Into != nil && transport.Unproved(conn)
	return fetch.Answer{Data: data, Bytes: uint64(len(data)), Unproved: unproved}, nil
}

// Verify implements fetch.Work.
func (j *joiner) Verify(r *fetch.Request[*item], a fetch.Answer) (found, error) {
	fresh, delta, err := r.Item.verify(a.Data)
	if errors.Is(err, statesync.ErrOver) { // the round has ended, and the item was dropped
		err = fetch.ErrOver
	}
	return found{fresh, delta}, err
}

// Invalid implements fetch.Work.
func (j *joiner) Invalid(err error) bool {
	return errors.Is(err, avlstar.ErrInvalidChunk) || errors.Is(err, avlstar.ErrInvalidManifest)
}

// Verified implements fetch.Work: it counts a right answer and adds the items that a delta still
// needs.
func (j *joiner) Verified(r *fetch.Request[*item], f found) {
	it := r.Item
	j.round.verified, j.round.stall = time.Now(), firstStall
	j.o.Peers.Useful(transport.ID(r.Peer), int(it.bytes))
	if it.r != j.round || !f.fresh {
		return
	}
	j.count.verified(it)
	if it.kind == wholeChunk {
		j.o.Metrics.ChunkVerified(int(it.bytes))
	}
	if it.kind == wholeChunk || f.delta != nil && f.delta.done {
		j.o.View.Stored(it.chunk(), r.Peer)
	}
	if f.delta != nil {
		j.deltaAnswer(it, f.delta)
	}
}

// At implements fetch.Work.
func (j *joiner) At(r *fetch.Request[*item], s fetch.Stage) {
	chunk := r.Item.chunk()
	switch s {
	case fetch.Asked:
		j.o.View.Asked(chunk, r.Peer)
	case fetch.Arrived:
		j.o.View.Arrived(chunk, r.Peer)
	case fetch.Wrong:
		j.o.View.Wrong(chunk)
	case fetch.Ended:
		j.o.View.Ended(chunk)
	}
}

// Ban implements fetch.Work.
func (j *joiner) Ban(peer scheduler.PeerID, reason string) {
	j.o.Metrics.ChunkRejected()
	j.o.Peers.Ban(transport.ID(peer), statesync.BanChunk, reason)
}

// Done implements fetch.Work.
func (j *joiner) Done() bool { return j.round.restorer.Missing() == 0 }
