package storage

import (
	"bytes"
	"fmt"
	"iter"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// runWriter writes the tables of a run.
type runWriter struct {
	r      *Restore
	tables run        // when it is done
	files  []vfs.File // all, open; who takes them closes them
	begun  []uint64   // numbers of all
}

// write leaves the tables complete, though not durable. After an error discard must follow.
func (w *runWriter) write(leaves iter.Seq[Leaf]) error {
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

// discard removes what was written. What cannot be removed is when the restore is resumed, or ends.
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
	out  *tableWriter
	done run
	// lastKey is of the table before: order holds beyond tables.
	lastKey []byte
	number  uint64
}

func (s *series) add(key, value []byte) error {
	if s.out == nil {
		if s.lastKey != nil && bytes.Compare(key, s.lastKey) <= 0 {
			return fmt.Errorf("key %x after %x: %w", key, s.lastKey, errOrder)
		}
		if err := s.begin(); err != nil {
			return err
		}
	}
	if err := s.out.add(s.kind, key, value); err != nil {
		return err
	}
	if s.out.size() >= tableBytes {
		return s.finish()
	}
	return nil
}

func (s *series) begin() error {
	s.number = s.w.r.number.Add(1)
	file, err := s.w.r.s.gate.Create(s.w.r.s.tablePath(s.number), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	s.w.begun, s.w.files = append(s.w.begun, s.number), append(s.w.files, file)
	s.out = newTableWriter(file)
	return nil
}

// finish ends the table under way, if there is one. It can be followed by more records.
func (s *series) finish() error {
	if s.out == nil {
		return nil
	}
	s.lastKey = bytes.Clone(s.out.last)
	size, crc, err := s.out.finish(s.kind)
	s.release()
	if err != nil {
		return err
	}
	s.done = append(s.done, runTable{s.kind, s.number, size, crc})
	return nil
}

func (s *series) release() {
	if s.out != nil {
		s.out.recycle()
		s.out = nil
	}
}
