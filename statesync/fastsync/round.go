package fastsync

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/scheduler"
)

const (
	// firstStall is how long nothing may be verified before another snapshot is looked for. It
	// doubles up to maxStall while there is none, so that the only peer may be as slow as it is.
	firstStall = 15 * time.Second
	maxStall   = 10 * time.Minute
	// lackAfter is how long no peer may claim the snapshot before another one is looked for: long
	// enough to ask every peer again.
	lackAfter = 2 * statusEvery
	// missedEvery is the time between two searches for chunks that nobody has, where peers have
	// parts of the snapshot only.
	missedEvery = time.Second
)

// round is the fetching of one snapshot, from its choice to the last chunk or to a retarget, which
// begins another. Workers may use choice, restorer, ctx and deltas.pieces; the rest is the loop's.
type round struct {
	*choice
	group    scheduler.Group // numbers the rounds
	restorer *statesync.Restorer
	ctx      context.Context // ends with the round
	cancel   context.CancelFunc
	deltas   *deltas // nil: all chunks are fetched whole

	verified  time.Time     // when an answer was last verified, or a search has ended
	stall     time.Duration // maximum age of verified; then another snapshot is looked for
	searching bool          // a search is under way
	looked    time.Time     // when it began, or was last compared with others
	// lacking is since when no peer claims some chunk that is missing; zero: each has one. missing
	// are these chunks, as of missed.
	lacking time.Time
	missing []statesync.Span
	missed  time.Time
}

// begin makes c the snapshot to fetch, in place of the present one. Chunks of it that the target or
// the local state has are not requested.
func (j *joiner) begin(c *choice) error {
	old := j.round
	group, stall := scheduler.Group(1), firstStall
	local := locals{version: j.o.Local}
	if old != nil {
		group, stall = old.group+1, old.stall
		local.chunks = chunksOf(old)
		j.drop(old)
	}
	j.log.Info("Joining: restoring a snapshot", "height", c.height, "chunks", len(c.manifest.Entries), "retarget", old != nil)
	restorer, err := statesync.ContinueRestore(j.ctx, j.o.Target, c.height, c.manifest, func(done int) {
		if done%64 == 0 {
			j.report(Progress{Phase: PhaseVerifying, Height: c.height, Chunks: len(c.manifest.Entries), ChunksDone: done}, nil)
		}
	})
	if err != nil {
		return err
	}
	restorer.Recycle(j.buffers.give)
	r := &round{choice: c, group: group, restorer: restorer, verified: time.Now(), looked: time.Now(), stall: stall}
	r.ctx, r.cancel = context.WithCancel(j.ctx) //nolint:gosec // drop and leave call cancel
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
	for peer := range j.has {
		j.tell(peer)
	}
	return j.failed
}

// plan adds an item for each missing chunk: the chunk itself, or its sub-manifest where a delta may
// save bytes.
func (j *joiner) plan(r *round) {
	var items []*item
	for k := range r.manifest.Entries {
		bytes, missing := r.restorer.Want(uint32(k))
		switch {
		case !missing:
		case r.deltas != nil && bytes >= minDelta:
			r.deltas.waiting = append(r.deltas.waiting, uint32(k))
		default:
			items = append(items, &item{kind: wholeChunk, r: r, k: uint32(k), bytes: bytes})
		}
	}
	j.add(items...)
	j.moreDeltas()
	j.done = r.restorer.Missing() == 0
}

// drop ends a round in favour of another. What was written stays with the target.
func (j *joiner) drop(r *round) {
	r.cancel()
	j.step(scheduler.Drop{Items: slices.Collect(maps.Keys(j.items))})
	clear(j.items)
	j.done = false // the scheduler is done with the old round only
	r.restorer.Leave()
}

// leave ends the last round, and returns when its goroutines have ended. After a commit the
// restorer has nothing left to do.
func (j *joiner) leave() {
	j.round.cancel()
	for _, r := range j.requests {
		r.cancel()
	}
	j.wg.Wait() // the workers use the restorer
	j.round.restorer.Leave()
}

// watch acts on what only time shows: conflicting headers, and a snapshot that makes no progress.
func (j *joiner) watch() {
	r := j.round
	if err := j.o.Headers.Conflict(); err != nil {
		j.fail(err)
	}
	switch idle := time.Since(r.verified); {
	case r.searching:
	case j.lacks(r):
		if len(r.missing) == 0 || int(count(r.missing)) == len(r.manifest.Entries) {
			j.log.Info("Joining: no peer has the snapshot any more, looking for another", "height", r.height)
		} else {
			j.log.Info("Joining: no peer has some chunks of the snapshot, looking for another; what peers have is fetched meanwhile",
				"height", r.height, "no_peer_has", chunkNames(r.missing), "of", len(r.manifest.Entries))
		}
		j.search()
	case time.Since(r.looked) > j.look && j.left() > longLeft && j.unlooked():
		j.log.Info("Joining: the rest will take long, looking whether another snapshot comes faster", "height", r.height)
		j.lookAround()
	case idle > r.stall:
		j.log.Info("Joining: nothing was verified for a while, looking for another snapshot", "height", r.height, "seconds", int(idle.Seconds()))
		j.search()
	}
	if len(j.items) == 0 && !j.done && r.restorer.Missing() > 0 {
		j.log.Error("Joining: chunks are missing that are not being fetched, requesting them again", "missing", r.restorer.Missing())
		j.plan(r)
	}
}

// lacks reports whether no peer has claimed the snapshot for a while, or some chunk that is
// missing.
func (j *joiner) lacks(r *round) bool {
	for _, s := range j.has {
		if slices.Contains(s.Snapshots, r.height) {
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
	return time.Since(r.lacking) > lackAfter
}

// search looks for another snapshot in the background: the best one that was not tried. Meanwhile
// the present one is fetched as before.
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
		j.mail.Put(chosen{r, c})
	})
}

// chosen is the end of a search.
type chosen struct {
	of *round
	c  *choice // nil: no snapshot was found
}

func (e chosen) handle(j *joiner) {
	r := j.round
	if e.of != r {
		return
	}
	r.searching = false
	r.verified = time.Now() // the next search waits for another r.stall
	if e.c == nil || e.c.height == r.height {
		r.stall = min(2*r.stall, maxStall)
		return
	}
	if !j.tried[e.c.height] {
		r.stall = firstStall
	}
	if err := j.begin(e.c); err != nil {
		j.fail(err)
	}
}
