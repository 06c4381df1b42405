package storage

import (
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/starling-kv/starling/storage/internal/engine"
)

// Errors of both zones, found by errors.Is.
var (
	// ErrLocked: another process has the folder open.
	ErrLocked = engine.ErrLocked
	// ErrCorrupt: what is on disk cannot be read as a state. The message names the file where it is
	// known.
	ErrCorrupt = engine.ErrCorrupt
	// ErrNewerFormat: a later version of this program wrote the data.
	ErrNewerFormat = engine.ErrNewerFormat
	// ErrClosed: the zone or the restore is closed.
	ErrClosed = engine.ErrClosed
	// ErrDiskFull: there is no space, or the quota is used up.
	ErrDiskFull = engine.ErrDiskFull
)

// DatabaseFormat is the format major version of Pebble that both zones write.
const DatabaseFormat = uint64(engine.Format)

// Logger takes the messages of the zone and of the database under it, each with pairs of keys and
// values. *slog.Logger and CometBFT's logger implement it. It is called concurrently.
type Logger = engine.Logger

// Options of a state zone; the zero value is usable.
type Options struct {
	FS     vfs.FS // default: the operating system's
	Logger Logger // default: silent
	// Fatal is called, after the error was logged, when the database cannot continue: its list of
	// files cannot be written, since the disk is full or broken. It must not return. Default: end
	// the process with exit status 1, which loses nothing durable.
	Fatal func(error)
	// Failed is called once, by a goroutine of the zone, when changes could not be made durable.
	// Every later Write and Flush returns that error, and nothing more is written: the disk keeps
	// the state of the safe height. Default: nothing is called.
	Failed func(error)

	// Before is called by the flusher before the state after height becomes durable, and what it
	// makes durable is never older than that state. Its error is the zone's failure. Default:
	// nothing is called.
	Before func(height int64) error
	// Converting is called now and then while Open converts a zone of an older layout, which it
	// does once and which takes minutes where the state is large; total is about twice the bytes of
	// its keys and values, which are copied, and then written as tables. An error interrupts the
	// conversion, Open returns it, and the next Open resumes. Default: nothing is called.
	Converting func(done, total uint64) error

	CacheBytes int64 // of the database's block cache, default 8 MiB

	FlushBlocks   int           // a flush begins when this many blocks wait (default 50) ...
	FlushBytes    int64         // ... or this many bytes of changes (default 16 MiB) ...
	FlushInterval time.Duration // ... or one has waited this long (default 5 s)
	// Maximum backlog of the flusher, in blocks and in bytes: beyond it, Write waits.
	MaxLagBlocks int   // default 200
	MaxLagBytes  int64 // default 64 MiB

	Generations bool   // keep the states of past flushes readable by Page, until Trim
	PinDir      string // where pins lie; default: the zone's folder with "-pins" behind it
	ReadOnly    bool   // nothing is written, removed or compacted

	// MemTableBytes is the size at which the database writes what it collected in memory as a
	// table; default 4 MiB. A flush writes it earlier.
	MemTableBytes uint64
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
	if o.Converting == nil {
		o.Converting = func(_, _ uint64) error { return nil }
	}
	setDefault(&o.CacheBytes, 8<<20)
	setDefault(&o.FlushBlocks, 50)
	setDefault(&o.FlushBytes, 16<<20)
	setDefault(&o.FlushInterval, 5*time.Second)
	setDefault(&o.MaxLagBlocks, 200)
	setDefault(&o.MaxLagBytes, 64<<20)
	setDefault(&o.MemTableBytes, 4<<20)
	// Blocks that wait for a flush to become due must not make Write wait.
	o.MaxLagBlocks, o.MaxLagBytes = max(o.MaxLagBlocks, o.FlushBlocks), max(o.MaxLagBytes, o.FlushBytes)
	if o.PinDir == "" {
		o.PinDir = dir + "-pins"
	}
	return o
}

func setDefault[T int | int64 | uint64 | time.Duration](v *T, value T) {
	if *v <= 0 {
		*v = value
	}
}
