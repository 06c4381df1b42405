package storage

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/internal/rowtable"
)

// stateWriter makes tables of a whole state, for an empty database to ingest.
type stateWriter struct {
	s        *Zone
	pace     pace
	progress func(done, total uint64) error // see Zone.settleNow
	syncs    *syncer
	paths    []string // of the tables
	err      error    // of a sync; guarded by Zone.mu
}

// write makes the tables, durably. Nothing else is in their folder.
func (w *stateWriter) write(set *runSet) error {
	fs, dir := w.s.opts.FS, w.s.ingestDir()
	if err := fs.RemoveAll(dir); err != nil {
		return err
	}
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	w.syncs = newSyncer()
	err := w.writeAll(set)
	w.syncs.stop()
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	if err == nil {
		err = w.err
	}
	return err
}

func (w *stateWriter) writeAll(set *runSet) error {
	tables := series{w: w}
	defer tables.release()
	var failed error
	add := func(l record.Leaf) bool {
		failed = tables.add(l)
		return failed == nil
	}
	done := uint64(0)
	for i := range set.runs {
		if err := w.pace.giveWay(); err != nil {
			return err
		}
		if err := w.progress(done, set.bytes); err != nil {
			return err
		}
		done += set.runs[i].bytes
		if err := set.each(i, i+1, add); err != nil {
			return err
		}
		if failed != nil {
			return failed
		}
	}
	return tables.finish()
}

// series writes leaves into tables, and begins a new one when one is large.
type series struct {
	w    *stateWriter
	file vfs.File // that of out
	out  *rowtable.Writer
	// lastKey is the last key of the table before: keys ascend across tables.
	lastKey []byte
	height  [1]byte
}

func (s *series) add(l record.Leaf) error {
	if l.Height > maxHeight {
		return fmt.Errorf("key %x has height %d: %w", l.Key, l.Height, errDamagedRun)
	}
	if s.out == nil {
		if s.lastKey != nil && bytes.Compare(l.Key, s.lastKey) <= 0 {
			return fmt.Errorf("key %x after %x: %w", l.Key, s.lastKey, rowtable.ErrOrder)
		}
		if err := s.begin(); err != nil {
			return err
		}
	}
	s.height[0] = l.Height
	if err := s.out.Add(l.Key, s.height[:], l.Value); err != nil {
		return err
	}
	if s.out.Size() >= tableBytes {
		return s.finish()
	}
	return nil
}

func (s *series) begin() error {
	z := s.w.s
	path := z.opts.FS.PathJoin(z.ingestDir(), fmt.Sprintf("%06d.sst", len(s.w.paths)+1))
	file, err := z.guard.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	s.w.paths = append(s.w.paths, path)
	s.file, s.out = file, rowtable.New(file, kindLeaf, mergerName)
	return nil
}

// finish ends the table under way, if there is one. It can be followed by more records.
func (s *series) finish() error {
	if s.out == nil {
		return nil
	}
	s.lastKey = bytes.Clone(s.out.LastKey())
	if _, _, err := s.out.Finish(); err != nil {
		return err // release closes the file
	}
	file := s.file
	s.file = nil
	s.release()
	s.w.syncs.add(file, func(err error) {
		s.w.s.mu.Lock()
		defer s.w.s.mu.Unlock()
		s.w.err = errors.Join(s.w.err, err)
	})
	return nil
}

func (s *series) release() {
	if s.out != nil {
		s.out.Recycle()
		s.out = nil
	}
	if s.file != nil {
		_ = s.file.Close() // the table is given up
		s.file = nil
	}
}
