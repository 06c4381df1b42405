package storage

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

var (
	// ErrLocked: another process has the folder open.
	ErrLocked = errors.New("in use by another process")
	// ErrCorrupt: what is on disk cannot be read as a state.
	ErrCorrupt = errors.New("damaged")
	// ErrNewerFormat: a later version of this program wrote the data.
	ErrNewerFormat = errors.New("written by a newer version")
	// ErrClosed: the zone or the restore is closed.
	ErrClosed = errors.New("closed")
	// ErrRestoring: a restore is under way, so there is no state to write to.
	ErrRestoring = errors.New("a restore is under way")
)

// The kinds of records, by the first byte of their keys.
const (
	kindHeight = 'h'
	kindLeaf   = 'k'
	kindMeta   = 'm'
	kindEnd    = kindMeta + 1
)

// pebbleFormat is pinned, so that a newer Pebble does not make data unreadable for the program that wrote it.
const pebbleFormat = pebble.FormatValueSeparation

// Leaf is a key with its value and the height of the inner node whose key it is (0: none recorded).
type Leaf struct {
	Key, Value []byte
	Height     uint8
}

// Height is the height of the inner node whose key is Key; 0 removes the record.
type Height struct {
	Key    []byte
	Height uint8
}

// Batch is what one block changes. Deletes come before Puts, Puts before Heights; the Height of a put leaf is not looked at.
type Batch struct {
	Meta    Meta
	Puts    []Leaf
	Deletes [][]byte // remove the leaf and its height
	Heights []Height
}

// State is the state zone. All methods may be called concurrently; iterators see the state of the moment they begin.
type State struct {
	dir string
	db  *pebble.DB
	log Logger

	mu struct {
		sync.RWMutex // held for reading by whoever uses db, so that Close waits for them
		meta         *Meta
		restore      *Restore // the one under way
		closed       bool
	}
}

// Open opens the state zone in dir, which it creates if need be. What a killed restore left behind is removed.
func Open(dir string, opts Options) (*State, error) {
	opts = opts.withDefaults()
	logger := pebbleLogger{dir: dir, log: opts.Logger, fatal: opts.Fatal}
	db, err := pebble.Open(dir, &pebble.Options{
		FS:                 lockFS{opts.FS},
		FormatMajorVersion: pebbleFormat,
		Logger:             logger,
		// Pebble's own listener ends the process. Damage that a reader meets comes back as an error, with the way out.
		EventListener: &pebble.EventListener{
			BackgroundError: func(err error) { logger.Errorf("background work: %v", err) },
			DataCorruption:  func(info pebble.DataCorruptionInfo) { logger.Errorf("%v", info) },
		},
		MemTableSize: opts.memTableBytes,
	})
	switch {
	case errors.Is(err, ErrLocked):
		return nil, fmt.Errorf("state folder %s: %w: stop the other starlingd that runs on this home, or give this one another home", dir, err)
	case err != nil && (pebble.IsCorruptionError(err) || errors.Is(err, pebble.ErrCorruption)):
		return nil, corrupt(dir, err)
	case err != nil:
		return nil, fmt.Errorf("state folder %s: cannot open: %w", dir, err)
	}
	s := &State{dir: dir, db: db, log: opts.Logger}
	if err := s.load(); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return s, nil
}

// corrupt says what the way out is, which is always the same: the network has the state too.
func corrupt(dir string, err error) error {
	return fmt.Errorf("state folder %s is %w: %w: remove it with `starlingd unsafe-reset-all` and join again by state sync", dir, ErrCorrupt, err)
}

// load reads meta, and wipes data that has none.
func (s *State) load() error {
	value, closer, err := s.db.Get([]byte{kindMeta})
	switch {
	case errors.Is(err, pebble.ErrNotFound):
		return s.wipeOrphans()
	case err != nil:
		return corrupt(s.dir, err)
	}
	defer closer.Close()
	meta, err := decodeMeta(value)
	switch {
	case errors.Is(err, errMetaVersion):
		return fmt.Errorf("state folder %s was %w: %w: install the newer starlingd, or `starlingd unsafe-reset-all` and join again by state sync",
			s.dir, ErrNewerFormat, err)
	case err != nil:
		return corrupt(s.dir, fmt.Errorf("meta: %w", err))
	}
	s.mu.meta = &meta
	return nil
}

