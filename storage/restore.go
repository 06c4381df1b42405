package storage

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/storage/internal/engine"
)

var (
	// ErrNoRun: a restore has no run of that id.
	ErrNoRun = errors.New("no such run")
	// ErrRunExists: a restore has a run of that id. Whoever adds runs adds each once.
	ErrRunExists = errors.New("the run is there already")
	// ErrNoRestore: there is no interrupted restore.
	ErrNoRestore = errors.New("no restore was interrupted")
)

// Restore writes a whole new state run by run. Until Commit returns, the zone is empty for all
// readers, also after a crash; the restore can then be resumed with the runs that it has.
//
//	Add(run) ──► two tables: leaves, heights ──► a line in the journal        a kill leaves what is there
//	   …                     └──► syncers, behind
//	Commit: the rest synced ──► links to all tables ingested at once ──► meta ──► folder removed
//
// A table goes to its place in the database as it is: nothing is inserted key by key, or written
// twice. Whoever resumes a restore verifies what it reads back: only the caller knows what it
// should be. So does the caller know which runs it adds; the restore only refuses to add one twice.
type Restore struct {
	s      *Zone
	number atomic.Uint64 // of the table made last
	syncer *syncer

	// life is held for reading while the restore is used, and for writing to change what can be
	// done with it. See "Lock order" in doc.go.
	life struct {
		sync.RWMutex
		over     bool
		readable bool // the tables are in the database; no run can be added or removed
	}
	// journal is held while a line is written and takes effect on mu.runs, so that the file and the
	// runs agree.
	journal struct {
		sync.Mutex
		file vfs.File // nil: the end of the file is not known
	}
	label sync.Mutex // guards the file of the label, while it is replaced
	mu    struct {
		sync.Mutex
		runs map[RunID]run // changed with journal held, too
		// tables from before an interruption, not synced since
		closed  map[uint64]struct{}
		failure error // runs that were added are lost
	}
}

func (s *Zone) newRestore() *Restore {
	r := &Restore{s: s}
	r.mu.runs, r.mu.closed = map[RunID]run{}, map[uint64]struct{}{}
	return r
}

// BeginRestore empties the zone, durably, and begins to restore the state that label describes, in
// at most MaxLabel bytes. It ends a restore that is under way or was interrupted, drops waiting
// blocks, and removes the pins.
func (s *Zone) BeginRestore(label []byte) (*Restore, error) {
	if len(label) > MaxLabel {
		return nil, fmt.Errorf("state folder %s: restore: label of %d bytes, want at most %d", s.dir, len(label), MaxLabel)
	}
	r := s.newRestore()
	if err := s.restart(r, label); err != nil {
		return nil, err
	}
	return r, nil
}

// Interrupted returns the label of the restore that a kill or Close left, if there is one.
func (s *Zone) Interrupted() (label []byte, ok bool) {
	if !s.interrupted.Load() || !s.users.enter() {
		return nil, false
	}
	defer s.users.leave()
	label, err := s.readLabel()
	return label, err == nil
}

// ResumeRestore resumes the restore that was interrupted: ErrNoRestore if there is none.
func (s *Zone) ResumeRestore() (*Restore, error) {
	if s.opts.ReadOnly {
		return nil, fmt.Errorf("state folder %s: restore: open for reading only", s.dir)
	}
	if !s.users.enter() {
		return nil, s.closedErr("restore")
	}
	defer s.users.leave()
	s.admin.Lock()
	defer s.admin.Unlock()
	if err := s.failure.get(); err != nil {
		return nil, err
	}
	r := s.newRestore()
	if !s.resumes(r) {
		return nil, fmt.Errorf("state folder %s: %w", s.dir, ErrNoRestore)
	}
	if err := r.resume(); err != nil {
		s.mu.Lock()
		s.mu.restore = nil
		s.mu.Unlock()
		s.interrupted.Store(true)
		return nil, s.folder.Err("restore", err)
	}
	return r, nil
}

// resumes makes r the restore that is under way, if one can be resumed.
func (s *Zone) resumes(r *Restore) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.safe != nil || s.mu.last > 0 || s.mu.restore != nil || s.mu.emptying || !s.interrupted.Load() {
		return false
	}
	s.mu.restore = r
	s.interrupted.Store(false)
	return true
}

