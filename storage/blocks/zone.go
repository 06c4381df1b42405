package blocks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"
	dbm "github.com/cometbft/cometbft-db"

	"github.com/starling-kv/starling/storage/internal/engine"
	"github.com/starling-kv/starling/storage/sgc"
)

// Logger takes what the zone and the database under it have to say. It is called concurrently.
type Logger = engine.Logger

var (
	// ErrReadOnly: the zone was opened to be read only.
	ErrReadOnly = errors.New("opened read-only")
	// ErrLocked, ErrCorrupt, ErrNewerFormat, ErrClosed and ErrDiskFull are those of the state zone.
	ErrLocked      = engine.ErrLocked
	ErrCorrupt     = engine.ErrCorrupt
	ErrNewerFormat = engine.ErrNewerFormat
	ErrClosed      = engine.ErrClosed
	ErrDiskFull    = engine.ErrDiskFull
)

// FormatVersion is the latest layout of the data that this package writes. Data of a later version
// is refused. A folder has layout 1, everything in Pebble, until the first value is written to a
// segment, so that until then an older program can open it.
const FormatVersion = layoutSegments

const (
	layoutPlain    = 1
	layoutSegments = 2
)

// formatKey is below every key of a database, as no ID has length 0.
var formatKey = []byte{0}

// maxID bounds the length of a database's ID. Below 255, so that there is always a key after a
// database's last.
const maxID = 200

// Options of a block zone; the zero value is usable.
type Options struct {
	FS     vfs.FS // default: the operating system's
	Logger Logger // default: silent
	// Fatal is called, after the error was logged, when the database cannot continue: its log, its
	// list of files or a table cannot be written, or what is to be written anew cannot be read. It
	// must not return, and not call the zone. Default: end the process with exit status 1.
	Fatal func(error)
	// ReadFailed is called before a read returns an error, which names the file if it is damaged.
	// What CometBFT makes of such an error depends on the goroutine: some end the process, some
	// lose a peer, some only log. Default: nothing is called.
	ReadFailed func(error)
	// Get reads through its zone Blocks, which nobody else uses; Open clears it. nil: no cache
	Cache      *sgc.Cache
	CacheBytes int64 // of Pebble's cache of file blocks; default 8 MiB
	// for offline commands: nothing on disk changes; writes return ErrReadOnly
	ReadOnly bool

	// MemTableBytes is how much the database collects in memory before it writes a table, four
	// times at most; default 32 MiB.
	MemTableBytes uint64

	segmentLimit uint64 // for tests; default segments.Limit
}

// Zone is the block zone. All methods may be called concurrently.
type Zone struct {
	folder   engine.Folder
	db       *pebble.DB
	parts    parts
	cache    *coherentCache // nil: none
	readOnly bool
	failed   func(error)     // Options.ReadFailed
	closing  context.Context // done when Close begins
	close    context.CancelFunc

	// mu is held for reading by everything that uses db: Pebble panics when it is used after its
	// end.
	mu struct {
		sync.RWMutex
		closed bool
	}
	iterators struct {
		sync.Mutex
		open map[*iterator]struct{}
	}
}

// Open opens the block zone in dir, and creates it if need be.
func Open(dir string, o Options) (*Zone, error) {
	if o.CacheBytes <= 0 {
		o.CacheBytes = 8 << 20
	}
	if o.MemTableBytes == 0 {
		o.MemTableBytes = 32 << 20
	}
	if o.ReadFailed == nil {
		o.ReadFailed = func(error) {}
	}
	z := &Zone{readOnly: o.ReadOnly, failed: o.ReadFailed, folder: engine.Folder{
		Zone: "blocks", Dir: dir, FS: o.FS, Logger: o.Logger, Fatal: o.Fatal,
		WayOut: "put back a copy of the folder, or remove the home's data and join again",
	}.WithDefaults()}
	// Pebble repeats what failed until it succeeds, and meanwhile holds up those that write, and
	// its own opening, for ever. What was synced is in the log, so nothing is lost by an end here.
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
		CacheSize: o.CacheBytes, MemTableSize: o.MemTableBytes, MemTableStopWritesThreshold: 4, ReadOnly: o.ReadOnly,
		LBaseMaxBytes: engine.BaseLevelBytes(o.MemTableBytes),
	}
	// most lookups of transactions and hashes are for what is not there
	for i := range options.Levels {
		options.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	var err error
	if z.db, err = z.folder.Open(options); err != nil {
		return nil, err
	}
	layout, err := z.checkFormat()
	if err == nil {
		err = z.openParts(layout, o.segmentLimit)
	}
	if err != nil {
		return nil, errors.Join(err, z.db.Close())
	}
	return z, nil
}

// checkFormat reads the layout version, or writes it into an empty database.
func (z *Zone) checkFormat() (layout byte, err error) {
	value, found, err := z.read(formatKey)
	switch {
	case err != nil:
		return 0, err
	case found && len(value) == 1 && value[0] > 0 && value[0] <= FormatVersion:
		return value[0], nil
	case found && len(value) == 1 && value[0] > FormatVersion:
		return 0, z.folder.Newer("layout", uint64(value[0]), FormatVersion)
	case found:
		return 0, z.folder.Corrupt(fmt.Errorf("layout record %x", value))
	}
	it, err := z.db.NewIter(nil)
	if err != nil {
		return 0, z.folder.Err("open", err)
	}
	empty := !it.First()
	if err := errors.Join(it.Error(), it.Close()); err != nil {
		return 0, z.folder.Err("open", err)
	}
	if err := z.noSegments(); err != nil {
		return 0, err
	}
	switch {
	case !empty:
		return 0, z.folder.Corrupt(errors.New("the layout record is missing"))
	case z.readOnly:
		return layoutPlain, nil
	}
	return layoutPlain, z.folder.Err("open", z.db.Set(formatKey, []byte{layoutPlain}, pebble.Sync))
}

// Close closes the zone. What was written is durable then. Iterators that are still open end with
// ErrClosed.
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

// read returns a copy of the value under key, which carries its prefix, from the database.
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

// readErr is the error of a read, which it reports to Options.ReadFailed; nil if err is.
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

// cached changes what is stored, by write, while the cache forgets the keys of batch.
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

// DB returns the database of that ID (1 to 200 bytes). Its Close does nothing: close the zone.
func (z *Zone) DB(id string) dbm.DB {
	if len(id) == 0 || len(id) > maxID {
		panic(fmt.Sprintf("blocks: database ID of %d bytes, want 1 to %d", len(id), maxID))
	}
	prefix := append([]byte{byte(len(id))}, id...)
	return &database{z: z, prefix: prefix, end: after(prefix), parts: id == partsID}
}

// after returns the first key that does not begin with prefix.
func after(prefix []byte) []byte {
	end := bytes.Clone(prefix)
	// ends at the first byte at the latest, the length, which is below
	for end[len(end)-1] == 0xff {
		end = end[:len(end)-1]
	}
	end[len(end)-1]++
	return end
}

// IDs returns the IDs of the databases that have keys, in the order of their lengths, then bytes.
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
		ok = it.SeekGE(after(key[:1+n]))
	}
	return ids, z.readErr(errors.Join(it.Error(), it.Close()))
}
