package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"

	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/storage/internal/engine"
)

// ErrRestoring: a restore is under way, so there is no state to write to.
var ErrRestoring = errors.New("a restore is under way")

// The kinds of records, by the first byte of their keys.
const (
	kindLeaf = 'k'
	kindMeta = 'm'
	kindEnd  = kindMeta + 1
)

var wholeZone = pebble.KeyRange{Start: []byte{kindLeaf}, End: []byte{kindEnd}}

// Block is what one block changes. Deletes come before Puts, Puts before Heights; the Height of a
// put leaf is not looked at, and its Value is not empty. The zone keeps the slices until Done;
// nobody may change them meanwhile.
type Block struct {
	Meta    Meta
	Puts    []record.Leaf
	Deletes [][]byte // remove the leaf and its height
	// Heights yields keys of leaves, which are there after the block, with the new height of the
	// inner node that bears the key; 0: none does any more; nil: no height changed. It is called
	// once at most, by a goroutine of the zone soon after Write, however long the flush takes to
	// come. The zone copies the keys.
	Heights iter.Seq2[[]byte, uint8]
	// Taken is called once, unless Write returned an error: Heights will not be used any more.
	// That is soon after Write, as soon as Heights has ended. If the block is dropped, since the
	// zone was emptied or has failed, it may be called without Heights having been. In every case
	// it returns before Done is called. The caller is a goroutine of the zone, or Reset or
	// BeginRestore. It must not call the zone.
	Taken func()
	// PinData, if not nil, keeps the state after this block on disk, with the opaque description
	// that it returns. It is called once at most, by the flusher.
	PinData func() []byte
	// Done is called once by a goroutine of the zone, unless Write returned an error: the block is
	// durable, or never will be since the zone failed or was emptied. It must not call Flush, Reset
	// or Close.
	Done func()
}

// Zone is the state zone: a database that holds one version of the state. All methods may be called
// concurrently. Whoever reads sees the durable state.
type Zone struct {
	dir    string
	opts   Options
	folder engine.Folder
	log    Logger
	cache  *pebble.Cache
	db     *pebble.DB
	layout byte // FormatVersion, or an older one if it is open for reading only
	// writerOptions are for tables of the last level.
	writerOptions sstable.WriterOptions

	failure     failure
	interrupted atomic.Bool // there is a restore that can be resumed
	guard       *guard
	users       users
	generations generations
	pins        pins

	wake        chan struct{} // to the flusher: something is due, or will be
	compacted   chan struct{} // to the flusher: a compaction ended
	flusherDone chan struct{}
	takers      sync.WaitGroup // of takeHeights; added to while the zone is not closed

	// admin serializes what replaces the state as a whole: emptying the zone, and beginning,
	// resuming, committing or closing a restore. See "Lock order" in doc.go for all locks.
	admin sync.Mutex

	// mu is never held during I/O. safe.Height <= last: heights only rise.
	// Blocks are written only while there is neither a restore nor an emptying.
	mu struct {
		sync.Mutex
		safe     *Meta    // the durable state; nil: none
		restore  *Restore // the one under way; nil: none
		emptying bool     // by the holder of admin
		// unsettled is the state of a restore that is not in the database yet: it is the safe one
		// then. nil: there is none. No block is flushed before it is settled.
		unsettled *unsettled
		pressed   bool // somebody waits for that; false if there is none
		closed    bool

		waiting      []*waiting // blocks that no flush has taken, ascending
		waitingBytes int64      // of them, see bytesOf
		busy         bool       // the flusher is in a flush, or settles, or is reporting the end

		// The blocks that the flusher has taken and that are not durable.
		flushing      int
		flushingBytes int64
		flushingFrom  int64     // height of the first
		flushingSince time.Time // when the first was handed over

		// The last Trim. What it did not name, up to trimmedTo, is removed after the next flush.
		pinned    []int64
		trimmed   bool // that is still to be done
		trimmedTo int64

		last   int64         // height of the last block that was written
		wanted int64         // a flush is due up to this height
		moved  chan struct{} // closed, and replaced, when the lag changes

		// What Metrics reports.
		waited, flushTime time.Duration
		flushes           int64
		flushedBytes      uint64
	}
}

// Open opens the state zone in dir, which it creates if need be, and converts if an older version
// wrote it. Of a restore that was interrupted,
// what is of no use is removed, and so are pins that are not whole or of a height that the zone
// does not reach.
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

// open does all but start the flusher.
func open(dir string, opts Options) (*Zone, error) {
	opts = opts.withDefaults(dir)
	layout, err := convertOld(dir, opts)
	if err != nil {
		return nil, err
	}
	return openLayout(dir, opts, layout)
}

// stateFolder is the folder of a zone as its messages name it.
func stateFolder(dir string, opts Options) engine.Folder {
	wayOut := "remove it with `starlingd unsafe-reset-all` and join again by state sync"
	if opts.FS.PathBase(dir) == convertMade {
		wayOut = "remove that folder, which is a copy of what lies beside it, and start again"
	}
	return engine.Folder{
		Zone: "state", Dir: dir, WayOut: wayOut,
		FS: opts.FS, Logger: opts.Logger,
	}.WithDefaults()
}

// openLayout opens a zone of that layout; opts have their defaults.
func openLayout(dir string, opts Options, layout byte) (*Zone, error) {
	s := &Zone{
		dir: dir, opts: opts, layout: layout, log: opts.Logger, cache: pebble.NewCache(opts.CacheBytes),
		wake: make(chan struct{}, 1), compacted: make(chan struct{}, 1), flusherDone: make(chan struct{}),
	}
	if opts.ReadOnly {
		close(s.flusherDone)
	}
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
	o := s.pebbleOptions()
	o.EnsureDefaults()
	s.writerOptions = o.MakeWriterOptions(len(o.Levels)-1, db.TableFormat())
	if err := s.load(); err != nil {
		s.generations.dropAll()
		return nil, errors.Join(err, s.closeDB())
	}
	return s, nil
}

