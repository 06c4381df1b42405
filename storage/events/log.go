package events

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/starling-kv/starling/event"
	"github.com/starling-kv/starling/storage/internal/engine"
)

// FormatVersion is the latest layout of the data that this package writes. What is of another
// layout, or damaged, is begun anew: see anew.go.
const FormatVersion = 1

// Defaults of Options.
const (
	DefaultKeepBlocks = 100_000
	DefaultKeepBytes  = 1 << 30
	DefaultMaxWaiting = 10_000
)

const (
	// maxBacklog is how many bytes of events may wait for the disk: beyond that, Commit waits.
	maxBacklog = 64 << 20
	// Blocks stay in memory, once they are on disk, while they are among the last tailBlocks and
	// take no more than tailBytes.
	tailBlocks, tailBytes = 1000, 16 << 20
	// batchBytes is the size at which the writer hands what it has to the database.
	batchBytes = 4 << 20
	// maxDiskReads is how many answers are read from disk at a time.
	maxDiskReads = 4
)

var (
	// ErrBusy: as many requests wait as Options.MaxWaiting allows.
	ErrBusy = event.ErrBusy
	// ErrClosed: the log is closed.
	ErrClosed = engine.ErrClosed
)

// Logger takes what the log and the database under it have to say. It is called concurrently.
type Logger = engine.Logger

// Options of a Log; the zero value is usable.
type Options struct {
	FS     vfs.FS // default: the operating system's
	Logger Logger // default: silent
	// Fatal is called, after the error was logged, when the database cannot continue. It must not
	// return. Default: end the process with exit status 1.
	Fatal func(error)
	// Failed is called once, by a goroutine of the log, when events could not be written. Every
	// later Commit and Sync returns that error. Default: nothing is called.
	Failed func(error)
	// The events of the last KeepBlocks blocks are kept, as far as they take no more than about
	// KeepBytes. Default: DefaultKeepBlocks, DefaultKeepBytes.
	KeepBlocks, KeepBytes int64
	// SyncEach makes each block durable before Commit returns, for a state that is not on this disk
	// and so never waits for Sync.
	SyncEach bool
	// MaxWaiting limits the requests that wait for an event. Default: DefaultMaxWaiting.
	MaxWaiting int
}

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = engine.NopLogger{}
	}
	if o.Failed == nil {
		o.Failed = func(error) {}
	}
	if o.KeepBlocks <= 0 {
		o.KeepBlocks = DefaultKeepBlocks
	}
	if o.KeepBytes <= 0 {
		o.KeepBytes = DefaultKeepBytes
	}
	if o.MaxWaiting <= 0 {
		o.MaxWaiting = DefaultMaxWaiting
	}
	return o
}

// Log is a log of events. Begin, Commit and Committed follow one another; all other methods may be
// called at any time.
type Log struct {
	o      Options
	folder engine.Folder
	// db is used by who holds writing, or using for reading; who replaces it holds both.
	db    *pebble.DB
	using sync.RWMutex

	damages chan damage // what the database found by itself, for the writer
	// wake has an element when the writer, or the publisher, has something to do.
	wake, published chan struct{}
	reads           chan struct{}   // has an element for each answer that is read from disk
	life            context.Context //nolint:containedctx // ends with Stop
	end             context.CancelFunc
	closing         chan struct{} // closed by Close
	wg              sync.WaitGroup
	// writing is held while the database is changed; it is taken before using.
	writing sync.Mutex
	waiting *waiters // has a lock of its own, which is taken before mu

	mu struct {
		sync.Mutex
		state
		moved   chan struct{} // closed, and replaced, whenever state changes
		failure error
		closed  bool
		number  int // of databases that were opened: see damage

		anew                                uint64 // see Stats
		answers, refused, compacted, events uint64 // counted since the start
	}
}

// state is how far the log is. base ≤ written ≤ last, and published ≤ last.
type state struct {
	begun     bool
	base      int64    // events of blocks above it are there
	written   int64    // up to here they are in the database
	synced    int64    // and up to here they are durable
	last      int64    // up to here they were handed over
	published int64    // up to here they are answered
	woken     int64    // and up to here those who waited were woken: see publish
	tail      []*block // the last blocks, of which all above written are there
	tailBytes int64
	backlog   int64  // bytes of the blocks above written
	total     uint64 // bytes of all blocks up to written, since the log began
	trimmed   uint64 // bytes of all blocks up to base
}

