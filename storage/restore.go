package storage

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Tables that a restore has written are ingested together once they are so many, or so large.
const (
	ingestTables = 256
	ingestBytes  = 64 << 20
)

// Restore writes a whole new state piece by piece. Until Commit returns, the zone is empty for everybody, also after a crash.
//
//	Add(run) ──► two tables: heights, leaves ──┐
//	Add(run) ──► two tables ───────────────────┼─ ingested in groups ──► Commit: the rest, then meta
//	   …                                       ┘
//
// A table goes to its place in the database as it is: nothing is inserted key by key, or written twice.
type Restore struct {
	s      *State
	tables atomic.Int64 // numbers their names

	// life is held for reading during Add, for writing to end the restore.
	life struct {
		sync.RWMutex
		over bool
	}
	mu struct {
		sync.Mutex
		ready  []table
		bytes  uint64
		broken error // tables of runs that were added are lost
	}
}

type table struct {
	path  string
	bytes uint64
}

// ingestDir is where tables are written before they are ingested. It lies in the zone's folder, where Pebble leaves it alone.
func (s *State) ingestDir() string { return s.opts.FS.PathJoin(s.dir, "ingest") }

// BeginRestore empties the zone, durably, and begins to restore. A restore that was under way is over; blocks that wait are
// dropped, pins removed.
func (s *State) BeginRestore() (*Restore, error) {
	r := &Restore{s: s}
	if err := s.restart(r); err != nil {
		return nil, err
	}
	return r, nil
}

// end lets no Add begin any more, and waits for those under way.
func (r *Restore) end() {
	r.life.Lock()
	defer r.life.Unlock()
	r.life.over = true
}

func (r *Restore) overErr() error {
	return fmt.Errorf("state folder %s: this restore is over: %w", r.s.dir, ErrClosed)
}

// Add writes one run of leaves with their heights, in ascending order of their keys, with no key of another run among them. It
// may be called concurrently; what it wrote is durable once Commit has returned. After an error that is not about the run itself
// (its order) Commit returns it, too.
func (r *Restore) Add(leaves iter.Seq[Leaf]) error {
	if !r.s.users.enter() {
		return r.overErr()
	}
	defer r.s.users.leave()
	r.life.RLock()
	defer r.life.RUnlock()
	if r.life.over {
		return r.overErr()
	}
	if err := r.s.failure.get(); err != nil {
		return err
	}
	tables, err := r.write(leaves)
	if err != nil {
		return r.s.folder.Err("restore", err)
	}
	r.mu.Lock()
	r.mu.ready = append(r.mu.ready, tables...)
	for _, t := range tables {
		r.mu.bytes += t.bytes
	}
	var group []table
	if len(r.mu.ready) >= ingestTables || r.mu.bytes >= ingestBytes {
		group = r.take()
	}
	r.mu.Unlock()
	return r.ingest(group)
}

// take takes the tables that are ready. The caller holds r.mu.
func (r *Restore) take() []table {
	group := r.mu.ready
	r.mu.ready, r.mu.bytes = nil, 0
	return group
}

func (r *Restore) ingest(group []table) error {
	if len(group) == 0 {
		return nil
	}
	err := r.s.folder.Err("restore", r.s.db.Ingest(context.Background(), pathsOf(group)))
	if err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.mu.broken = err
	}
	return err
}

func pathsOf(tables []table) []string {
	paths := make([]string, len(tables))
	for i, t := range tables {
		paths[i] = t.path
	}
	return paths
}

// write writes a run as tables of limited size.
func (r *Restore) write(leaves iter.Seq[Leaf]) ([]table, error) {
	values, heights := r.s.newTables(&r.tables), r.s.newTables(&r.tables)
	var err error
	for l := range leaves {
		if err = values.set(kindLeaf, l.Key, l.Value); err == nil && l.Height > 0 {
			err = heights.set(kindHeight, l.Key, []byte{l.Height})
		}
		if err != nil {
			break
		}
	}
	err = errors.Join(err, values.finish(), heights.finish())
	all := append(values.done, heights.done...)
	if err != nil {
		for _, t := range all {
			_ = r.s.opts.FS.Remove(t.path) // or when the restore ends
		}
		return nil, err
	}
	return all, nil
}

// Readable ends the adding: what was added can be read, by Scan and Page, though none of it is durable before Commit.
func (r *Restore) Readable() error {
	s := r.s
	if !s.users.enter() {
		return r.overErr()
	}
	defer s.users.leave()
	r.life.RLock()
	defer r.life.RUnlock()
	if r.life.over {
		return r.overErr()
	}
	r.mu.Lock()
	group, broken := r.take(), r.mu.broken
	r.mu.Unlock()
	if broken != nil {
		return broken
	}
	if err := r.ingest(group); err != nil {
		return err
	}
	s.generations.push(newGeneration(0, s.db.NewSnapshot()), s.opts.Generations)
	return nil
}

// Commit makes the restored state the state of the zone, durably. Meta is written when all else is durable, so a meta that is
// there after a crash has all leaves before it.
func (r *Restore) Commit(m Meta) error {
	s := r.s
	if err := m.validate(); err != nil {
		return fmt.Errorf("state folder %s: restore: %w", s.dir, err)
	}
	if !s.users.enter() {
		return r.overErr()
	}
	defer s.users.leave()
	s.admin.Lock()
	defer s.admin.Unlock()
	r.life.Lock()
	defer r.life.Unlock()
	if r.life.over {
		return r.overErr()
	}
	if err := s.failure.get(); err != nil {
		return err
	}
	r.mu.Lock()
	group, broken := r.take(), r.mu.broken
	r.mu.Unlock()
	if broken != nil {
		return broken
	}
	if err := r.ingest(group); err != nil {
		return err
	}
	m.Restored = true
	batch := s.db.NewBatch()
	if err := batch.Set([]byte{kindMeta}, m.encode(), nil); err != nil {
		return s.folder.Err("restore", errors.Join(err, batch.Close()))
	}
	if err := s.commit(batch); err != nil {
		s.failure.fail(err) // meta may have got to the disk, or may yet
		return err
	}
	r.life.over = true
	s.generations.push(newGeneration(m.Height, s.db.NewSnapshot()), s.opts.Generations)
	s.mu.Lock()
	s.setSafe(m)
	s.mu.restore = nil
	s.mu.Unlock()
	if err := s.opts.FS.RemoveAll(s.ingestDir()); err != nil {
		s.log.Error("cannot remove the files of a restore", "folder", s.ingestDir(), "err", err) // the next Open will
	}
	return nil
}

// Abort empties the zone again. After Commit, or when another restore has begun, it does nothing.
func (r *Restore) Abort() error {
	r.s.mu.Lock()
	current := r.s.mu.restore == r
	r.s.mu.Unlock()
	if !current {
		return nil
	}
	return r.s.restart(nil)
}

// tables writes records in ascending order of their keys into tables, and begins a new one when one is large.
type tables struct {
	s      *State
	number *atomic.Int64
	w      *sstable.Writer
	path   string
	key    []byte
	done   []table
}

func (s *State) newTables(number *atomic.Int64) *tables { return &tables{s: s, number: number} }

func (t *tables) set(kind byte, key, value []byte) error {
	t.key = append(append(t.key[:0], kind), key...)
	return t.setRaw(t.key, value)
}

func (t *tables) setRaw(key, value []byte) error {
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
	fs, dir := t.s.gate, t.s.ingestDir()
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
	meta, err := w.Metadata()
	if err != nil {
		return err
	}
	t.done = append(t.done, table{t.path, meta.Size})
	return nil
}
