package events

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/starling-kv/starling/app/event"
	"github.com/starling-kv/starling/internal/wake"
	"github.com/starling-kv/starling/storage/internal/engine"
)

// FormatVersion is the layout of the data that this package writes. A log with another layout, or a
// damaged log, is replaced by an empty one: see damage.go.
const FormatVersion = 1

// Defaults of Options.
const (
	DefaultKeepBlocks = 100_000
	DefaultKeepBytes  = 1 << 30
	DefaultMaxWaiting = 10_000
)

const (
	// maxBacklog is the maximum number of bytes of events that wait to be written. Above it, Commit
	// waits.
	maxBacklog = 64 << 20
	// Blocks on disk stay in memory while they are among the last tailBlocks and take at most
	// tailBytes.
	tailBlocks, tailBytes = 1000, 16 << 20
	// batchBytes is the size of a batch that the writer commits to the database.
	batchBytes = 4 << 20
	// maxDiskReads is the maximum number of answers read from disk concurrently.
	maxDiskReads = 4
)

var (
	// ErrBusy: Options.MaxWaiting requests are waiting.
	ErrBusy = event.ErrBusy
	// ErrClosed: the log is closed.
	ErrClosed = engine.ErrClosed
)

// Logger receives the messages of the log and of its database. It is called concurrently.
type Logger = engine.Logger

// Options configure a Log. The zero value is usable.
type Options struct {
	FS     vfs.FS // default: the operating system's
	Logger Logger // default: silent
	// Fatal is called, after the error was logged, when the database cannot continue. It must not
	// return. Default: exit with status 1.
	Fatal func(error)
	// Failed is called once, by a goroutine of the log, when events could not be written. Every
	// later Commit and Sync returns that error. Default: no call.
	Failed func(error)
	// The events of the last KeepBlocks blocks are kept, up to about KeepBytes. Default:
	// DefaultKeepBlocks, DefaultKeepBytes.
	KeepBlocks, KeepBytes int64
	// SyncEach makes each block durable before Commit returns. It is for a state that is not stored
	// locally, which never calls Sync.
	SyncEach bool
	// MaxWaiting limits the number of requests that wait for an event. Default: DefaultMaxWaiting.
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

// Log is a log of events. Calls of Begin, Commit and Committed must not overlap. All other methods
// may be called at any time.
type Log struct {
	o      Options
	folder engine.Folder
	// db may be used while writing is held, or using is held for reading. Replacing it requires
	// both.
	db    *pebble.DB
	using sync.RWMutex

	damages chan damage // found by compactions; for the writer
	// wake has an element when the writer has work, published when the publisher has.
	wake, published chan struct{}
	reads           chan struct{}   // has an element for each answer being read from disk
	life            context.Context //nolint:containedctx // ends with Stop
	end             context.CancelFunc
	closing         chan struct{} // closed by Close
	wg              sync.WaitGroup
	// writing is held while the database is changed. It is taken before using.
	writing sync.Mutex
	waiting *waiters // its lock is taken before mu

	mu struct {
		sync.Mutex
		state
		moved   chan struct{} // closed and replaced when state changes
		failure error
		closed  bool
		number  int // counter of opened databases: see damage

		replaced                            uint64 // see Stats
		answers, refused, compacted, events uint64 // counters since the start
	}
}

// state describes the blocks in the log. base ≤ synced ≤ written ≤ last, woken ≤ published ≤ last.
type state struct {
	begun     bool
	base      int64    // the log has the events of all blocks above this height
	written   int64    // events up to this height are in the database
	synced    int64    // events up to this height are durable
	last      int64    // events up to this height were committed
	published int64    // events up to this height are answered
	woken     int64    // requests up to this height were woken: see publish
	tail      []*block // the last blocks, including all above written
	tailBytes int64
	backlog   int64  // bytes of the blocks above written
	total     uint64 // bytes of all blocks up to written, since the log began
	trimmed   uint64 // bytes of all blocks up to base
}

// Open opens or creates the log in a folder. An unreadable log is logged and removed: watchers must
// read again, but the log proved nothing.
func Open(dir string, o Options) (*Log, error) {
	o = o.withDefaults()
	l := &Log{
		o: o, wake: make(chan struct{}, 1), published: make(chan struct{}, 1), damages: make(chan damage, 1),
		reads: make(chan struct{}, maxDiskReads), closing: make(chan struct{}),
	}
	l.folder = engine.Folder{
		Zone: "events", Dir: dir, FS: o.FS, Logger: o.Logger, Fatal: o.Fatal,
		WayOut: "remove the folder: an empty log replaces it",
	}.WithDefaults()
	err := l.open()
	if errors.Is(err, engine.ErrCorrupt) || errors.Is(err, engine.ErrNewerFormat) {
		l.logReplaced(err)
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

// load reads the state of the log.
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

// Begin continues the log after the state of a height. Later events are dropped, because their
// blocks will be executed again. A log that does not reach height, or whose record of it cannot be
// read, is replaced by an empty one that starts there.
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
		case errors.Is(err, engine.ErrCorrupt): // otherwise every start would fail here
			l.folder.Logger.Error("A record of the event log is damaged", "err", err)
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
			l.folder.Logger.Info("The event log does not reach the state and is replaced by an empty one", "after", height, "had_from", s.base+1, "to", s.last)
			l.mu.Lock()
			l.mu.replaced++
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

// settle waits until all blocks are in the database.
func (l *Log) settle() error {
	return l.until(func(s *state) bool { return s.written == s.last })
}

// until waits until the state meets a condition.
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

// failure returns the error that stopped the log; nil: none.
func (l *Log) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.failure
}

// changed wakes the waiting calls of until. The caller holds mu.
func (l *Log) changed() {
	close(l.mu.moved)
	l.mu.moved = make(chan struct{})
}

// Commit adds the changes of a block, before the block's state becomes durable or is published. The
// log owns b from then on. Commit waits while the backlog is at its limit.
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
	if !begun || n.height != last+1 { // the first block, or Begin was not called for its state
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
	wake.Up(l.wake)
	return nil
}

// Committed publishes the events up to height. The state of height must be available to queries.
func (l *Log) Committed(height int64) {
	l.mu.Lock()
	if height <= l.mu.last {
		l.mu.published = max(l.mu.published, height)
	}
	l.mu.Unlock()
	wake.Up(l.published)
}

// Sync waits until the events up to a committed height are durable.
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
	again := l.mu.written < written // the synced database was replaced meanwhile
	l.mu.synced = max(l.mu.synced, min(written, l.mu.written))
	l.mu.Unlock()
	if again {
		return l.Sync(height)
	}
	return nil
}

// Close writes the backlog and closes the log. Waiting calls of Answer return ErrClosed. No other
// call may be in progress or follow.
func (l *Log) Close() error {
	l.Stop()
	close(l.closing)
	l.wg.Wait()
	failure := l.failure()
	for range maxDiskReads { // waits for reads from disk
		l.reads <- struct{}{}
	}
	l.writing.Lock() // a reader that found damage may be replacing the database
	defer l.writing.Unlock()
	l.using.Lock()
	defer l.using.Unlock()
	db := l.db
	if db == nil { // replacing it has failed
		return failure
	}
	l.db = nil
	return errors.Join(failure, l.folder.Err("close", db.Close()))
}

// Stop ends all waiting in Answer. Commit may still be called.
func (l *Log) Stop() { l.end() }
