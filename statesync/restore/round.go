package restore

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/peers"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/statesync/scheduler"
	"github.com/starling-kv/starling/statesync/snapshot"
	"github.com/starling-kv/starling/statesync/view"
)

const (
	// firstStall is how long nothing may be verified before another snapshot is searched. It
	// doubles up to maxStall while none is found, so the only peer may be arbitrarily slow.
	firstStall = 15 * time.Second
	maxStall   = 10 * time.Minute
	// lackAfter is how long no peer may claim the snapshot before another one is searched, if a
	// peer that had it was lost, or one has not reported yet: long enough to connect to it again.
	lackAfter = 2 * peers.StatusEvery
	// missedEvery is the interval of searching for chunks that no peer has, if peers have only
	// parts of the snapshot.
	missedEvery = time.Second
)

// round is the fetching of one snapshot, from its choice to the last chunk or to a retarget, which
// starts another round. Workers may use Choice, restorer, ctx and deltas.pieces; only the loop uses
// the rest.
type round struct {
	*snapshot.Choice
	group    scheduler.Group // numbers the rounds
	restorer *statesync.Restorer
	ctx      context.Context // ends with the round
	cancel   context.CancelFunc
	deltas   *deltas // nil: all chunks are fetched whole

	verified  time.Time     // when an answer was last verified, or a search ended
	stall     time.Duration // maximum age of verified; then another snapshot is searched
	searching bool          // a search is in progress
	looked    time.Time     // when the round began or was last compared with others
	// The time since when no peer claims some chunk that the node needs; zero: each chunk has a
	// peer. missing are these chunks, as of missed.
	lacking time.Time
	missing []scheduler.Span
	missed  time.Time
}

// begin makes c the snapshot to fetch, replacing the current one. Chunks of c that the target or
// the local state has are not requested.
func (j *joiner) begin(c *snapshot.Choice) error {
	old := j.round
	group, stall := scheduler.Group(1), firstStall
	local := locals{version: j.o.Local}
	if old != nil {
		group, stall = old.group+1, old.stall
		local.chunks = chunksOf(old)
		j.drop(old)
	}
	j.log.Info("Joining: restoring a snapshot", "height", c.Height, "chunks", len(c.Manifest.Entries), "retarget", old != nil)
	restorer, err := statesync.ContinueRestore(j.ctx, j.o.Target, c.Height, c.Manifest, func(done int) {
		if done%64 == 0 {
			j.show(view.Progress{Phase: view.PhaseVerifying, Height: c.Height, Chunks: len(c.Manifest.Entries), ChunksDone: done}, nil)
		}
	})
	if err != nil {
		return err
	}
	restorer.Recycle(j.buffers.Give)
	r := &round{Choice: c, group: group, restorer: restorer, verified: time.Now(), looked: time.Now(), stall: stall}
	r.ctx, r.cancel = context.WithCancel(j.ctx) //nolint:gosec // drop and leave call cancel
	j.round = r
	if j.o.Begun != nil {
		j.o.Begun(c.Height)
	}
	j.tried[c.Height] = true
	j.count.begin(c.Manifest, restorer)
	j.o.Metrics.Restoring(len(c.Manifest.Entries))
	r.deltas = newDeltas(c.Manifest.ChunkBytes, local)
	if err := j.copyLocal(r, local); err != nil {
		return err
	}
	j.o.View.Begin(r.group, r.Height, len(r.Manifest.Entries), func(k uint32) bool {
		_, missing := r.restorer.Want(k)
		return missing
	})
	j.plan(r)
	for peer := range j.has {
		j.claim(peer)
	}
	return j.loop.Failed()
}

// plan adds an item for each missing chunk: the chunk itself, or its sub-manifest if a delta may
// save bytes.
func (j *joiner) plan(r *round) {
	var items []*item
	for k := range r.Manifest.Entries {
		bytes, missing := r.restorer.Want(uint32(k))
		switch {
		case !missing:
		case r.deltas != nil && bytes >= minDelta:
			r.deltas.waiting = append(r.deltas.waiting, uint32(k))
		default:
			items = append(items, &item{kind: wholeChunk, r: r, k: uint32(k), bytes: bytes})
		}
	}
	j.loop.Add(items...)
	j.moreDeltas()
	if r.restorer.Missing() == 0 {
		j.loop.Finish()
	}
}

// drop ends a round before another one starts. Written chunks stay with the target.
func (j *joiner) drop(r *round) {
	r.cancel()
	j.loop.Drop()
	r.restorer.Leave()
}

// leave ends the last round and waits for its goroutines. After a commit, the restorer ignores
// Leave.
func (j *joiner) leave() {
	j.round.cancel()
	j.loop.Stop() // the workers use the restorer
	j.round.restorer.Leave()
}

