package storage

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

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
//	Add(run) ──► records at the end of a file ──► a line in the journal        a kill leaves what is there
//	   …              └── 16 MiB ──► syncers, behind
//	Commit: the rest synced ──► COMPLETE: this is the state ──► tables are made of it, behind (settle.go)
//
// Whoever resumes a restore verifies what it reads back: only the caller knows what it should be.
// So does the caller know which runs it adds; the restore only refuses to add one twice.
type Restore struct {
	s      *Zone
	syncer *syncer

	// life is held for reading while the restore is used, and for writing to change what can be
	// done with it. See "Lock order" in doc.go.
	life struct {
		sync.RWMutex
		over     bool
		readable *runSet // what can be read; no run can be added or removed. nil: they can
	}
	// journal is held while a run is written, and while a line is written and takes effect on
	// mu.runs, so that the files and the runs agree.
	journal struct {
		sync.Mutex
		file   vfs.File // nil: the end of the file is not known
		runs   *runFile // that runs are appended to; nil: none yet, or the next one
		newest uint64   // number of the file of runs that was made last
	}
	label sync.Mutex // guards the file of the label, while it is replaced
	mu    struct {
		sync.Mutex
		runs map[RunID]run  // changed with journal held, too
		used map[uint64]int // by number of a file: runs that lie in it
		// files from before an interruption, not synced since
		closed  map[uint64]struct{}
		failure error // runs that were added are lost
	}
}

func (s *Zone) newRestore() *Restore {
	r := &Restore{s: s}
	r.mu.runs, r.mu.used, r.mu.closed = map[RunID]run{}, map[uint64]int{}, map[uint64]struct{}{}
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
	for _, run := range runs {
		if run.bytes > 0 {
			r.mu.used[run.file]++
			r.mu.closed[run.file] = struct{}{}
			r.journal.newest = max(r.journal.newest, run.file)
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
		r.completeLast()
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
	if err == nil && r.life.readable != nil {
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

// Add writes one run of leaves: records as package record writes them, in ascending order of their
// keys, with no key of another run in between. height is that of the first leaf, whatever its
// record says, which is never read. Add may be called concurrently, once per id, and waits while
// the backlog of syncs is at its limit. Once it has returned, the run survives a kill; it survives
// a loss of power once Commit has returned. Of the records only the first is looked at before the
// state is settled, and the caller gets them as it gave them. Errors: ErrRunExists if there is a
// run of that id, and those of the disk, after which the restore can continue if the disk can.
func (r *Restore) Add(id RunID, height uint8, records []byte) error {
	if len(id) > MaxRunID {
		return fmt.Errorf("state folder %s: restore: run id of %d bytes, want at most %d", r.s.dir, len(id), MaxRunID)
	}
	if height > maxHeight {
		return fmt.Errorf("state folder %s: restore: run %x: height %d", r.s.dir, string(id), height)
	}
	var first []byte
	if len(records) > 0 {
		leaf, _, err := record.Decode(records)
		if err != nil {
			return fmt.Errorf("state folder %s: restore: run %x: %w", r.s.dir, string(id), err)
		}
		first = bytes.Clone(leaf.Key)
	}
	if err := r.enterToChange(); err != nil {
		return err
	}
	defer r.leave()
	full, err := r.add(id, height, first, records)
	r.complete(full)
	return err
}

// add returns a file that is not continued, if there is one.
func (r *Restore) add(id RunID, height uint8, first, records []byte) (full *runFile, err error) {
	r.journal.Lock()
	defer r.journal.Unlock()
	if err := r.free(id); err != nil {
		return nil, err
	}
	added, full, err := r.append(records)
	if err == nil {
		added.height, added.first = height, first
		err = r.writeLine(appendAdded(nil, id, added))
	}
	if err != nil {
		return full, r.s.folder.Err("restore", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.runs[id] = added
	if added.bytes > 0 {
		r.mu.used[added.file]++
	}
	return full, nil
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

// writeLine writes a line to the journal. The caller holds r.journal.
func (r *Restore) writeLine(line []byte) error {
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
	return nil
}

// renewJournal replaces the journal by one with the runs that are there. The caller holds
// r.journal.
func (r *Restore) renewJournal() error {
	journal := []byte{journalVersion}
	r.mu.Lock()
	for id, run := range r.mu.runs {
		journal = appendAdded(journal, id, run)
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

// Remove removes a run: ErrNoRun if there is none of that id. Its space is free once no other run
// lies in the same file.
func (r *Restore) Remove(id RunID) error {
	if err := r.enterToChange(); err != nil {
		return err
	}
	defer r.leave()
	return r.s.folder.Err("restore", r.drop(id))
}

func (r *Restore) drop(id RunID) error {
	dropped, err := r.forget(id)
	if err == nil && dropped.bytes > 0 {
		r.removeUnused(dropped.file)
	}
	return err
}

// forget takes a run out of the journal.
func (r *Restore) forget(id RunID) (run, error) {
	r.journal.Lock()
	defer r.journal.Unlock()
	r.mu.Lock()
	dropped, there := r.mu.runs[id]
	r.mu.Unlock()
	if !there {
		return run{}, r.noRunErr(id)
	}
	if err := r.writeLine(appendRemoved(nil, id)); err != nil {
		return run{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.mu.runs, id)
	if dropped.bytes > 0 {
		r.mu.used[dropped.file]--
	}
	return dropped, nil
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

// forgetRestore removes the folder of a restore beside a state that is durable. If it cannot, the
// next Open will.
func (s *Zone) forgetRestore() {
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
	s.generations.dropAll()
	s.interrupted.Store(true)
	s.mu.Lock()
	s.mu.emptying = false
	s.mu.Unlock()
}
