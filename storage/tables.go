package storage

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// ingestDir is the folder of tables that replace the state in one step. It lies in the zone's
// folder, where Pebble ignores it.
func (s *Zone) ingestDir() string { return s.opts.FS.PathJoin(s.dir, "ingest") }

// tables writes records in ascending order of their keys into tables, and begins a new one when one
// is large.
type tables struct {
	s      *Zone
	number *atomic.Int64
	w      *sstable.Writer
	path   string
	done   []string // paths
}

func (s *Zone) newTables(number *atomic.Int64) *tables { return &tables{s: s, number: number} }

func (t *tables) set(key, value []byte) error {
	if t.w == nil {
		if err := t.begin(); err != nil {
			return err
		}
	}
	if err := t.w.Set(key, value); err != nil {
		return err
	}
	if t.w.Raw().EstimatedSize() >= tableBytes {
		return t.finish()
	}
	return nil
}

func (t *tables) begin() error {
	fs, dir := t.s.guard, t.s.ingestDir()
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	t.path = fs.PathJoin(dir, fmt.Sprintf("%06d.sst", t.number.Add(1)))
	file, err := fs.Create(t.path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	// The last level, where there are no tables yet.
	t.w = sstable.NewWriter(objstorageprovider.NewFileWritable(file), t.s.writerOptions)
	return nil
}

// finish makes the table under way durable. It can be followed by more records.
func (t *tables) finish() error {
	if t.w == nil {
		return nil
	}
	w := t.w
	t.w = nil
	if err := w.Close(); err != nil {
		return errors.Join(err, t.s.opts.FS.Remove(t.path))
	}
	t.done = append(t.done, t.path)
	return nil
}