// Open opens the log in a folder, or makes one. What cannot be read is removed, with a line in the
// log: watchers must begin again, but nothing that is proved was in it.
func Open(dir string, o Options) (*Log, error) {
	o = o.withDefaults()
	l := &Log{
		o: o, wake: make(chan struct{}, 1), published: make(chan struct{}, 1), damages: make(chan damage, 1),
		reads: make(chan struct{}, maxDiskReads), closing: make(chan struct{}),
	}
	l.folder = engine.Folder{
		Zone: "events", Dir: dir, FS: o.FS, Logger: o.Logger, Fatal: o.Fatal,
		WayOut: "remove the folder: the log begins anew",
	}.WithDefaults()
	err := l.open()
	if errors.Is(err, engine.ErrCorrupt) || errors.Is(err, engine.ErrNewerFormat) {
		l.sayAnew(err)
		if err = l.folder.FS.RemoveAll(dir); err == nil {
			err = l.open()
		}
	}
	if err != nil {
		return nil, err
	}
	l.life, l.end = context.WithCancel(context.Background())
	l.mu.moved = make(chan struct{})
	l.waiting = newWaiters()
	l.wg.Go(l.write)
	l.wg.Go(l.publish)
	return l, nil
}

func (l *Log) open() error {
	var err error
	l.mu.number++
	l.db, err = l.folderOf(l.mu.number).Open(databaseOptions())
	if err != nil {
		return err
	}
	if err := l.load(); err != nil {
		db := l.db
		l.db = nil
		return errors.Join(err, db.Close())
	}
	return nil
}

func databaseOptions() *pebble.Options {
	return &pebble.Options{CacheSize: 8 << 20, MemTableSize: 8 << 20, MemTableStopWritesThreshold: 4, LBaseMaxBytes: engine.BaseLevelBytes(8 << 20)}
}

// load reads how far the log is.
func (l *Log) load() error {
	format, err := get(l.db, formatKey)
	switch {
	case err != nil:
		return l.folder.Err("read", err)
	case format == nil:
		return l.folder.Err("write", l.db.Set(formatKey, []byte{FormatVersion}, pebble.Sync))
	case len(format) != 1 || format[0] < 1:
		return l.folder.Corrupt(fmt.Errorf("layout record %x", format))
	case format[0] > FormatVersion:
		return l.folder.Newer("layout", uint64(format[0]), FormatVersion)
	}
	s := &l.mu.state
	first, firstSum, ok, err := edge(l.db, false)
	if err != nil || !ok {
		return l.readErr(err)
	}
	last, sum, _, err := edge(l.db, true)
	if err != nil {
		return l.readErr(err)
	}
	*s = state{begun: true, base: first, written: last, synced: last, last: last, published: last, woken: last, total: sum, trimmed: firstSum}
	return nil
}

// Begin continues after the state of a height: later events are dropped, since their blocks will be
// executed again. Unless the log reaches up to height, and its record of that can be read, it
// begins there.
func (l *Log) Begin(height int64) error {
	if err := l.settle(); err != nil {
		return err
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	s, failure := l.mu.state, l.mu.failure
	l.mu.Unlock()
	if failure != nil {
		return failure
	}
	batch := l.db.NewBatch()
	defer batch.Close()
	var next state
	continues, sum := s.begun && s.base <= height && height <= s.last, uint64(0)
	if continues {
		var err error
		sum, err = l.sum(height)
		switch {
		case errors.Is(err, engine.ErrCorrupt): // or every start would end here
			l.folder.Logger.Error("A record of the log of events is damaged", "err", err)
			continues = false
		case err != nil:
			return err
		}
	}
	if continues {
		next = state{base: s.base, total: sum, trimmed: s.trimmed}
		err := errors.Join(
			batch.DeleteRange(segmentKey(height+1, 0), endOf(tagSegment), nil),
			batch.DeleteRange(blockKey(height+1), endOf(tagBlock), nil),
		)
		if err != nil {
			return l.folder.Err("write", err)
		}
	} else {
		if s.begun {
			l.folder.Logger.Info("The log of events begins anew", "after", height, "had_from", s.base+1, "to", s.last)
			l.mu.Lock()
			l.mu.anew++
			l.mu.Unlock()
		}
		next = state{base: height}
		err := errors.Join(
			batch.DeleteRange([]byte{tagSegment}, endOf(tagSegment), nil),
			batch.DeleteRange([]byte{tagBlock}, endOf(tagBlock), nil),
			batch.Set(blockKey(height), binary.BigEndian.AppendUint64(nil, 0), nil),
		)
		if err != nil {
			return l.folder.Err("write", err)
		}
	}
	if err := batch.Commit(pebble.Sync); err != nil {
		return l.folder.Err("write", err)
	}
	next.begun = true
	next.written, next.synced, next.last, next.published, next.woken = height, height, height, height, height
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.state = next
	l.changed()
	return nil
}

// settle waits until the writer has nothing to do.
func (l *Log) settle() error {
	return l.until(func(s *state) bool { return s.written == s.last })
}

// until waits for a condition on the state.
func (l *Log) until(met func(*state) bool) error {
	for {
		l.mu.Lock()
		moved, failure, done := l.mu.moved, l.mu.failure, met(&l.mu.state)
		if failure == nil && l.mu.closed {
			failure = fmt.Errorf("events folder %s: %w", l.folder.Dir, ErrClosed)
		}
		l.mu.Unlock()
		switch {
		case failure != nil:
			return failure
		case done:
			return nil
		}
		<-moved
	}
}

// failure returns the error after which the log takes nothing more; nil: there was none.
func (l *Log) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.failure
}

