package storage

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"slices"

	"github.com/cockroachdb/pebble/v2/objstorage"
	"github.com/cockroachdb/pebble/v2/sstable"

	"github.com/starling-kv/starling/avlstar/record"
)

// Read yields the leaves of a run with their heights, as they were added. Key and Value are valid
// until the next leaf is asked for. An error is yielded last: ErrNoRun, or ErrCorrupt where a file
// is not the one that was written. At most two tables are in memory at a time. The loop may be left
// early.
func (r *Restore) Read(id RunID) iter.Seq2[record.Leaf, error] {
	return func(yield func(record.Leaf, error) bool) {
		r.mu.Lock()
		found, ok := r.mu.runs[id]
		r.mu.Unlock()
		if !ok {
			yield(record.Leaf{}, r.noRunErr(id))
			return
		}
		c := newRunCursor(r, found)
		defer c.close()
		for {
			leaf, ok, err := c.next()
			if err != nil {
				yield(record.Leaf{}, r.s.folder.Err("restore: read a run", err))
				return
			}
			if !ok || !yield(leaf, nil) {
				return
			}
		}
	}
}

// runCursor walks over the leaves of a run and the heights beside them.
type runCursor struct{ leaves, heights tableCursor }

func newRunCursor(r *Restore, tables run) *runCursor {
	c := &runCursor{tableCursor{r: r, kind: kindLeaf}, tableCursor{r: r, kind: kindHeight}}
	split := slices.IndexFunc(tables, func(t runTable) bool { return t.kind == kindHeight })
	if split < 0 {
		split = len(tables)
	}
	c.leaves.tables, c.heights.tables = tables[:split], tables[split:]
	return c
}

// next returns false after the last leaf.
func (c *runCursor) next() (_ record.Leaf, ok bool, err error) {
	defer func() {
		// checksums were right, so the file was forged rather than damaged
		if p := recover(); p != nil {
			err = fmt.Errorf("a table cannot be read: %v: %w", p, ErrCorrupt)
		}
	}()
	key, value, ok, err := c.leaves.next()
	if err != nil {
		return record.Leaf{}, false, err
	}
	at, height, more, err := c.heights.peek()
	switch {
	case err != nil:
		return record.Leaf{}, false, err
	case more && (!ok || bytes.Compare(at, key) < 0):
		return record.Leaf{}, false, fmt.Errorf("%w, key %x: %w", errOrphan, at, ErrCorrupt)
	case !ok:
		return record.Leaf{}, false, nil
	case !more || !bytes.Equal(at, key):
		return record.Leaf{Key: key, Value: value}, true, nil
	case len(height) != 1:
		return record.Leaf{}, false, fmt.Errorf("height of key %x has %d bytes, want 1: %w", key, len(height), ErrCorrupt)
	}
	c.heights.ready = false
	return record.Leaf{Key: key, Value: value, Height: height[0]}, true, nil
}

func (c *runCursor) close() {
	defer func() { _ = recover() }() // see next
	_ = c.leaves.end()               // errors are of no interest: what was read was verified
	_ = c.heights.end()
}

// tableCursor walks over the records of tables that follow each other.
type tableCursor struct {
	r      *Restore
	kind   byte
	tables []runTable

	reader     *sstable.Reader
	it         sstable.Iterator
	begun      bool // it has been positioned
	ready      bool // peek has returned the record below, next has not
	key, value []byte
}

// peek returns the record that next will return.
func (c *tableCursor) peek() (key, value []byte, ok bool, err error) {
	if !c.ready {
		key, value, ok, err := c.next()
		if !ok || err != nil {
			return nil, nil, false, err
		}
		c.key, c.value, c.ready = key, value, true
	}
	return c.key, c.value, true, nil
}

func (c *tableCursor) next() (key, value []byte, ok bool, err error) {
	for {
		if c.it == nil {
			if len(c.tables) == 0 {
				return nil, nil, false, nil
			}
			if err := c.open(c.tables[0]); err != nil {
				return nil, nil, false, err
			}
			c.tables = c.tables[1:]
		}
		step := c.it.Next
		if !c.begun {
			step, c.begun = c.it.First, true
		}
		kv := step()
		if kv == nil {
			if err := c.end(); err != nil {
				return nil, nil, false, err
			}
			continue
		}
		if len(kv.K.UserKey) < 2 || kv.K.UserKey[0] != c.kind {
			return nil, nil, false, fmt.Errorf("key %x is out of place: %w", kv.K.UserKey, ErrCorrupt)
		}
		value, _, err := kv.Value(nil)
		return kv.K.UserKey[1:], value, err == nil, err
	}
}

func (c *tableCursor) open(t runTable) error {
	b, err := c.r.readTable(t)
	if err != nil {
		return err
	}
	c.reader, err = sstable.NewReader(context.Background(), memTable{b}, sstable.ReaderOptions{})
	if err != nil {
		return err
	}
	c.it, err = c.reader.NewIter(sstable.NoTransforms, nil, nil, sstable.AssertNoBlobHandles)
	c.begun = false
	return err
}

// end closes the table that is open.
func (c *tableCursor) end() error {
	var err error
	if c.it != nil {
		err = c.it.Error()
		if err2 := c.it.Close(); err == nil {
			err = err2
		}
	}
	if c.reader != nil {
		if err2 := c.reader.Close(); err == nil {
			err = err2
		}
	}
	c.it, c.reader = nil, nil
	return err
}

// readTable returns a file's contents, which are as they were written: ErrCorrupt otherwise.
func (r *Restore) readTable(t runTable) ([]byte, error) {
	if err := r.enter(); err != nil {
		return nil, err
	}
	defer r.leave()
	path := r.s.tablePath(t.number)
	file, err := r.s.opts.FS.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() != int64(t.bytes) {
		return nil, fmt.Errorf("%s: %d bytes, want %d: %w", path, info.Size(), t.bytes, ErrCorrupt)
	}
	b := make([]byte, t.bytes)
	if _, err := io.ReadFull(file, b); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if crc32.Checksum(b, castagnoli) != t.crc {
		return nil, fmt.Errorf("%s: wrong checksum: %w", path, ErrCorrupt)
	}
	return b, nil
}

// memTable is a table in memory.
type memTable struct{ b []byte }

// ReadAt implements objstorage.Readable.
func (m memTable) ReadAt(_ context.Context, p []byte, off int64) error {
	if off < 0 || off > int64(len(m.b)) || copy(p, m.b[off:]) < len(p) {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// Close implements objstorage.Readable.
func (m memTable) Close() error { return nil }

// Size implements objstorage.Readable.
func (m memTable) Size() int64 { return int64(len(m.b)) }

// NewReadHandle implements objstorage.Readable.
func (m memTable) NewReadHandle(objstorage.ReadBeforeSize) objstorage.ReadHandle {
	h := objstorage.MakeNoopReadHandle(m)
	return &h
}
