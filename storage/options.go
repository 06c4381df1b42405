package storage

import (
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/starling-kv/starling/storage/internal/engine"
)

// Errors of both zones, to be tested with errors.Is.
var (
	// ErrLocked: another process has the folder open.
	ErrLocked = engine.ErrLocked
	// ErrCorrupt: the data on disk is damaged. The message names the file if known.
	ErrCorrupt = engine.ErrCorrupt
	// ErrNewerFormat: a newer version of this program wrote the data.
	ErrNewerFormat = engine.ErrNewerFormat
	// ErrClosed: the zone or the restore is closed.
	ErrClosed = engine.ErrClosed
	// ErrDiskFull: the disk is full, or the quota is used up.
	ErrDiskFull = engine.ErrDiskFull
)

// DatabaseFormat is the Pebble format major version that both zones write.
const DatabaseFormat = uint64(engine.Format)

// Logger receives the messages of the zone and of its database, with alternating keys and values.
// *slog.Logger and CometBFT's logger implement it. It is called concurrently.
type Logger = engine.Logger

// MemTableBytes is the default size of a state zone's memtable, of which there are usually two: one
// that was flushed is kept for reuse.
const MemTableBytes = 4 << 20

// Options configure a state zone. The zero value is usable.
type Options struct {
	FS     vfs.FS // default: the operating system's
	Logger Logger // default: silent
	// Fatal is called, after the error was logged, when the database cannot continue because its
	// list of files cannot be written: the disk is full or broken. It must not return. Default:
	// exit with status 1, which loses nothing durable.
	Fatal func(error)
	// Failed is called once, by a goroutine of the zone, when changes could not be made durable.
	// Every later Write and Flush returns that error, and nothing more is written: the disk keeps
	// the state of the durable height. Default: no call.
	Failed func(error)

	// Before is called by the flusher before the state after height becomes durable. It makes data
	// durable that must not be older than the state. Its error fails the zone. Default: no call.
	Before func(height int64) error

	// CacheBytes is the size of the database's block cache; default 8 MiB. In addition, two
	// memtables take memory, each at most as much as the cache.
	CacheBytes int64

	FlushBlocks   int           // a flush is due when this many blocks wait (default 50) ...
	FlushBytes    int64         // ... or this many bytes of changes (default 16 MiB) ...
	FlushInterval time.Duration // ... or a block has waited this long (default 5 s)
	// Limits of the flusher's backlog, in blocks and in bytes. Above them, Write waits.
	MaxLagBlocks int   // default 200
	MaxLagBytes  int64 // default 64 MiB

	Generations bool   // keep the states of past flushes readable until Trim; see Zone.ReadUpTo
	PinDir      string // folder of the pins; default: the zone's folder + "-pins"
	ReadOnly    bool   // nothing is written, removed or compacted

	// Remedy ends the messages of ErrCorrupt. Default: the one for a node with its own state.
	Remedy string

	// MemTableBytes is the size of the database's memtable, which is flushed when it is full, even
	// if no flush is due; default MemTableBytes.
	MemTableBytes uint64
	// CompactAfter is the number of flushes whose tables overlap before a compaction merges them
	// (default 2, Pebble's; at most maxL0). With more, the same keys are rewritten less often, and
	// a read searches more tables.
	CompactAfter int
}

func (o Options) withDefaults(dir string) Options {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Logger == nil {
		o.Logger = engine.NopLogger{}
	}
	if o.Failed == nil {
		o.Failed = func(error) {}
	}
	if o.Before == nil {
		o.Before = func(int64) error { return nil }
	}
	setDefault(&o.CacheBytes, 8<<20)
	setDefault(&o.FlushBlocks, 50)
	setDefault(&o.FlushBytes, 16<<20)
	setDefault(&o.FlushInterval, 5*time.Second)
	setDefault(&o.MaxLagBlocks, 200)
	setDefault(&o.MaxLagBytes, 64<<20)
	setDefault(&o.MemTableBytes, MemTableBytes)
	setDefault(&o.CompactAfter, 2)
	o.CompactAfter = min(o.CompactAfter, maxL0) // a flush waits above maxL0
	// Write must not wait for blocks whose flush is not due yet.
	o.MaxLagBlocks, o.MaxLagBytes = max(o.MaxLagBlocks, o.FlushBlocks), max(o.MaxLagBytes, o.FlushBytes)
	if o.Remedy == "" {
		o.Remedy = "remove it with `starlingd unsafe-reset-all` and join again by state sync"
	}
	if o.PinDir == "" {
		o.PinDir = dir + "-pins"
	}
	return o
}

// databaseCache returns the size of Pebble's cache, from which Pebble takes the memory of memtables
// (db.go, newMemTable).
func (o Options) databaseCache() int64 {
	if o.ReadOnly {
		return o.CacheBytes
	}
	return o.CacheBytes + 2*min(int64(o.MemTableBytes), o.CacheBytes)
}

func setDefault[T int | int64 | uint64 | time.Duration](v *T, value T) {
	if *v <= 0 {
		*v = value
	}
}
