package storage

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"

	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/internal/wake"
	"github.com/starling-kv/starling/storage/internal/engine"
)

// ErrRestoring: a restore is under way, so there is no state to write to.
var ErrRestoring = errors.New("a restore is under way")

// Kinds of records: the first byte of their keys.
const (
	kindLeaf     = 'k'
	kindPageList = 'l'
	kindMeta     = 'm'
	kindEnd      = kindMeta + 1
)

var wholeZone = pebble.KeyRange{Start: []byte{kindLeaf}, End: []byte{kindEnd}}

// Block is the set of changes of a block. Deletes are applied before Puts, and Puts before heights.
// The Height of a put leaf is ignored, and its Value must not be empty. The slices must not be
// changed until Owner.Done.
type Block struct {
	Meta    Meta
	Puts    []record.Leaf
	Deletes [][]byte // remove the leaf and its height
	Pin     bool     // keep the state after this block in a pin
	// NewPageList: the records of the page list that Owner.Take passes are a whole page list, which
	// replaces the older one. Otherwise each replaces the record with its key.
	NewPageList bool
	Owner       Owner // nil: no height and no page changed
}

// Owner is the callback interface of the component that made a block.
//
//	Write ──► Take ──► flush ──► PinData, if Block.Pin ──► Done(true)
//	   │        └── dropped: the zone was emptied, closed or has failed ──► Done(false)
//	   └── error: no method is called
//
// Each method is called at most once, in this order; Done is always called after a successful
// Write. The methods are called by a goroutine of the zone; Done may also be called by Reset or
// BeginRestore. No method may call Write, Flush, Reset, BeginRestore or Close.
type Owner interface {
	// Take calls height for each leaf whose inner node has another height after the block, or none
	// (0); the leaf must exist after the block. It calls page for each new record of the page list
	// (Zone.PageList), with an empty record for one that is removed. Take is called soon after
	// Write, even if the flush comes much later, so that the owner can free the data needed for it.
	// Both functions copy their arguments.
	Take(height func(key []byte, height uint8), page func(key, record []byte))
	// PinData returns the opaque description of the pin. The flusher calls it.
	PinData() []byte
	// Done reports that the block is durable, or never will be. The owner can then free all its
	// data.
	Done(durable bool)
}

// Zone is the state zone: a database with one version of the state. All methods may be called
// concurrently. Readers see the durable state.
type Zone struct {
	dir    string
	opts   Options
	folder engine.Folder
	log    Logger
	cache  *pebble.Cache
	db     *pebble.DB

	failure     failure
	interrupted atomic.Bool // there is a restore to resume
	guard       *guard
	users       users
	generations generations
	readUpTo    atomic.Int64 // see ReadUpTo
	pins        pins

	wake        chan struct{} // signals the flusher that work is due, or will be
	compacted   chan struct{} // signals the flusher that a compaction has ended
	flusherDone chan struct{}
	takers      sync.WaitGroup // goroutines of take; none is added after Close

	// admin serializes replacements of the whole state: emptying the zone, and beginning, resuming,
	// committing or closing a restore. See "Lock order" in doc.go for all locks.
	admin sync.Mutex

	// mu is never held during I/O. safe.Height <= last, because heights only increase. Blocks are
	// written only while there is no restore and the zone is not being emptied.
	mu struct {
		sync.Mutex
		safe     *Meta    // the durable state; nil: none
		restore  *Restore // the current one; nil: none
		emptying bool     // the holder of admin is emptying the zone
		// unsettled is a restored state that is not in the database yet. It is the durable state,
		// and no block is flushed before it is settled. nil: there is none.
		unsettled *unsettled
		pressed   bool // a caller waits for settling; false if unsettled is nil
		closed    bool

		waiting      []*waiting // blocks not taken by a flush yet, in ascending order
		waitingBytes int64      // total size of waiting, see bytesOf
		busy         bool       // the flusher flushes, settles, or reports the result

		// Blocks taken by the flusher that are not durable yet.
		flushing      int
		flushingBytes int64
		flushingFrom  int64     // height of the first one
		flushingSince time.Time // time of Write of the first one

		// Result of the last Trim. Pins up to trimmedTo that are not in pinned are removed after
		// the next flush.
		pinned    []int64
		trimmed   bool // the removal is due
		trimmedTo int64
		oldest    int64 // height of the oldest version in use; 0: not known

		last   int64         // height of the last block written
		wanted int64         // a flush is due up to this height
		moved  chan struct{} // closed and replaced when the lag changes

		// Counters for Metrics.
		waited, flushTime time.Duration
		flushes           int64
		flushedBytes      uint64
	}
}

// Open opens the state zone in dir, which it creates if necessary. It removes the unusable parts of
// an interrupted restore, and pins that are incomplete or above the zone's height.
func Open(dir string, opts Options) (*Zone, error) {
	s, err := open(dir, opts)
	if err != nil {
		return nil, err
	}
	if !opts.ReadOnly {
		go s.flusher()
	}
	return s, nil
}

