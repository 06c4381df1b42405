package storage

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/internal/rowtable"
)

// A restored state is settled after the join: before any block is flushed, the flusher converts the
// runs to tables and ingests them.
//
//	Commit ──► unsettled: reads see the runs, blocks wait
//	               │ flusher: runs in key order ──► tables, synced ──► all ingested at once, with meta
//	               ▼
//	           settled: reads see the database ──► the folder of the restore is removed
//
// No later block may be in the database before that: ingested records would count as newer than
// existing ones, so old values would win. After a crash before the ingestion, the next Open still
// has the runs and starts over. The same holds for Close, which abandons settling and drops the
// waiting blocks, which are executed again as after a crash.
type unsettled struct {
	meta Meta
	set  *runSet
	// givenUp is closed before the zone is emptied or closed. done is closed when the state is
	// settled or given up, or the zone has failed.
	givenUp, done chan struct{}
	gaveUp, told  bool // givenUp is closed; done is closed. Guarded by Zone.mu.
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

// Settled returns a channel that is closed once no restored state is left to settle: the state is
// in the database and the files of the restore are removed. The channel is also closed if the zone
// was emptied, has failed, is closed, or is read-only.
func (s *Zone) Settled() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u := s.mu.unsettled; u != nil && !s.opts.ReadOnly {
		return u.done
	}
	return closedChannel
}

// Settle speeds up settling and waits until the zone is settled (see Settled). Programs that are
// not nodes call it before Close, which settles nothing. Errors: that of ctx, ErrClosed, the zone's
// failure.
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

// StopSettling is called before Close. It leaves an unsettled state to the next Open. Afterwards
// Write does not wait for the backlog, so that its caller can end; Close drops these blocks, and
// they never become durable.
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

// settled ends the settling of u. The caller holds s.mu.
func (s *Zone) settled(u *unsettled) {
	if s.mu.unsettled == u {
		s.mu.unsettled, s.mu.pressed = nil, false
	}
	if !u.told {
		close(u.done)
		u.told = true
	}
}

// settle converts a restored state to tables and ingests them. Errors: errGivenUp, and those that
// fail the zone.
func (s *Zone) settle(u *unsettled) error {
	started := time.Now()
	tables, err := s.writeTables(u, started)
	if err == nil {
		err = s.db.Ingest(context.Background(), tables)
	}
	if err == nil {
		err = s.opts.FS.RemoveAll(s.ingestDir())
	}
	switch {
	case errors.Is(err, errGivenUp): // restart or Open removes the tables
		return err
	case errors.Is(err, errDamagedRun), errors.Is(err, rowtable.ErrOrder):
		return s.folder.Corrupt(err)
	case err != nil:
		return s.folder.Err("settle", err)
	}
	g := newGeneration(u.meta.Height, s.db.NewSnapshot())
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
	s.log.Info("the restored state is settled", "folder", s.dir, "height", u.meta.Height, "tables", len(tables), "seconds", time.Since(started).Seconds())
	return nil
}

// writeTables writes a restored state and its meta to tables, durably, and returns their paths.
func (s *Zone) writeTables(u *unsettled, started time.Time) ([]string, error) {
	t, err := s.newTables()
	if err != nil {
		return nil, err
	}
	defer t.stop()
	pace := pace{s: s, u: u, from: started}
	var failed error
	add := func(l record.Leaf) bool {
		failed = t.add(l)
		return failed == nil
	}
	for i := range u.set.runs {
		if err := pace.giveWay(); err != nil {
			return nil, err
		}
		if err := u.set.each(i, i+1, add); err != nil {
			return nil, err
		}
		if failed != nil {
			return nil, failed
		}
	}
	err = t.finish(u.meta)
	return t.paths, err
}

// pace makes settling yield to block execution: after some milliseconds of work it pauses as long
// as it worked, unless a caller waits for it.
type pace struct {
	s    *Zone
	u    *unsettled
	from time.Time // end of the last pause
}

// leastWork is the minimum time of work between two pauses.
const leastWork = time.Millisecond

// giveWay pauses. It returns errGivenUp or the zone's failure if settling must end.
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
		case <-p.s.wake: // a caller may wait now; hurried checks it
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

// hurried reports whether a caller waits for blocks to become durable, or for settling.
func (p *pace) hurried() bool {
	s := p.s
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.pressed || len(s.mu.waiting) > 0 && s.mu.waiting[0].Meta.Height <= s.mu.wanted
}
