package storage

import (
	"errors"
	"fmt"
	"iter"

	"github.com/cockroachdb/pebble/v2"
)

// restoreBatchBytes bounds what a restore holds in memory for each Add under way.
const restoreBatchBytes = 4 << 20

// Restore writes a whole new state piece by piece. Until Commit returns, the zone is empty for everybody, also after a crash.
type Restore struct{ s *State }

// BeginRestore empties the zone, durably, and begins to restore. A restore that was under way is over.
func (s *State) BeginRestore() (*Restore, error) {
	return s.restart(&Restore{s})
}

func (r *Restore) over() error {
	return fmt.Errorf("state folder %s: this restore is over: %w", r.s.dir, ErrClosed)
}

// Add writes leaves with their heights. It may be called concurrently, in any order of keys; what it wrote is durable once
// Commit has returned.
func (r *Restore) Add(leaves iter.Seq[Leaf]) error {
	// Held for reading all along: Abort, Reset and Commit wait, so that nothing arrives after them.
	r.s.mu.RLock()
	defer r.s.mu.RUnlock()
	if r.s.mu.restore != r {
		return r.over()
	}
	batch := r.s.db.NewBatch()
	defer func() { batch.Close() }()
	var key []byte
	for leaf := range leaves {
		err := batch.Set(diskKey(&key, kindLeaf, leaf.Key), leaf.Value, nil)
		if err == nil && leaf.Height > 0 {
			err = setHeight(batch, &key, Height{leaf.Key, leaf.Height})
		}
		if err == nil && batch.Len() >= restoreBatchBytes {
			err = errors.Join(batch.Commit(pebble.NoSync), batch.Close())
			batch = r.s.db.NewBatch()
		}
		if err != nil {
			return fmt.Errorf("state folder %s: restore: %w", r.s.dir, err)
		}
	}
	if batch.Empty() {
		return nil
	}
	if err := batch.Commit(pebble.NoSync); err != nil {
		return fmt.Errorf("state folder %s: restore: %w", r.s.dir, err)
	}
	return nil
}

// Commit makes the restored state the state of the zone, durably. Meta is written last, and the log of writes is one sequence,
// so a meta that is there after a crash has all leaves before it.
func (r *Restore) Commit(m Meta) error {
	if err := m.validate(); err != nil {
		return fmt.Errorf("state folder %s: restore: %w", r.s.dir, err)
	}
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	if r.s.mu.restore != r {
		return r.over()
	}
	batch := r.s.db.NewBatch()
	defer batch.Close()
	m.Restored = true
	if err := r.s.commitMeta(batch, m); err != nil {
		return err
	}
	r.s.mu.restore = nil
	return nil
}

// Abort empties the zone again. After Commit, or when another restore has begun, it does nothing.
func (r *Restore) Abort() error {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	if r.s.mu.restore != r {
		return nil
	}
	if err := r.s.wipe(); err != nil {
		return err
	}
	r.s.mu.restore = nil
	return nil
}