// open does everything except starting the flusher.
func open(dir string, opts Options) (*Zone, error) {
	opts = opts.withDefaults(dir)
	s := &Zone{
		dir: dir, opts: opts, log: opts.Logger,
		cache: pebble.NewCache(opts.databaseCache()),
		wake:  make(chan struct{}, 1), compacted: make(chan struct{}, 1), flusherDone: make(chan struct{}),
	}
	if opts.ReadOnly {
		close(s.flusherDone)
	}
	s.readUpTo.Store(math.MaxInt64)
	s.mu.moved, s.failure.done = make(chan struct{}), make(chan struct{})
	s.guard = &guard{FS: opts.FS, failure: &s.failure, closing: make(chan struct{})}
	s.folder = stateFolder(dir, opts)
	s.folder.FS, s.folder.Background = s.guard, s.background
	fatal := s.folder.Fatal
	if opts.Fatal != nil {
		fatal = opts.Fatal
	}
	s.folder.Fatal = func(err error) {
		s.failure.dead.Store(true)
		fatal(err)
	}
	db, err := s.folder.Open(s.pebbleOptions())
	if err != nil {
		s.cache.Unref()
		return nil, err
	}
	s.db = db
	if err := s.load(); err != nil {
		s.generations.dropAll()
		return nil, errors.Join(err, s.closeDB())
	}
	return s, nil
}

// stateFolder returns the folder of a zone, as used in messages.
func stateFolder(dir string, opts Options) engine.Folder {
	return engine.Folder{
		Zone: "state", Dir: dir, WayOut: opts.Remedy, FS: opts.FS, Logger: opts.Logger,
	}.WithDefaults()
}

func (s *Zone) pebbleOptions() *pebble.Options {
	o := &pebble.Options{
		Cache: s.cache, ReadOnly: s.opts.ReadOnly, DisableWAL: true, MemTableSize: s.opts.MemTableBytes, Merger: leafMerger,
		// Pebble compacts L0 once twice its sublevels reach the threshold (compaction_picker.go,
		// calculateL0FillFactor).
		L0CompactionThreshold: 2 * s.opts.CompactAfter,
		// The flusher itself waits for flushes and compactions, see maxL0. Inside Pebble it would
		// wait forever after a failure.
		L0StopWritesThreshold: 1 << 20, MemTableStopWritesThreshold: 1 << 20,
		LBaseMaxBytes:              engine.BaseLevelBytes(min(s.opts.MemTableBytes, uint64(s.opts.FlushBytes))),
		CompactionConcurrencyRange: func() (int, int) { return 1, max(1, min(4, runtime.GOMAXPROCS(0)/2)) },
		EventListener: &pebble.EventListener{CompactionEnd: func(pebble.CompactionInfo) {
			wake.Up(s.compacted)
		}},
	}
	// With filters, a lookup by key (Kept.Get) reads one table instead of one in each level. The
	// last level needs none: it has about nine tenths of all keys and is searched last, mostly for
	// existing keys.
	for i := range len(o.Levels) - 1 {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(filterBits)
	}
	o.Levels[len(o.Levels)-1].FilterPolicy = pebble.NoFilterPolicy
	// Small enough that a scan can be split into parts.
	for i := range o.TargetFileSizes {
		o.TargetFileSizes[i] = min(int64(2<<20)<<i, tableBytes)
	}
	return o
}

// filterBits is the size of a filter in bits per key. The false positive rate is 1 %.
const filterBits = 10

func (s *Zone) closeDB() error {
	defer s.cache.Unref()
	return s.folder.Err("close", s.db.Close())
}

// load reads meta and wipes data without meta. The folder of a restore is kept unless there is a
// state.
func (s *Zone) load() error {
	meta, ok, err := readMeta(s.db)
	var newer newerMeta
	switch {
	case errors.As(err, &newer):
		return s.folder.Newer("layout", uint64(newer), FormatVersion)
	case err != nil && (pebble.IsCorruptionError(err) || errors.Is(err, errMetaForm)):
		return s.folder.Corrupt(err)
	case err != nil:
		return s.folder.Err("read meta", err)
	}
	if !s.opts.ReadOnly {
		if err := s.opts.FS.RemoveAll(s.ingestDir()); err != nil {
			return s.folder.Err("open", err)
		}
		if !ok {
			if err := s.wipeOrphans(); err != nil {
				return err
			}
		}
	}
	u, err := s.loadRestore(ok)
	switch {
	case err != nil:
		return s.folder.Err("open", err)
	case ok:
		s.setSafe(meta)
		s.generations.replace(newGeneration(meta.Height, s.db.NewSnapshot()))
	case u != nil:
		s.setSafe(u.meta)
		s.mu.unsettled = u
		s.generations.replace(newUnsettledGeneration(u.meta.Height, u.set))
	}
	if err := s.loadPins(); err != nil {
		return err
	}
	s.measurePins()
	return nil
}

