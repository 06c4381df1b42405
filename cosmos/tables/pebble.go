package tables

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/cockroachdb/pebble"
	"github.com/cockroachdb/pebble/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/sstable"
	"github.com/cockroachdb/pebble/vfs"

	"github.com/starling-kv/starling/cosmos/nodedb"
)

// Pebble writes a Pebble database, in the format that cosmos-db opens and creates.
type Pebble struct {
	dir, ingest string
	files       *files
	options     *pebble.Options
}

const (
	lowestLevel  = 6
	pebbleTable  = 32 << 20 // Pebble's own tables in this level have 128 MiB
	ingestFolder = "starling-ingest"
	commitBytes  = 1 << 20 // more than Commit writes
)

// NewPebble begins a database in a folder, and removes the folder's content.
func NewPebble(dir string) (*Pebble, error) {
	p := &Pebble{dir: dir, ingest: filepath.Join(dir, ingestFolder), options: &pebble.Options{Logger: quiet{}}}
	p.options.EnsureDefaults()
	if err := errors.Join(empty(dir), empty(p.ingest)); err != nil {
		return nil, err
	}
	p.files = newFiles(1, pebbleTable, p.create)
	return p, nil
}

// quiet is cosmos-db's logger: it prints only fatal errors.
type quiet struct{ pebble.Logger }

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(format string, args ...any) {
	pebble.DefaultLogger.Fatalf(format, args...)
}

// Run implements nodedb.Tables.
func (p *Pebble) Run() (nodedb.Run, error) { return p.files.run(), nil }

type pebbleWriter struct{ w *sstable.Writer }

func (p *Pebble) path(number int64) string {
	return filepath.Join(p.ingest, fmt.Sprintf("%06d.sst", number))
}

func (p *Pebble) create(number int64) (*os.File, writer, error) {
	f, err := os.Create(p.path(number))
	if err != nil {
		return nil, nil, err
	}
	o := p.options.MakeWriterOptions(lowestLevel, pebble.FormatMostCompatible.MaxTableFormat())
	return f, pebbleWriter{sstable.NewWriter(objstorageprovider.NewFileWritable(unclosed{f}), o)}, nil
}

// unclosed is a file that is synced and closed later, while the next ones are written.
type unclosed struct{ *os.File }

func (unclosed) Sync() error                               { return nil }
func (unclosed) Close() error                              { return nil }
func (unclosed) SyncData() error                           { return nil }
func (unclosed) SyncTo(int64) (fullSync bool, err error)   { return false, nil }
func (unclosed) Preallocate(int64, int64) error            { return nil }
func (unclosed) Prefetch(int64, int64) error               { return nil }
func (u unclosed) Fd() uintptr                             { return u.File.Fd() }
func (u unclosed) WriteAt(b []byte, at int64) (int, error) { return u.File.WriteAt(b, at) }

var _ vfs.File = unclosed{}

func (w pebbleWriter) set(key, value []byte) error { return w.w.Set(key, value) }

func (w pebbleWriter) size() int64 { return int64(w.w.EstimatedSize()) }

func (w pebbleWriter) close() (int64, error) {
	if err := w.w.Close(); err != nil {
		return 0, err
	}
	m, err := w.w.Metadata()
	if err != nil {
		return 0, err
	}
	return int64(m.Size), nil
}

// Commit implements nodedb.Tables.
func (p *Pebble) Commit(last []nodedb.Record) error {
	tables, err := p.files.finished()
	if err != nil {
		return err
	}
	// Pebble ends the process if it cannot write its list of files.
	if usage, err := vfs.Default.GetDiskUsage(p.dir); err == nil && usage.AvailBytes < commitBytes {
		return fmt.Errorf("%s: %d bytes are free: %w", p.dir, usage.AvailBytes, syscall.ENOSPC)
	}
	db, err := pebble.Open(p.dir, p.options)
	if err != nil {
		return err
	}
	err = errors.Join(p.add(db, tables, last), db.Close())
	if err == nil {
		err = os.RemoveAll(p.ingest)
	}
	return err
}

func (p *Pebble) add(db *pebble.DB, tables []file, last []nodedb.Record) error {
	paths := make([]string, len(tables))
	for i, t := range tables {
		paths[i] = p.path(t.number)
	}
	if len(paths) > 0 {
		if err := db.Ingest(paths); err != nil {
			return err
		}
	}
	b := db.NewBatch()
	for _, r := range last {
		if err := b.Set(r.Key, r.Value, nil); err != nil {
			return err
		}
	}
	return b.Commit(pebble.Sync)
}
