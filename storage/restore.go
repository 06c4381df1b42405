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
	"github.com/starling-kv/starling/internal/durable/onvfs"
)

var (
	// ErrNoRun: the restore has no run with that id.
	ErrNoRun = errors.New("no such run")
	// ErrRunExists: the restore already has a run with that id. Each run is added once.
	ErrRunExists = errors.New("the run exists already")
	// ErrNoRestore: there is no interrupted restore.
	ErrNoRestore = errors.New("there is no interrupted restore")
)

// Restore writes a new state run by run. Until Commit returns, readers find the zone empty, also
// after a crash. An interrupted restore can be resumed with the runs that it has.
//
//	Add(run) ──► records appended to a file ──► a line in the journal        a kill leaves what was written
//	  …              └── 16 MiB ──► syncers, in the background
//	Commit: the rest synced ──► COMPLETE: this is the state ──► tables are made of it in the background (settle.go)
//
// Only the caller knows what the runs should contain, so it must verify the runs that it reads back
// after ResumeRestore. The restore only refuses to add a run twice.
type Restore struct {
	s      *Zone
	syncer *syncer

	// life is held for reading while the restore is used, and for writing to end it or to make it
	// readable. See "Lock order" in doc.go.
	life struct {
		sync.RWMutex
		over     bool
		readable *runSet // state that can be read; its runs cannot change. nil: not readable yet
	}
	// journal is held while a run is written, and while a line is written and applied to mu.runs,
	// so that files and runs agree.
	journal struct {
		sync.Mutex
		file   vfs.File // nil: the next line needs a new journal
		runs   *runFile // file for the next run; nil: a new file is created
		newest uint64   // number of the newest runs file
	}
	label sync.Mutex // guards the label file while it is replaced
	mu    struct {
		sync.Mutex
		runs map[RunID]run  // changed only with journal held, too
		used map[uint64]int // number of runs by file number
		// files from before an interruption, which may not be synced
		closed  map[uint64]struct{}
		failure error // runs were lost
	}
}

func (s *Zone) newRestore() *Restore {
	r := &Restore{s: s}
	r.mu.runs, r.mu.used, r.mu.closed = map[RunID]run{}, map[uint64]int{}, map[uint64]struct{}{}
	return r
}

// BeginRestore empties the zone durably and begins a restore. label is a description of the state,
// of at most MaxLabel bytes. Any other restore is discarded, waiting blocks are dropped and pins
// are removed.
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

// Interrupted returns the label of the restore that a crash or Close interrupted; false if there is
// none.
func (s *Zone) Interrupted() (label []byte, ok bool) {
	if !s.interrupted.Load() || !s.users.enter() {
		return nil, false
	}
	defer s.users.leave()
	label, err := s.readLabel()
	return label, err == nil
}

// ResumeRestore resumes the interrupted restore. It fails with ErrNoRestore if there is none.
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

// resumes makes r the current restore, if there is one to resume.
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

// start writes a new journal with the existing runs.
func (r *Restore) start() error {
	r.journal.Lock()
	defer r.journal.Unlock()
	if err := r.renewJournal(); err != nil {
		return err
	}
	r.syncer = newSyncer()
	return nil
}

// end waits for calls under way and ends the restore. Its runs stay on disk.
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
		_ = r.journal.file.Close() // the journal is obsolete, or is verified when it is read
		r.journal.file = nil
	}
}

func (r *Restore) overErr() error {
	return fmt.Errorf("state folder %s: this restore is over: %w", r.s.dir, ErrClosed)
}

func (r *Restore) noRunErr(id RunID) error {
	return fmt.Errorf("state folder %s: restore: run %x: %w", r.s.dir, string(id), ErrNoRun)
}

// enter prevents the restore from ending. The caller must call leave.
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

// enterToChange is enter for calls that change the runs.
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

// Runs returns the runs in ascending order. Their contents are not verified.
func (r *Restore) Runs() []RunID {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.mu.runs))
}

// Add writes a run of leaves: records as written by package record, in ascending key order, with no
// key of another run in between. height is the height of the first leaf; the height in its record
// is ignored. Add may be called concurrently, once per id. It waits while the backlog of syncs is
// at its limit. After it returns, the run survives a crash of the process; after Commit, a power
// loss. Only the first record is parsed until the state is settled. Errors: ErrRunExists, and disk
// errors, after which the restore can continue if the disk recovers.
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

// add adds a run. It also returns the runs file if that is full.
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

// free returns an error if a run with that id cannot be added.
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

// writeLine appends a line to the journal. The caller holds r.journal.
func (r *Restore) writeLine(line []byte) error {
	if r.journal.file == nil {
		if err := r.renewJournal(); err != nil {
			return err
		}
	}
	if _, err := r.journal.file.Write(line); err != nil {
		_ = r.journal.file.Close() // it may end with an incomplete line
		r.journal.file = nil
		return err
	}
	return nil
}

// renewJournal replaces the journal by one that lists the existing runs. The caller holds
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
		err = onvfs.Rename(fs, path+newSuffix, path)
	}
	if err != nil {
		return errors.Join(err, file.Close())
	}
	r.journal.file = file
	return nil
}

// Remove removes a run. It fails with ErrNoRun if there is none with that id. Its space is freed
// when no other run is in the same file.
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

// forget removes a run from the journal.
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

// SetLabel replaces the label durably and atomically.
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

// forgetRestore removes the folder of a restore after another state became durable. If that fails,
// the next Open tries again.
func (s *Zone) forgetRestore() {
	s.interrupted.Store(false)
	if err := s.discardRestore(); err != nil {
		s.log.Error("cannot remove the files of a restore", "folder", s.inZone(restoreName), "err", err)
	}
}

// Abort empties the zone again. It has no effect after Commit or Close, or if another restore
// began.
func (r *Restore) Abort() error {
	r.s.mu.Lock()
	current := r.s.mu.restore == r
	r.s.mu.Unlock()
	if !current {
		return nil
	}
	return r.s.restart(nil, nil)
}

// Close interrupts the restore. The zone stays empty, and ResumeRestore continues with the added
// runs. It has no effect after Commit or Abort.
func (r *Restore) Close() {
	s := r.s
	if !s.users.enter() {
		return // closing the zone has ended the restore
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