// watch performs time-based checks: conflicting headers, and a snapshot that makes no progress.
func (j *joiner) watch() {
	r := j.round
	if err := j.o.Headers.Conflict(); err != nil {
		j.loop.Fail(err)
	}
	switch idle := time.Since(r.verified); {
	case r.searching:
	case j.lacks(r):
		if len(r.missing) == 0 || int(snapshot.Count(r.missing)) == len(r.Manifest.Entries) {
			j.log.Info("Joining: no peer has the snapshot any more, looking for another", "height", r.Height)
		} else {
			j.log.Info("Joining: no peer has some chunks of the snapshot, looking for another; what peers have is fetched meanwhile",
				"height", r.Height, "no_peer_has", snapshot.ChunkNames(r.missing), "of", len(r.Manifest.Entries))
		}
		j.search(false)
	case time.Since(r.looked) > j.look && j.left() > longLeft && j.unlooked():
		j.log.Info("Joining: the rest will take long, looking for a faster snapshot", "height", r.Height)
		j.lookAround()
	case idle > r.stall:
		j.log.Info("Joining: nothing was verified for a while, looking for another snapshot", "height", r.Height, "seconds", int(idle.Seconds()))
		j.search(true)
	}
	if j.loop.Items() == 0 && r.restorer.Missing() > 0 {
		j.log.Error("Joining: chunks are missing that are not being fetched, requesting them again", "missing", r.restorer.Missing())
		j.plan(r)
	}
}

// True if no peer claims the snapshot, or some chunk that the node needs, and none is expected to.
func (j *joiner) lacks(r *round) bool {
	for _, s := range j.has {
		if slices.Contains(s.Snapshots, r.Height) {
			r.lacking, r.missing = time.Time{}, nil
			return false
		}
	}
	if time.Since(r.missed) >= missedEvery {
		r.missing, r.missed = j.missing(r), time.Now()
	}
	if len(r.missing) == 0 {
		r.lacking = time.Time{}
		return false
	}
	if r.lacking.IsZero() {
		r.lacking = time.Now()
	}
	if time.Since(r.lacking) > lackAfter {
		return true
	}
	awaited, _ := j.o.Peers.Awaited()
	silent := slices.ContainsFunc(j.o.Peers.Connected(), func(p peers.Peer) bool { return !p.Known })
	return awaited == 0 && !silent && time.Since(j.lost) > lackAfter
}

// search searches in the background for another snapshot: the best one not tried yet. The current
// one is still being fetched. idle: nothing was verified for a while.
func (j *joiner) search(idle bool) {
	r := j.round
	r.searching = true
	tried := maps.Clone(j.tried)
	j.loop.Go(func() {
		timed, cancel := context.WithTimeout(r.ctx, r.stall)
		defer cancel()
		c, err := j.finder.Choose(timed, func(h int64) int {
			switch {
			case h == r.Height:
				return 1
			case tried[h]:
				return 2
			}
			return 0
		})
		if err != nil {
			c = nil
		}
		j.loop.Post(func() { j.chosen(r, c, idle) })
	})
}

// chosen handles the end of search. c is nil if no snapshot was found.
func (j *joiner) chosen(of *round, c *snapshot.Choice, idle bool) {
	r := j.round
	if of != r {
		return
	}
	r.searching = false
	r.verified = time.Now() // the next search follows after another r.stall
	if c == nil || c.Height == r.Height {
		if idle {
			r.stall = min(2*r.stall, maxStall)
		}
		return
	}
	if !j.tried[c.Height] {
		r.stall = firstStall
	}
	if err := j.begin(c); err != nil {
		j.loop.Fail(err)
	}
}

// missing returns the chunks that a round needs and that no connected peer claims.
func (j *joiner) missing(r *round) (spans []scheduler.Span) {
	var parts []statesync.Part
	for _, s := range j.has {
		p, all, ok := s.Part(r.Height)
		if all {
			return nil
		}
		if ok {
			parts = append(parts, p)
		}
	}
	for _, s := range snapshot.Uncovered(parts, uint32(len(r.Manifest.Entries))) {
		for k := s.From; k < s.To; k++ {
			if _, is := r.restorer.Want(k); !is {
				continue
			}
			if n := len(spans); n > 0 && spans[n-1].To == k {
				spans[n-1].To++
			} else {
				spans = append(spans, scheduler.Span{From: k, To: k + 1})
			}
		}
	}
	return spans
}

// chunksHeld returns a peer's claims for a round in the scheduler's terms.
func chunksHeld(s protocol.Status, r *round) (whole []scheduler.Group, parts []scheduler.Part) {
	p, all, ok := s.Part(r.Height)
	switch {
	case all:
		whole = []scheduler.Group{r.group}
	case ok && int64(p.Chunks) == int64(len(r.Manifest.Entries)): // otherwise of another snapshot
		parts = []scheduler.Part{{Group: r.group, Spans: p.Spans}}
	}
	return whole, parts
}
