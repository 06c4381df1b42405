package storage

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/internal/rowtable"
)

// ingestDir is the folder of tables to be ingested as the whole state in one step. It is in the
// zone's folder, where Pebble ignores it.
func (s *Zone) ingestDir() string { return s.opts.FS.PathJoin(s.dir, "ingest") }

// tableBytes is the approximate size of a table.
const tableBytes = 16 << 20

// tables writes a complete state to tables for Pebble to ingest, each of about tableBytes. Meta has
// its own table, so that state and meta are ingested atomically.
//
//	newTables ──► add … add ──► finish(meta) ──► paths, durable
//	                                └── error: the files are removed with the folder, by the next newTables or Open
type tables struct {
	s     *Zone
	syncs *syncer
	paths []string
	err   error // error of a sync; guarded by Zone.mu

	// The current table; nil: none.
	file vfs.File
	out  *rowtable.Writer

	lastKey []byte // last key of the previous table: keys ascend across tables
	height  [1]byte
}

// newTables empties the folder of tables. The caller must call stop.
func (s *Zone) newTables() (*tables, error) {
	fs, dir := s.opts.FS, s.ingestDir()
	if err := fs.RemoveAll(dir); err != nil {
		return nil, err
	}
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	return &tables{s: s, syncs: newSyncer()}, nil
}

// add writes a leaf. Keys must ascend, otherwise it fails with rowtable.ErrOrder.
func (t *tables) add(l record.Leaf) error {
	if l.Height > maxHeight {
		return fmt.Errorf("key %x has height %d: %w", l.Key, l.Height, errDamagedRun)
	}
	if t.out == nil {
		if t.lastKey != nil && bytes.Compare(l.Key, t.lastKey) <= 0 {
			return fmt.Errorf("key %x after %x: %w", l.Key, t.lastKey, rowtable.ErrOrder)
		}
		if err := t.begin(kindLeaf); err != nil {
			return err
		}
	}
	t.height[0] = l.Height
	if err := t.out.Add(l.Key, t.height[:], l.Value); err != nil {
		return err
	}
	if t.out.Size() >= tableBytes {
		return t.end()
	}
	return nil
}

// begin begins a table of records whose keys begin with kind.
func (t *tables) begin(kind byte) error {
	path := t.s.opts.FS.PathJoin(t.s.ingestDir(), fmt.Sprintf("%06d.sst", len(t.paths)+1))
	file, err := t.s.guard.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	t.paths = append(t.paths, path)
	t.file, t.out = file, rowtable.New(file, kind, mergerName)
	return nil
}

// end ends the current table, if there is one. It is synced in the background.
func (t *tables) end() error {
	if t.out == nil {
		return nil
	}
	t.lastKey = bytes.Clone(t.out.LastKey())
	if err := t.out.Finish(); err != nil {
		return err // stop closes the file
	}
	t.out.Recycle()
	file := t.file
	t.file, t.out = nil, nil
	t.syncs.add(file, func(err error) {
		t.s.mu.Lock()
		defer t.s.mu.Unlock()
		t.err = errors.Join(t.err, err)
	})
	return nil
}

// finish writes meta and waits until all tables are durable.
func (t *tables) finish(m Meta) error {
	err := t.end()
	if err == nil {
		err = t.begin(kindMeta)
	}
	if err == nil {
		err = t.out.Add(nil, nil, m.encode())
	}
	if err == nil {
		err = t.end()
	}
	t.syncs.wait()
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	return errors.Join(err, t.err)
}

// stop releases all resources. It must be the last call.
func (t *tables) stop() {
	if t.out != nil {
		t.out.Recycle()
		_ = t.file.Close() // the table is discarded
	}
	t.syncs.stop()
}