func (s *State) wipeOrphans() error {
	it, err := s.db.NewIter(nil)
	if err != nil {
		return corrupt(s.dir, err)
	}
	orphans := it.First()
	if err := errors.Join(it.Error(), it.Close()); err != nil {
		return corrupt(s.dir, err)
	}
	if !orphans {
		return nil
	}
	s.log.Info("removing a state whose restore was interrupted", "folder", s.dir)
	return s.wipe()
}

// wipe removes every record, durably. Pebble drops files that lie wholly in the range without reading them.
func (s *State) wipe() error {
	if err := s.db.DeleteRange([]byte{kindHeight}, []byte{kindEnd}, pebble.Sync); err != nil {
		return fmt.Errorf("state folder %s: cannot empty: %w", s.dir, err)
	}
	return nil
}

// Meta says which state the zone holds; false if it is empty or being restored.
func (s *State) Meta() (Meta, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.mu.meta == nil {
		return Meta{}, false
	}
	m := *s.mu.meta
	m.AppHash = bytes.Clone(m.AppHash)
	return m, true
}

// Write makes a block's changes durable, all or none of them. Heights must rise.
func (s *State) Write(b Batch) error {
	if err := b.Meta.validate(); err != nil {
		return fmt.Errorf("state folder %s: write: %w", s.dir, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.mu.closed:
		return fmt.Errorf("state folder %s: write: %w", s.dir, ErrClosed)
	case s.mu.restore != nil:
		return fmt.Errorf("state folder %s: write: %w", s.dir, ErrRestoring)
	case s.mu.meta != nil && b.Meta.Height <= s.mu.meta.Height:
		return fmt.Errorf("state folder %s: write of height %d over height %d", s.dir, b.Meta.Height, s.mu.meta.Height)
	}
	batch := s.db.NewBatch()
	defer batch.Close()
	var key []byte
	for _, k := range b.Deletes {
		if err := errors.Join(batch.Delete(diskKey(&key, kindLeaf, k), nil), batch.Delete(diskKey(&key, kindHeight, k), nil)); err != nil {
			return fmt.Errorf("state folder %s: write: %w", s.dir, err)
		}
	}
	for _, leaf := range b.Puts {
		if err := batch.Set(diskKey(&key, kindLeaf, leaf.Key), leaf.Value, nil); err != nil {
			return fmt.Errorf("state folder %s: write: %w", s.dir, err)
		}
	}
	for _, h := range b.Heights {
		if err := setHeight(batch, &key, h); err != nil {
			return fmt.Errorf("state folder %s: write: %w", s.dir, err)
		}
	}
	b.Meta.Restored = false
	return s.commitMeta(batch, b.Meta)
}

// commitMeta adds meta to the batch and makes it durable. The caller holds s.mu.
func (s *State) commitMeta(batch *pebble.Batch, m Meta) error {
	if err := batch.Set([]byte{kindMeta}, m.encode(), nil); err != nil {
		return fmt.Errorf("state folder %s: write: %w", s.dir, err)
	}
	if err := batch.Commit(pebble.Sync); err != nil {
		return fmt.Errorf("state folder %s: write of height %d: %w", s.dir, m.Height, err)
	}
	m.AppHash = bytes.Clone(m.AppHash)
	s.mu.meta = &m
	return nil
}

func setHeight(batch *pebble.Batch, buf *[]byte, h Height) error {
	if h.Height == 0 {
		return batch.Delete(diskKey(buf, kindHeight, h.Key), nil)
	}
	return batch.Set(diskKey(buf, kindHeight, h.Key), []byte{h.Height}, nil)
}

// diskKey returns kind ‖ key in *buf, which the next call overwrites: batches copy what they are given.
func diskKey(buf *[]byte, kind byte, key []byte) []byte {
	*buf = append(append((*buf)[:0], kind), key...)
	return *buf
}

// Scan yields all leaves in key order with the heights of their inner nodes, in one pass over each of the two ranges. Key and
// Value are the caller's to keep. An error is the last thing it yields. While a restore is under way there is nothing to see.
func (s *State) Scan() iter.Seq2[Leaf, error] {
	return func(yield func(Leaf, error) bool) {
		snapshot, err := s.snapshot()
		if err != nil {
			yield(Leaf{}, err)
			return
		}
		if snapshot == nil {
			return
		}
		defer snapshot.Close()
		stopped := false
		if err := scan(snapshot, func(l Leaf) bool { stopped = !yield(l, nil); return !stopped }); err != nil && !stopped {
			yield(Leaf{}, corrupt(s.dir, err))
		}
	}
}

// snapshot returns nil if there is no whole state.
func (s *State) snapshot() (*pebble.Snapshot, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	switch {
	case s.mu.closed:
		return nil, fmt.Errorf("state folder %s: scan: %w", s.dir, ErrClosed)
	case s.mu.meta == nil:
		return nil, nil
	}
	return s.db.NewSnapshot(), nil
}

// scan merges the two ranges: each height belongs to a leaf, so the second iterator never runs ahead of the first.
func scan(r pebble.Reader, yield func(Leaf) bool) (err error) {
	leaves, err := r.NewIter(&pebble.IterOptions{LowerBound: []byte{kindLeaf}, UpperBound: []byte{kindLeaf + 1}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, leaves.Close()) }()
	heights, err := r.NewIter(&pebble.IterOptions{LowerBound: []byte{kindHeight}, UpperBound: []byte{kindHeight + 1}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, heights.Close()) }()

	heights.First()
	for leaves.First(); leaves.Valid(); leaves.Next() {
		value, err := leaves.ValueAndErr()
		if err != nil {
			return err
		}
		leaf := Leaf{Key: bytes.Clone(leaves.Key()[1:]), Value: bytes.Clone(value)}
		if heights.Valid() && bytes.Equal(heights.Key()[1:], leaf.Key) {
			h, err := heights.ValueAndErr()
			if err != nil {
				return err
			}
			if len(h) != 1 {
				return fmt.Errorf("height of key %x has %d bytes, want 1", leaf.Key, len(h))
			}
			leaf.Height = h[0]
			heights.Next()
		}
		if !yield(leaf) {
			return nil
		}
	}
	if err := errors.Join(leaves.Error(), heights.Error()); err != nil {
		return err
	}
	if heights.Valid() {
		return fmt.Errorf("height of key %x without its leaf", heights.Key()[1:])
	}
	return nil
}

// Reset empties the zone, durably, and ends a restore that is under way.
func (s *State) Reset() error {
	_, err := s.restart(nil)
	return err
}

// restart empties the zone and makes r the restore that is under way.
func (s *State) restart(r *Restore) (*Restore, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return nil, fmt.Errorf("state folder %s: reset: %w", s.dir, ErrClosed)
	}
	if err := s.wipe(); err != nil {
		return nil, err
	}
	s.mu.meta, s.mu.restore = nil, r
	return r, nil
}

// Close releases the folder. Scans must be over. A restore that is under way ends as if it had been killed.
func (s *State) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return nil
	}
	s.mu.closed, s.mu.restore = true, nil
	if err := s.db.Close(); err != nil {
		return fmt.Errorf("state folder %s: close: %w", s.dir, err)
	}
	return nil
}

// lockFS tells a folder that is locked from one that cannot be written.
type lockFS struct{ vfs.FS }

func (f lockFS) Lock(name string) (io.Closer, error) {
	lock, err := f.FS.Lock(name)
	var cannotCreate *fs.PathError
	if err != nil && !errors.As(err, &cannotCreate) {
		return nil, fmt.Errorf("%w (%w)", ErrLocked, err)
	}
	return lock, err
}

func (f lockFS) Unwrap() vfs.FS { return f.FS }