// readMeta returns the meta record; false if there is none.
func readMeta(r pebble.Reader) (Meta, bool, error) {
	value, closer, err := r.Get([]byte{kindMeta})
	if errors.Is(err, pebble.ErrNotFound) {
		return Meta{}, false, nil
	}
	if err != nil {
		return Meta{}, false, err
	}
	defer closer.Close()
	m, err := decodeMeta(value)
	if err != nil {
		return Meta{}, false, fmt.Errorf("meta: %w", err)
	}
	return m, true, nil
}

func (s *Zone) wipeOrphans() error {
	it, err := s.db.NewIter(nil)
	if err != nil {
		return s.folder.Err("open", err)
	}
	orphans := it.First()
	if err := errors.Join(it.Error(), it.Close()); err != nil {
		return s.folder.Err("open", err)
	}
	if !orphans {
		return nil
	}
	return s.wipe() // of a restore that was not committed
}

// wipe removes all records durably: the tables are removed from the list of files without being
// read.
func (s *Zone) wipe() error {
	return s.folder.Err("empty", s.db.Excise(context.Background(), wholeZone))
}

// setSafe sets the durable state. The caller holds s.mu.
func (s *Zone) setSafe(m Meta) {
	m = m.clone()
	s.mu.safe, s.mu.last = &m, max(s.mu.last, m.Height)
}

// Meta describes the durable state; false if there is none or a restore is under way.
func (s *Zone) Meta() (Meta, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.safe == nil {
		return Meta{}, false
	}
	return s.mu.safe.clone(), true
}

// Safe returns the durable height, 0 if there is none.
func (s *Zone) Safe() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.safe == nil {
		return 0
	}
	return s.mu.safe.Height
}

func (s *Zone) closedErr(doing string) error {
	return fmt.Errorf("state folder %s: %s: %w", s.dir, doing, ErrClosed)
}

// Reset empties the zone durably. Restores are discarded, waiting blocks dropped and pins removed.
func (s *Zone) Reset() error { return s.restart(nil, nil) }

// restart empties the zone. If r is not nil, it becomes the current restore.
func (s *Zone) restart(r *Restore, label []byte) error {
	if s.opts.ReadOnly {
		return fmt.Errorf("state folder %s: reset: open for reading only", s.dir)
	}
	if !s.users.enter() {
		return s.closedErr("reset")
	}
	defer s.users.leave()
	s.admin.Lock()
	defer s.admin.Unlock()
	if err := s.failure.get(); err != nil {
		return err
	}
	s.mu.Lock()
	old := s.mu.restore
	s.mu.restore, s.mu.emptying = nil, true
	if u := s.mu.unsettled; u != nil {
		u.giveUp()
		s.settled(u)
	}
	left := s.dropWaiting()
	for s.mu.busy {
		moved := s.mu.moved
		s.mu.Unlock()
		<-moved // the flusher returns, unless Pebble ends the process
		s.mu.Lock()
	}
	s.mu.safe = nil
	s.mu.Unlock()
	for _, w := range left {
		w.done(false)
	}
	if old != nil {
		old.end()
	}
	s.generations.dropAll()
	err := s.folder.Err("empty", errors.Join(s.discardRestore(), s.opts.FS.RemoveAll(s.ingestDir())))
	if err == nil {
		s.interrupted.Store(false)
		err = s.wipe()
	}
	if err == nil {
		err = s.folder.Err("empty", s.removePins(func(int64) bool { return true }))
	}
	if err != nil {
		s.failure.fail(err)
	} else if r != nil {
		if err = s.makeRestore(label); err == nil {
			err = r.start()
		}
		if err != nil {
			err = s.folder.Err("restore", errors.Join(err, s.discardRestore()))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.emptying = false
	s.mu.last, s.mu.wanted = 0, 0
	if err == nil {
		s.mu.restore = r
	}
	return err
}

// Close makes waiting blocks durable and releases the folder. If the zone has failed, or a restored
// state is not settled yet (see Settle), waiting blocks are dropped: the zone stays at its durable
// height, and the next Open settles. Close waits for scans and other reads. A restore under way can
// be resumed after the next Open. Open pins stay open.
func (s *Zone) Close() error {
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		return nil
	}
	s.mu.closed = true
	if u := s.mu.unsettled; u != nil {
		u.giveUp()
	}
	s.moved()
	s.mu.Unlock()
	s.wakeFlusher()
	select {
	case <-s.flusherDone:
	case <-s.failure.done:
	}
	if s.failure.dead.Load() {
		return nil // Pebble may hold its locks forever; the process is about to exit
	}
	close(s.guard.closing)
	<-s.flusherDone
	s.takers.Wait()
	failed := s.failure.get() // already reported
	s.users.close()
	s.mu.Lock()
	restore := s.mu.restore
	s.mu.restore = nil
	s.mu.Unlock()
	if restore != nil {
		restore.end()
	}
	s.generations.takeBackAll()
	s.generations.dropAll()
	if err := s.closeDB(); err != nil && failed == nil {
		return err
	}
	return nil
}