// changed wakes whoever waits in until. The caller holds mu.
func (l *Log) changed() {
	close(l.mu.moved)
	l.mu.moved = make(chan struct{})
}

// Commit hands over what a block has changed, before the block's state becomes durable or is
// published. Nobody modifies b any more. Commit waits while too much waits for the disk.
func (l *Log) Commit(b event.Block) error {
	n := &block{height: b.Height, from: &b, bytes: bytesOf(&b)}
	err := l.until(func(s *state) bool { return s.backlog == 0 || s.backlog+n.bytes <= maxBacklog })
	if err == nil {
		err = l.append(n)
	}
	if err != nil {
		return err
	}
	if l.o.SyncEach {
		return l.Sync(b.Height)
	}
	return nil
}

func (l *Log) append(n *block) error {
	l.mu.Lock()
	last, begun := l.mu.last, l.mu.begun
	l.mu.Unlock()
	if !begun || n.height != last+1 { // the first block, or one that nobody has announced
		if err := l.Begin(n.height - 1); err != nil {
			return err
		}
	}
	l.mu.Lock()
	l.mu.tail = append(l.mu.tail, n)
	l.mu.last = n.height
	l.mu.tailBytes += n.bytes
	l.mu.backlog += n.bytes
	l.mu.Unlock()
	signal(l.wake)
	return nil
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // it is going to look anyway
	}
}

// Committed reports that queries see the state after height: from now on its events are answered.
func (l *Log) Committed(height int64) {
	l.mu.Lock()
	if height <= l.mu.last {
		l.mu.published = max(l.mu.published, height)
	}
	l.mu.Unlock()
	signal(l.published)
}

// Sync returns once the events up to a height that was handed over are durable.
func (l *Log) Sync(height int64) error {
	err := l.until(func(s *state) bool { return s.written >= min(height, s.last) })
	if err != nil {
		return err
	}
	l.mu.Lock()
	written, done := l.mu.written, l.mu.synced >= min(height, l.mu.last)
	l.mu.Unlock()
	if done {
		return nil
	}
	l.using.RLock()
	if l.db != nil {
		err = l.db.LogData(nil, pebble.Sync)
	}
	l.using.RUnlock()
	if err != nil {
		return l.folder.Err("sync", err)
	}
	l.mu.Lock()
	again := l.mu.written < written // of a database that has replaced the one that was synced
	l.mu.synced = max(l.mu.synced, min(written, l.mu.written))
	l.mu.Unlock()
	if again {
		return l.Sync(height)
	}
	return nil
}

// Close writes what waits and closes the log. Whoever waits in Answer gets ErrClosed. No other call
// may be in progress, and Commit must not come any more.
func (l *Log) Close() error {
	l.Stop()
	close(l.closing)
	l.wg.Wait()
	failure := l.failure()
	for range maxDiskReads { // those who read from disk
		l.reads <- struct{}{}
	}
	l.writing.Lock() // who met damage as the log was closed may be about to begin anew
	defer l.writing.Unlock()
	l.using.Lock()
	defer l.using.Unlock()
	db := l.db
	if db == nil { // it could not be replaced, which is the failure
		return failure
	}
	l.db = nil
	return errors.Join(failure, l.folder.Err("close", db.Close()))
}

// Stop ends all waiting in Answer. Blocks may still come.
func (l *Log) Stop() { l.end() }