func (s *Zone) pebbleOptions() *pebble.Options {
	o := &pebble.Options{
		Cache: s.cache, ReadOnly: s.opts.ReadOnly, DisableWAL: true, MemTableSize: s.opts.MemTableBytes,
		// The flusher itself waits for flushes and compactions, see maxL0: in Pebble it would wait
		// for ever after a failure.
		L0StopWritesThreshold: 1 << 20, MemTableStopWritesThreshold: 1 << 20,
		LBaseMaxBytes:              engine.BaseLevelBytes(min(s.opts.MemTableBytes, uint64(s.opts.FlushBytes))),
		CompactionConcurrencyRange: func() (int, int) { return 1, max(1, min(4, runtime.GOMAXPROCS(0)/2)) },
		EventListener: &pebble.EventListener{CompactionEnd: func(pebble.CompactionInfo) {
			select {
			case s.compacted <- struct{}{}:
			default:
			}
		}},
	}
	if s.layout != layout1 {
		o.Merger = leafMerger
	}
	// Filters, so that a lookup by key (Kept.Get) reads one table and not one of each level. The
	// last level has nine tenths of all keys and is asked last, for what is mostly there.
	for i := range len(o.Levels) - 1 {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(filterBits)
	}
	o.Levels[len(o.Levels)-1].FilterPolicy = pebble.NoFilterPolicy
	// Tables no larger than this, so that a scan can be cut into parts.
	for i := range o.TargetFileSizes {
		o.TargetFileSizes[i] = min(int64(2<<20)<<i, tableBytes)
	}
	return o
}

// filterBits is the length of a filter for each of its keys: one lookup in a hundred is misled.
const filterBits = 10

// tableBytes is about how large tables become.
const tableBytes = 16 << 20

func (s *Zone) closeDB() error {
	defer s.cache.Unref()
	return s.folder.Err("close", s.db.Close())
}

// load reads meta, and wipes data that has none. A restore's folder stays, unless there is a state.
func (s *Zone) load() error {
	meta, ok, err := readMeta(s.db, s.layout)
	var newer newerMeta
	switch {
	case errors.As(err, &newer):
		return s.folder.Newer("layout", uint64(newer), FormatVersion)
	case err != nil && s.layout == layout1 && strings.Contains(err.Error(), "unknown merger "+mergerName):
		return fmt.Errorf("state folder %s: an older starlingd was started on it: remove its files named OPTIONS-…, in which there are no data, and start again: %w", s.dir, err)
	case err != nil && (pebble.IsCorruptionError(err) || errors.Is(err, errMetaForm)):
		return s.folder.Corrupt(err)
	case err != nil:
		return s.folder.Err("read meta", err)
	}
	if !s.opts.ReadOnly {
		// A conversion beside a state of this layout is of one that was removed since.
		if err := errors.Join(s.opts.FS.RemoveAll(s.ingestDir()), s.opts.FS.RemoveAll(s.inZone(convertMade))); err != nil {
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
		s.generations.replace(newGeneration(meta.Height, s.db.NewSnapshot(), s.layout))
	case u != nil:
		s.setSafe(u.meta)
		s.mu.unsettled = u
		s.generations.replace(newUnsettledGeneration(u.meta.Height, u.set))
	}
	return s.loadPins()
}

// readMeta returns false if there is none.
func readMeta(r pebble.Reader, layout byte) (Meta, bool, error) {
	value, closer, err := r.Get([]byte{kindMeta})
	if errors.Is(err, pebble.ErrNotFound) {
		return Meta{}, false, nil
	}
	if err != nil {
		return Meta{}, false, err
	}
	defer closer.Close()
	m, err := decodeMeta(value, layout)
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

// wipe removes every record, durably: the tables leave the list of files, none is read.
func (s *Zone) wipe() error {
	return s.folder.Err("empty", s.db.Excise(context.Background(), wholeZone))
}

// setSafe says which state is durable. The caller holds s.mu.
func (s *Zone) setSafe(m Meta) {
	m.AppHash = bytes.Clone(m.AppHash)
	s.mu.safe, s.mu.last = &m, max(s.mu.last, m.Height)
}

// Meta says which state is durable; false if there is none or a restore is under way.
func (s *Zone) Meta() (Meta, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.safe == nil {
		return Meta{}, false
	}
	m := *s.mu.safe
	m.AppHash = bytes.Clone(m.AppHash)
	return m, true
}

// Safe is the height of the durable state, 0 if there is none.
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

// Reset empties the zone, durably, and drops a restore that is under way, or interrupted. Blocks
// that wait are dropped, pins removed.
func (s *Zone) Reset() error { return s.restart(nil, nil) }

// restart empties the zone and makes r, if not nil, the restore that is under way.
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
		<-moved // the flusher comes back in every case but one, in which Pebble ends the process
		s.mu.Lock()
	}
	s.mu.safe = nil
	s.mu.Unlock()
	for _, w := range left {
		w.done()
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

// Close makes durable what waits, and releases the folder. If the zone has failed, or a restored
// state is not settled yet (see Settle), what waits is dropped: the zone stays at its safe height,
// and the next Open settles. Close waits for scans and the like to end; a restore that is under way
// can be resumed once the zone is open again. Pins that are open stay so.
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
		return nil // Pebble may hold its locks for ever; the process is about to end
	}
	close(s.guard.closing)
	<-s.flusherDone
	s.takers.Wait()
	failed := s.failure.get() // and told
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
