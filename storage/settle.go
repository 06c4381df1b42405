package storage

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/starling-kv/starling/internal/rowtable"
)

// A state that was restored is settled behind the join: tables are made of its runs, by the
// flusher, before it flushes any block.
//
//	Commit ──► unsettled: reads see the runs, blocks wait
//	               │ flusher: runs in key order ──► tables, synced ──► all ingested at once ──► meta
//	               ▼
//	           settled: reads see the database ──► the folder of the restore is removed
//
// Nothing of a later block may be in the database before: what is ingested counts as newer than
// what is there, so old values would win. A crash in between leaves tables without meta, which the
// next Open removes, and the runs, of which it begins again. So does Close: it gives settling up,
// and the blocks that wait for it, which are executed again as after a crash.
type unsettled struct {
	meta Meta
	set  *runSet
	// givenUp is closed when the zone is emptied, or is about to be closed, done when the state is
	// settled or given up, or the zone has failed.
	givenUp, done chan struct{}
	gaveUp, told  bool // givenUp is closed, done is; guarded by Zone.mu
}

func newUnsettled(m Meta, set *runSet) *unsettled {
	return &unsettled{meta: m, set: set, givenUp: make(chan struct{}), done: make(chan struct{})}
}

// giveUp makes settle return soon. The caller holds Zone.mu.
func (u *unsettled) giveUp() {
	if !u.gaveUp {
		close(u.givenUp)
		u.gaveUp = true
	}
}

var errGivenUp = errors.New("the zone is being emptied or closed")

// Settled returns a channel that is closed once no restored state is left to settle: the database
// has it, and the files of the restore are removed; or the zone was emptied, has failed, is closed,
// or is ReadOnly.
func (s *Zone) Settled() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u := s.mu.unsettled; u != nil && !s.opts.ReadOnly {
		return u.done
	}
	return closedChannel
}

// Settle returns once the zone is settled (see Settled), which it makes come soon. Who gives the
// zone up afterwards, and is no node, calls it before Close, which settles nothing. Errors: that of
// ctx, ErrClosed, the zone's failure.
func (s *Zone) Settle(ctx context.Context) error {
	if s.opts.ReadOnly {
		return fmt.Errorf("state folder %s: settle: open for reading only", s.dir)
	}
	s.mu.Lock()
	u, closed := s.mu.unsettled, s.mu.closed
	if u != nil {
		s.mu.pressed = true
	}
	s.mu.Unlock()
	if u != nil {
		s.wakeFlusher()
		select {
		case <-u.done:
		case <-s.failure.done:
		case <-ctx.Done():
			return s.folder.Err("settle", ctx.Err())
		}
		s.mu.Lock()
		closed = u.gaveUp
		s.mu.Unlock()
	}
	if err := s.failure.get(); err != nil {
		return err
	}
	if closed {
		return s.closedErr("settle")
	}
	return nil
}

// StopSettling is for who is about to close the zone: if a restored state is not settled yet, it
// stays so, for the next Open. No Write waits for the backlog then, so that its caller can end: the
// blocks are dropped by Close, and never become durable.
func (s *Zone) StopSettling() {
	s.mu.Lock()
	if u := s.mu.unsettled; u != nil {
		u.giveUp()
		s.moved()
	}
	s.mu.Unlock()
	s.wakeFlusher()
}

var closedChannel = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// settled notes that u is not waited for any more. The caller holds s.mu.
func (s *Zone) settled(u *unsettled) {
	if s.mu.unsettled == u {
		s.mu.unsettled, s.mu.pressed = nil, false
	}
	if !u.told {
		close(u.done)
		u.told = true
	}
}

// settle makes tables of a restored state. progress, see settleNow, may be nil. Errors: errGivenUp,
// those that the zone fails with, and that of progress.
func (s *Zone) settle(u *unsettled, progress func(done, total uint64) error) error {
	if progress == nil {
		progress = func(_, _ uint64) error { return nil }
	}
	started := time.Now()
	w := &stateWriter{s: s, progress: progress, pace: pace{s: s, u: u, from: started}}
	err := w.write(u.set)
	if err == nil && len(w.paths) > 0 {
		err = s.db.Ingest(context.Background(), w.paths)
	}
	if err == nil {
		err = s.opts.FS.RemoveAll(s.ingestDir())
	}
	if err == nil {
		batch := s.db.NewBatch()
		if err = batch.Set([]byte{kindMeta}, u.meta.encode(), nil); err == nil {
			err = s.commit(batch)
		}
	}
	switch {
	case errors.Is(err, errGivenUp): // who empties the zone, or opens it, removes the tables
		return err
	case errors.Is(err, errDamagedRun), errors.Is(err, rowtable.ErrOrder):
		return s.folder.Corrupt(err)
	case err != nil:
		return s.folder.Err("settle", err)
	}
	g := newGeneration(u.meta.Height, s.db.NewSnapshot(), s.layout)
	for _, freed := range s.generations.replace(g) { // a Scan may still read the files
		select {
		case <-freed:
		case <-u.givenUp:
			return errGivenUp
		case <-s.failure.done:
			return s.failure.get()
		}
	}
	s.forgetRestore()
	s.mu.Lock()
	s.settled(u)
	s.mu.Unlock()
	s.log.Info("the restored state is settled", "folder", s.dir, "height", u.meta.Height, "tables", len(w.paths), "seconds", time.Since(started).Seconds())
	return nil
}

// settleNow settles the state, if it is not settled yet, where there is no flusher. progress is
// called before each run with the bytes of runs that are in tables, and of all; an error ends it.
func (s *Zone) settleNow(progress func(done, total uint64) error) error {
	s.mu.Lock()
	u := s.mu.unsettled
	s.mu.pressed = u != nil
	s.mu.Unlock()
	if u == nil {
		return nil
	}
	return s.settle(u, progress)
}

// pace makes settling give way to blocks: it pauses as long as it has worked, a few milliseconds
// each, unless somebody waits for it.
type pace struct {
	s    *Zone
	u    *unsettled
	from time.Time // beginning of the work since the last pause
}

// leastWork is what is done between two pauses.
const leastWork = time.Millisecond

// giveWay returns errGivenUp, or the zone's failure, where there is nothing to continue for.
func (p *pace) giveWay() error {
	worked := time.Since(p.from)
	if worked < leastWork || p.hurried() {
		worked = 0
	}
	timer := time.NewTimer(worked)
	defer timer.Stop()
	for waiting := worked > 0; waiting && !p.hurried(); {
		select {
		case <-timer.C:
			waiting = false
		case <-p.s.wake: // perhaps somebody waits now; next looks anyway
		case <-p.u.givenUp:
			waiting = false
		case <-p.s.failure.done:
			waiting = false
		}
	}
	if worked > 0 {
		p.from = time.Now()
	}
	select {
	case <-p.u.givenUp:
		return errGivenUp
	default:
		return p.s.failure.get()
	}
}

// hurried reports whether somebody waits for blocks to become durable.
func (p *pace) hurried() bool {
	s := p.s
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.pressed || len(s.mu.waiting) > 0 && s.mu.waiting[0].Meta.Height <= s.mu.wanted
}
