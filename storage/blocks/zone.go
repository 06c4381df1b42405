package blocks

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"
	dbm "github.com/cometbft/cometbft-db"

	"github.com/starling-kv/starling/internal/keyspace"
	"github.com/starling-kv/starling/storage/internal/engine"
	"github.com/starling-kv/starling/storage/sgc"
)

// Logger receives the messages of the zone and of its database. It is called concurrently.
type Logger = engine.Logger

var (
	// ErrReadOnly: the zone was opened read-only.
	ErrReadOnly = errors.New("opened read-only")
	// ErrLocked, ErrCorrupt, ErrNewerFormat, ErrClosed and ErrDiskFull are the same as in the state
	// zone.
	ErrLocked      = engine.ErrLocked
	ErrCorrupt     = engine.ErrCorrupt
	ErrNewerFormat = engine.ErrNewerFormat
	ErrClosed      = engine.ErrClosed
	ErrDiskFull    = engine.ErrDiskFull
)

// FormatVersion is the layout of the data that this package writes. Data with a newer layout are
// refused.
const FormatVersion = 1

// formatKey sorts before every key of a database, because no ID has length 0.
var formatKey = []byte{0}

// maxID is the maximum length of a database's ID. It is below 255, so that a key above all keys of
// a database exists.
const maxID = 200

// Options configure a block zone. The zero value is usable.
type Options struct {
	FS     vfs.FS // default: the operating system's
	Logger Logger // default: silent
	// Fatal is called, after the error was logged, when the database cannot continue: its log, its
	// list of files or a table cannot be written, or a compaction cannot read a table. It must
	// neither return nor call the zone. Default: exit with status 1.
	Fatal func(error)
	// ReadFailed is called before a read returns an error, which names the file if it is damaged.
	// The effect of such an error in CometBFT depends on the goroutine: some end the process, some
	// disconnect a peer, some only log. Default: no call.
	ReadFailed func(error)
	// Reads with Get use the zone Blocks of this cache. No other zone may use it; Open clears it.
	// nil: no cache.
	Cache *sgc.Cache
	// CacheBytes is the size of Pebble's block cache in addition to two memtables of the full size;
	// smaller ones leave it more. Default 8 MiB.
	CacheBytes int64
	// ReadOnly is for offline commands: nothing on disk changes, and writes return ErrReadOnly.
	ReadOnly bool

	// MemTableBytes is the size of a memtable of the database, of which there are at most
	// memTables; default 32 MiB.
	MemTableBytes uint64

	segmentLimit uint64 // for tests; default seglog.Limit
}

const (
	memTableBytes = 32 << 20
	memTables     = 4
	// MemTables is the memory of all memtables by default, in bytes. Two of them have memory of
	// their own, the others take it from Pebble's block cache.
	MemTables = memTables * memTableBytes
)

// Zone is the block zone. All methods may be called concurrently.
type Zone struct {
	folder   engine.Folder
	db       *pebble.DB
	parts    parts
	cache    *coherentCache // nil: no cache
	readOnly bool
	failed   func(error)     // Options.ReadFailed
	closing  context.Context // canceled when Close begins
	close    context.CancelFunc

	// mu is held for reading while db is used, because Pebble panics when it is used after Close.
	mu struct {
		sync.RWMutex
		closed bool
	}
	iterators struct {
		sync.Mutex
		open map[*iterator]struct{}
	}
}