func (r *Restore) resume() error {
	runs, err := r.s.loadRuns()
	if err != nil {
		return err
	}
	r.mu.runs = runs
	for _, tables := range runs {
		for _, t := range tables {
			r.mu.closed[t.number] = struct{}{}
			r.number.Store(max(r.number.Load(), t.number))
		}
	}
	return r.start()
}

// start begins a new journal with the runs that are there.
func (r *Restore) start() error {
	r.journal.Lock()
	defer r.journal.Unlock()
	if err := r.renewJournal(); err != nil {
		return err
	}
	r.s.guard.keep.Store(true)
	r.syncer = newSyncer()
	return nil
}

// end ends the restore, after the calls under way. What was added stays on disk.
func (r *Restore) end() {
	r.life.Lock()
	defer r.life.Unlock()
	r.endLocked()
}

func (r *Restore) endLocked() {
	if r.life.over {
		return
	}
	r.life.over = true
	if r.syncer != nil {
		r.syncer.stop()
	}
	r.journal.Lock()
	defer r.journal.Unlock()
	if r.journal.file != nil {
		_ = r.journal.file.Close() // its lines are useless, or will be checked
		r.journal.file = nil
	}
}

func (r *Restore) overErr() error {
	return fmt.Errorf("state folder %s: this restore is over: %w", r.s.dir, ErrClosed)
}

func (r *Restore) noRunErr(id RunID) error {
	return fmt.Errorf("state folder %s: restore: run %x: %w", r.s.dir, string(id), ErrNoRun)
}

// enter keeps the restore from ending; the caller must leave.
func (r *Restore) enter() error {
	if !r.s.users.enter() {
		return r.overErr()
	}
	r.life.RLock()
	if r.life.over {
		r.leave()
		return r.overErr()
	}
	return nil
}

func (r *Restore) leave() {
	r.life.RUnlock()
	r.s.users.leave()
}

// enterToChange is enter for what changes the runs.
func (r *Restore) enterToChange() error {
	if err := r.enter(); err != nil {
		return err
	}
	err := r.s.failure.get()
	if err == nil && r.life.readable {
		err = fmt.Errorf("state folder %s: restore: its runs cannot change once it is readable", r.s.dir)
	}
	if err != nil {
		r.leave()
	}
	return err
}

// Runs lists the runs that are there, in ascending order. Their contents were not looked at.
func (r *Restore) Runs() []RunID {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.mu.runs))
}

// Add writes one run of leaves with their heights, in ascending order of their keys, with no key of
// another run in between. It may be called concurrently, once per id, and waits while the backlog
// of syncs is at its limit. Once it has returned, the run survives a kill; it survives a loss of
// power once Commit has returned. Errors: ErrRunExists if there is a run of that id, one for keys
// out of order, and those of the disk, after which the restore can continue if the disk can.
func (r *Restore) Add(id RunID, leaves iter.Seq[record.Leaf]) error {
	if len(id) > MaxRunID {
		return fmt.Errorf("state folder %s: restore: run id of %d bytes, want at most %d", r.s.dir, len(id), MaxRunID)
	}
	if err := r.enterToChange(); err != nil {
		return err
	}
	defer r.leave()
	if err := r.free(id); err != nil { // before all the work
		return err
	}
	w := runWriter{r: r}
	err := w.write(leaves)
	if err == nil {
		err = r.note(appendAdded(nil, id, w.tables), func() error { return r.free(id) }, func() { r.mu.runs[id] = w.tables })
	}
	if err != nil {
		w.discard()
		return r.s.folder.Err("restore", err)
	}
	for _, file := range w.files {
		r.syncer.add(file, func(err error) {
			if err != nil {
				r.lose(id, err)
			}
		})
	}
	return nil
}

// free returns an error where a run of that id cannot be added.
func (r *Restore) free(id RunID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.failure != nil {
		return r.mu.failure
	}
	if _, there := r.mu.runs[id]; there {
		return fmt.Errorf("state folder %s: restore: run %x: %w", r.s.dir, string(id), ErrRunExists)
	}
	return nil
}

