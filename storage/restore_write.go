package storage

import (
	"bytes"
	"fmt"
	"iter"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/internal/rowtable"
)

// runWriter writes the tables of a run.
type runWriter struct {
	r      *Restore
	tables run        // once write has returned
	files  []vfs.File // all tables, open; whoever takes them closes them
	begun  []uint64   // numbers of all
}

// write completes the tables, but does not make them durable. After an error, discard must follow.
func (w *runWriter) write(leaves iter.Seq[record.Leaf]) error {
	values, heights := series{w: w, kind: kindLeaf}, series{w: w, kind: kindHeight}
	defer values.release()
	defer heights.release()
	var height [1]byte
	var err error
	for l := range leaves {
		if err = values.add(l.Key, l.Value); err == nil && l.Height > 0 {
			height[0] = l.Height
			err = heights.add(l.Key, height[:])
		}
		if err != nil {
			return err
		}
	}
	if err := values.finish(); err != nil {
		return err
	}
	if err := heights.finish(); err != nil {
		return err
	}
	w.tables = append(values.done, heights.done...)
	return nil
}

// discard removes what was written. What cannot be removed now is removed when the restore is
// resumed, or ends.
func (w *runWriter) discard() {
	for _, f := range w.files {
		_ = f.Close()
	}
	for _, number := range w.begun {
		_ = w.r.s.opts.FS.Remove(w.r.s.tablePath(number))
	}
	w.files, w.begun = nil, nil
}

// series writes records of one kind into tables, and begins a new one when one is large.
type series struct {
	w    *runWriter
	kind byte
	out  *rowtable.Writer
	done run
	// lastKey is the last key of the table before: keys ascend across tables.
	lastKey []byte
	number  uint64
}

func (s *series) add(key, value []byte) error {
	if s.out == nil {
		if s.lastKey != nil && bytes.Compare(key, s.lastKey) <= 0 {
			return fmt.Errorf("key %x after %x: %w", key, s.lastKey, rowtable.ErrOrder)
		}
		if err := s.begin(); err != nil {
			return err
		}
	}
	if err := s.out.Add(key, value); err != nil {
		return err
	}
	if s.out.Size() >= tableBytes {
		return s.finish()
	}
	return nil
}

func (s *series) begin() error {
	s.number = s.w.r.number.Add(1)
	file, err := s.w.r.s.guard.Create(s.w.r.s.tablePath(s.number), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	s.w.begun, s.w.files = append(s.w.begun, s.number), append(s.w.files, file)
	s.out = rowtable.New(file, s.kind)
	return nil
}

// finish ends the table under way, if there is one. It can be followed by more records.
func (s *series) finish() error {
	if s.out == nil {
		return nil
	}
	s.lastKey = bytes.Clone(s.out.LastKey())
	size, crc, err := s.out.Finish()
	s.release()
	if err != nil {
		return err
	}
	s.done = append(s.done, runTable{s.kind, s.number, size, crc})
	return nil
}

func (s *series) release() {
	if s.out != nil {
		s.out.Recycle()
		s.out = nil
	}
}