// Open opens the block zone in dir, which it creates if necessary.
func Open(dir string, o Options) (*Zone, error) {
	if o.CacheBytes <= 0 {
		o.CacheBytes = 8 << 20
	}
	if o.MemTableBytes == 0 {
		o.MemTableBytes = memTableBytes
	}
	if o.ReadFailed == nil {
		o.ReadFailed = func(error) {}
	}
	z := &Zone{readOnly: o.ReadOnly, failed: o.ReadFailed, folder: engine.Folder{
		Zone: "blocks", Dir: dir, FS: o.FS, Logger: o.Logger, Fatal: o.Fatal,
		WayOut: "put back a copy of the folder, or remove the home's data and join again",
	}.WithDefaults()}
	// Pebble repeats failed work until it succeeds. Meanwhile writers, and Open, would hang
	// forever. Synced data are in the log, so ending the process loses nothing.
	fatal := z.folder.Fatal
	z.folder.Background = func(err error) {
		if !errors.Is(err, pebble.ErrClosed) {
			fatal(err)
		}
	}
	z.closing, z.close = context.WithCancel(context.Background())
	z.iterators.open = map[*iterator]struct{}{}
	if o.Cache != nil {
		z.cache = newCoherentCache(o.Cache)
	}
	options := &pebble.Options{
		// Pebble takes the memory of memtables from the cache (db.go, newMemTable): usually of one
		// that is written, and of one that is flushed or kept for reuse.
		CacheSize:    o.CacheBytes + 2*int64(o.MemTableBytes),
		MemTableSize: o.MemTableBytes, MemTableStopWritesThreshold: memTables, ReadOnly: o.ReadOnly,
		LBaseMaxBytes: engine.BaseLevelBytes(o.MemTableBytes),
	}
	// Most lookups of transactions and hashes find nothing.
	for i := range options.Levels {
		options.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	var err error
	if z.db, err = z.folder.Open(options); err != nil {
		return nil, err
	}
	if err = z.checkFormat(); err == nil {
		err = z.openParts(o.segmentLimit)
	}
	if err != nil {
		return nil, errors.Join(err, z.db.Close())
	}
	return z, nil
}

// checkFormat reads the layout version and the tag of references, or writes them to an empty
// database.
func (z *Zone) checkFormat() error {
	value, found, err := z.read(formatKey)
	switch {
	case err != nil:
		return err
	case found && len(value) == 1 && value[0] == FormatVersion:
		return z.readTag()
	case found && len(value) == 1 && value[0] > FormatVersion:
		return z.folder.Newer("layout", uint64(value[0]), FormatVersion)
	case found:
		return z.folder.Corrupt(fmt.Errorf("layout record %x", value))
	}
	it, err := z.db.NewIter(nil)
	if err != nil {
		return z.folder.Err("open", err)
	}
	empty := !it.First()
	if err := errors.Join(it.Error(), it.Close()); err != nil {
		return z.folder.Err("open", err)
	}
	if err := z.noSegments(); err != nil {
		return err
	}
	switch {
	case !empty:
		return z.folder.Corrupt(errors.New("the layout record is missing"))
	case z.readOnly:
		return nil
	}
	_, _ = rand.Read(z.parts.tag[:]) // it never fails (Go 1.24)
	batch := z.db.NewBatch()
	defer batch.Close()
	err = errors.Join(batch.Set(formatKey, []byte{FormatVersion}, nil), batch.Set(tagKey, z.parts.tag[:], nil))
	if err == nil {
		err = batch.Commit(pebble.Sync)
	}
	return z.folder.Err("open", err)
}

// Close makes everything durable and closes the zone. Open iterators end with ErrClosed.
func (z *Zone) Close() error {
	z.close() // ends compactions, so that the lock is free soon
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.mu.closed {
		return nil
	}
	errs := []error{z.releaseHeld(true)}
	z.mu.closed = true
	z.iterators.Lock()
	open := z.iterators.open
	z.iterators.open = nil
	z.iterators.Unlock()
	for it := range open {
		errs = append(errs, it.detach())
	}
	return z.folder.Err("close", errors.Join(append(errs, z.parts.store.Close(), z.db.Close())...))
}

// use keeps the zone open until release is called.
func (z *Zone) use() (release func(), err error) {
	z.mu.RLock()
	if z.mu.closed {
		z.mu.RUnlock()
		return nil, fmt.Errorf("blocks folder %s: %w", z.folder.Dir, ErrClosed)
	}
	return z.mu.RUnlock, nil
}

// read returns a copy of the value of key, which includes its prefix, from the database.
func (z *Zone) read(key []byte) (value []byte, found bool, err error) {
	v, closer, err := z.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, z.readErr(err)
	}
	value = append(make([]byte, 0, len(v)), v...)
	return value, true, z.readErr(closer.Close())
}

// readErr wraps a read error and reports it to Options.ReadFailed; nil if err is nil.
func (z *Zone) readErr(err error) error {
	if err != nil {
		err = z.folder.Err("read", err)
		z.failed(err)
	}
	return err
}

// commit writes a batch.
func (z *Zone) commit(b *batch, sync bool) error {
	release, err := z.use()
	if err != nil {
		return err
	}
	defer release()
	if z.readOnly {
		return fmt.Errorf("blocks folder %s: %w", z.folder.Dir, ErrReadOnly)
	}
	if len(b.outside) > 0 || z.parts.held.any.Load() {
		err = z.commitParts(b, sync)
	} else {
		options := pebble.NoSync
		if sync {
			options = pebble.Sync
		}
		err = z.cached(b.batch, func() error { return z.folder.Err("write", b.batch.Commit(options)) })
	}
	if err == nil && (b.deletes || z.parts.sweeping.Load()) {
		z.sweep(sweepSteps)
	}
	return err
}

// Sync makes all earlier writes durable, except a part that waits for the rest of its block.
func (z *Zone) Sync() error {
	release, err := z.use()
	if err != nil {
		return err
	}
	defer release()
	return z.folder.Err("write", z.db.LogData(nil, pebble.Sync))
}

// cached calls write, which changes the stored values of the batch's keys, and keeps the cache
// consistent.
func (z *Zone) cached(batch *pebble.Batch, write func() error) error {
	if z.cache != nil {
		end, err := z.cache.beginWrite(batch)
		if err != nil {
			return z.folder.Err("write", err)
		}
		defer end()
	}
	return write()
}

// DB returns the database with that ID (1 to 200 bytes). Its Close has no effect: close the zone.
func (z *Zone) DB(id string) dbm.DB {
	if len(id) == 0 || len(id) > maxID {
		panic(fmt.Sprintf("blocks: database ID of %d bytes, want 1 to %d", len(id), maxID))
	}
	prefix := append([]byte{byte(len(id))}, id...)
	return &database{z: z, prefix: prefix, end: keyspace.PrefixEnd(prefix), parts: id == partsID}
}

// IDs returns the IDs of the databases that have keys, ordered by length and then by bytes.
func (z *Zone) IDs() ([]string, error) {
	release, err := z.use()
	if err != nil {
		return nil, err
	}
	defer release()
	it, err := z.db.NewIter(&pebble.IterOptions{LowerBound: []byte{1}})
	if err != nil {
		return nil, z.readErr(err)
	}
	var ids []string
	for ok := it.First(); ok; {
		key := it.Key()
		n := int(key[0])
		if n > maxID || len(key) < 1+n {
			return nil, errors.Join(z.folder.Corrupt(fmt.Errorf("key %x", key)), it.Close())
		}
		ids = append(ids, string(key[1:1+n]))
		ok = it.SeekGE(keyspace.PrefixEnd(key[:1+n]))
	}
	return ids, z.readErr(errors.Join(it.Error(), it.Close()))
}