// note writes a line to the journal, unless check returns an error; then apply is called with r.mu
// held. The runs do not change in between: all of that goes through note.
func (r *Restore) note(line []byte, check func() error, apply func()) error {
	r.journal.Lock()
	defer r.journal.Unlock()
	if err := check(); err != nil {
		return err
	}
	if r.journal.file == nil {
		if err := r.renewJournal(); err != nil {
			return err
		}
	}
	if _, err := r.journal.file.Write(line); err != nil {
		_ = r.journal.file.Close() // half a line may be there: nothing can follow it
		r.journal.file = nil
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	apply()
	return nil
}

// renewJournal replaces the journal by one with the runs that are there. The caller holds
// r.journal.
func (r *Restore) renewJournal() error {
	journal := []byte{journalVersion}
	r.mu.Lock()
	for id, tables := range r.mu.runs {
		journal = appendAdded(journal, id, tables)
	}
	r.mu.Unlock()
	fs, path := r.s.opts.FS, r.s.inRestore(journalFile)
	file, err := fs.Create(path+newSuffix, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = file.Write(journal)
	if err == nil {
		err = file.Sync()
	}
	if err == nil {
		err = fs.Rename(path+newSuffix, path)
	}
	if err == nil {
		err = engine.SyncDir(fs, r.s.inZone(restoreName))
	}
	if err != nil {
		return errors.Join(err, file.Close())
	}
	r.journal.file = file
	return nil
}

// lose removes a run that could not be made durable: what the system still shows of it may not be
// on the disk.
func (r *Restore) lose(id RunID, err error) {
	r.mu.Lock()
	if r.mu.failure == nil {
		r.mu.failure = r.s.folder.Err("restore", err)
	}
	r.mu.Unlock()
	if err := r.drop(id); err != nil && !errors.Is(err, ErrNoRun) {
		r.s.log.Error("cannot remove a run that is lost", "folder", r.s.inZone(restoreName), "run", fmt.Sprintf("%x", string(id)), "err", err)
	}
}

// Remove removes a run: ErrNoRun if there is none of that id.
func (r *Restore) Remove(id RunID) error {
	if err := r.enterToChange(); err != nil {
		return err
	}
	defer r.leave()
	return r.s.folder.Err("restore", r.drop(id))
}

func (r *Restore) drop(id RunID) error {
	var tables run
	there := func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if _, is := r.mu.runs[id]; !is {
			return r.noRunErr(id)
		}
		return nil
	}
	err := r.note(appendRemoved(nil, id), there, func() {
		tables = r.mu.runs[id]
		delete(r.mu.runs, id)
		for _, t := range tables {
			delete(r.mu.closed, t.number)
		}
	})
	if err != nil {
		return err
	}
	for _, t := range tables {
		if err2 := r.s.opts.FS.Remove(r.s.tablePath(t.number)); err == nil {
			err = err2
		}
	}
	return err
}

// SetLabel replaces the label, durably: after a crash there is the old one or the new one.
func (r *Restore) SetLabel(label []byte) error {
	if len(label) > MaxLabel {
		return fmt.Errorf("state folder %s: restore: label of %d bytes, want at most %d", r.s.dir, len(label), MaxLabel)
	}
	if err := r.enter(); err != nil {
		return err
	}
	defer r.leave()
	r.label.Lock()
	defer r.label.Unlock()
	return r.s.folder.Err("restore", r.s.writeLabel(label))
}

// Readable ends the adding of runs: Scan and Page can read them now, though none of it is durable
// before Commit.
func (r *Restore) Readable() error {
	s := r.s
	if !s.users.enter() {
		return r.overErr()
	}
	defer s.users.leave()
	r.life.Lock()
	defer r.life.Unlock()
	if r.life.over {
		return r.overErr()
	}
	if r.life.readable {
		return nil
	}
	if err := r.ingest(); err != nil {
		return err
	}
	s.generations.push(newGeneration(0, s.db.NewSnapshot()), s.opts.Generations)
	return nil
}

// ingest links all tables into the database. The caller holds r.life.
func (r *Restore) ingest() error {
	if err := r.s.failure.get(); err != nil {
		return err
	}
	r.syncer.wait()
	r.mu.Lock()
	failure := r.mu.failure
	var paths, closed []string
	for _, tables := range r.mu.runs {
		for _, t := range tables {
			paths = append(paths, r.s.tablePath(t.number))
			if _, is := r.mu.closed[t.number]; is {
				closed = append(closed, paths[len(paths)-1])
			}
		}
	}
	r.mu.Unlock()
	if failure != nil {
		return failure
	}
	err := syncPaths(r.s.opts.FS, closed)
	if err == nil {
		err = r.syncJournal()
	}
	if err == nil && len(paths) > 0 {
		err = r.s.db.Ingest(context.Background(), paths)
	}
	if err != nil {
		err = r.s.folder.Err("restore", err)
		r.mu.Lock()
		r.mu.failure = err
		r.mu.Unlock()
		return err
	}
	r.life.readable = true
	return nil
}

// syncJournal makes durable that the runs are there.
func (r *Restore) syncJournal() error {
	r.journal.Lock()
	defer r.journal.Unlock()
	if r.journal.file == nil {
		return r.renewJournal()
	}
	return errors.Join(r.journal.file.Sync(), engine.SyncDir(r.s.opts.FS, r.s.inZone(restoreName)))
}

// Commit makes the restored state the state of the zone, durably. Meta is written once all else is
// durable, so a zone that has it after a crash has all leaves. After an error the restore can be
// aborted, or closed and resumed.
func (r *Restore) Commit(m Meta) error {
	s := r.s
	if err := m.validate(); err != nil {
		return fmt.Errorf("state folder %s: restore: %w", s.dir, err)
	}
	if !s.users.enter() {
		return r.overErr()
	}
	defer s.users.leave()
	s.admin.Lock()
	defer s.admin.Unlock()
	r.life.Lock()
	defer r.life.Unlock()
	if r.life.over {
		return r.overErr()
	}
	if err := s.failure.get(); err != nil {
		return err
	}
	if !r.life.readable {
		if err := r.ingest(); err != nil {
			return err
		}
	}
	m.Restored = true
	batch := s.db.NewBatch()
	if err := batch.Set([]byte{kindMeta}, m.encode(), nil); err != nil {
		return s.folder.Err("restore", errors.Join(err, batch.Close()))
	}
	if err := s.commit(batch); err != nil {
		s.failure.fail(err) // meta may have reached the disk, or may yet reach it
		return err
	}
	r.endLocked()
	s.generations.push(newGeneration(m.Height, s.db.NewSnapshot()), s.opts.Generations)
	s.mu.Lock()
	s.setSafe(m)
	s.mu.restore = nil
	s.mu.Unlock()
	s.forgetRestore()
	return nil
}

// forgetRestore removes the folder of a restore beside a state that is durable. If it cannot, the
// next Open will.
func (s *Zone) forgetRestore() {
	s.guard.keep.Store(false)
	s.interrupted.Store(false)
	if err := s.discardRestore(); err != nil {
		s.log.Error("cannot remove the files of a restore", "folder", s.inZone(restoreName), "err", err)
	}
}

// Abort empties the zone again. After Commit or Close, or when another restore has begun, it does
// nothing.
func (r *Restore) Abort() error {
	r.s.mu.Lock()
	current := r.s.mu.restore == r
	r.s.mu.Unlock()
	if !current {
		return nil
	}
	return r.s.restart(nil, nil)
}

// Close interrupts the restore: the zone is empty, and ResumeRestore continues with what was added.
// After Commit or Abort it does nothing.
func (r *Restore) Close() {
	s := r.s
	if !s.users.enter() {
		return // the zone was closed, and the restore with it
	}
	defer s.users.leave()
	s.admin.Lock()
	defer s.admin.Unlock()
	s.mu.Lock()
	if s.mu.restore != r {
		s.mu.Unlock()
		return
	}
	s.mu.restore, s.mu.emptying = nil, true
	s.mu.Unlock()
	r.end()
	if r.life.readable {
		s.generations.dropAll()
	}
	if s.failure.get() == nil {
		if err := s.wipeOrphans(); err != nil {
			s.failure.fail(err)
		}
	}
	s.interrupted.Store(true)
	s.mu.Lock()
	s.mu.emptying = false
	s.mu.Unlock()
}
