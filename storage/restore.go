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

	"github.com/starling-kv/starling/storage/internal/engine"
)

var (
	// ErrNoRun: a restore has no run of that id.
	ErrNoRun = errors.New("no such run")
	// ErrRunExists: a restore has a run of that id, or is being given one.
	ErrRunExists = errors.New("the run is there already")
	// ErrNoRestore: there is no interrupted restore.
	ErrNoRestore = errors.New("no restore was interrupted")
)

// Restore writes a whole new state run by run. Until Commit returns, the zone is empty for everybody, also after a crash; then the
// restore can go on with the runs that it has.
//
//	Add(run) ──► two tables: leaves, heights ──► a line in the journal        a kill leaves what is there
//	   …                     └──► syncers, behind
//	Commit: the rest synced ──► links to all tables ingested at once ──► meta ──► folder removed
//
// A table goes to its place in the database as it is: nothing is inserted key by key, or written twice. What is read back from a
// restore that was interrupted is to be verified by who knows what it should be.
type Restore struct {
	s      *State
	number atomic.Uint64 // of the table made last
	syncer *syncer

	// life is held for reading while the restore is used, for writing to change what can be done with it.
	life struct {
		sync.RWMutex
		over     bool
		readable bool // the tables are in the database; nothing can be added any more
	}
	journal struct {
		sync.Mutex          // held while a line is written and takes effect
		file       vfs.File // nil: the end of the file is not known
	}
	label sync.Mutex // held while it is replaced
	mu    struct {
		sync.Mutex
		runs    map[RunID]run
		adding  map[RunID]struct{}
		closed  map[uint64]struct{} // tables from before an interruption, which nobody has synced since
		failure error               // runs that were added are lost
	}
}

func (s *State) newRestore() *Restore {
	r := &Restore{s: s}
	r.mu.runs, r.mu.adding, r.mu.closed = map[RunID]run{}, map[RunID]struct{}{}, map[uint64]struct{}{}
	return r
}

// BeginRestore empties the zone, durably, and begins to restore what label (at most MaxLabel bytes) says. A restore that was under
// way, or interrupted, is over; blocks that wait are dropped, pins removed.
func (s *State) BeginRestore(label []byte) (*Restore, error) {
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
func (s *State) Interrupted() (label []byte, ok bool) {
	if !s.interrupted.Load() || !s.users.enter() {
		return nil, false
	}
	defer s.users.leave()
	label, err := s.readLabel()
	return label, err == nil
}

// ResumeRestore goes on with the restore that was interrupted: ErrNoRestore if there is none.
func (s *State) ResumeRestore() (*Restore, error) {
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
func (s *State) resumes(r *Restore) bool {
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
	r.s.gate.keep.Store(true)
	r.syncer = newSyncer()
	return nil
}

// end lets nothing begin any more, and waits for what is under way. What was added stays on disk.
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
		_ = r.journal.file.Close() // its lines are of no use, or will be checked
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

// Runs lists the runs that are there, in ascending order. What is in them was not looked at.
func (r *Restore) Runs() []RunID {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.mu.runs))
}

// Add writes one run of leaves with their heights, in ascending order of their keys, with no key of another run among them. It
// may be called concurrently, and waits while the disk is too far behind. Once it has returned, the run is there after a kill; after
// a loss of power, only once Commit has returned, too. ErrRunExists if there is one of that id. After an error of another kind than
// that, or than a wrong order, the restore can go on if the disk does.
func (r *Restore) Add(id RunID, leaves iter.Seq[Leaf]) error {
	if len(id) > MaxRunID {
		return fmt.Errorf("state folder %s: restore: run id of %d bytes, want at most %d", r.s.dir, len(id), MaxRunID)
	}
	if err := r.enterToChange(); err != nil {
		return err
	}
	defer r.leave()
	if err := r.claim(id); err != nil {
		return err
	}
	defer func() {
		r.mu.Lock()
		delete(r.mu.adding, id)
		r.mu.Unlock()
	}()
	w := runWriter{r: r}
	err := w.write(leaves)
	if err == nil {
		err = r.note(appendAdded(nil, id, w.tables), func() { r.mu.runs[id] = w.tables })
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

func (r *Restore) claim(id RunID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, adding := r.mu.adding[id]
	_, there := r.mu.runs[id]
	switch {
	case r.mu.failure != nil:
		return r.mu.failure
	case adding || there:
		return fmt.Errorf("state folder %s: restore: run %x: %w", r.s.dir, string(id), ErrRunExists)
	}
	r.mu.adding[id] = struct{}{}
	return nil
}

// note writes a line to the journal; then apply is called with r.mu held.
func (r *Restore) note(line []byte, apply func()) error {
	r.journal.Lock()
	defer r.journal.Unlock()
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

// renewJournal replaces the journal by one with the runs that are there. The caller holds r.journal.
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

// lose takes a run away that could not be made durable: what the system still shows of it may not be on the disk.
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
	there := false
	err := r.note(appendRemoved(nil, id), func() {
		tables, there = r.mu.runs[id]
		delete(r.mu.runs, id)
		for _, t := range tables {
			delete(r.mu.closed, t.number)
		}
	})
	switch {
	case err != nil:
		return err
	case !there:
		return r.noRunErr(id)
	}
	for _, t := range tables {
		if err2 := r.s.opts.FS.Remove(r.s.tablePath(t.number)); err == nil {
			err = err2
		}
	}
	return err
}

// SetLabel replaces the label, durably: after a crash there is the one or the other.
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

// Readable ends the adding: what was added can be read, by Scan and Page, though none of it is durable before Commit.
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

// Commit makes the restored state the state of the zone, durably. Meta is written when all else is durable, so a meta that is
// there after a crash has all leaves before it. After an error the restore may be aborted, or closed and resumed.
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
		s.failure.fail(err) // meta may have got to the disk, or may yet
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

// forgetRestore removes the folder of a restore beside a state that is durable. If it cannot, the next Open will.
func (s *State) forgetRestore() {
	s.gate.keep.Store(false)
	s.interrupted.Store(false)
	if err := s.discardRestore(); err != nil {
		s.log.Error("cannot remove the files of a restore", "folder", s.inZone(restoreName), "err", err)
	}
}

// Abort empties the zone again. After Commit or Close, or when another restore has begun, it does nothing.
func (r *Restore) Abort() error {
	r.s.mu.Lock()
	current := r.s.mu.restore == r
	r.s.mu.Unlock()
	if !current {
		return nil
	}
	return r.s.restart(nil, nil)
}

// Close interrupts the restore: the zone is empty, and ResumeRestore goes on with what was added. After Commit or Abort it does
// nothing.
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
