package treestore

import (
	"encoding/hex"
	"errors"
	"fmt"
	"sync"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/storage"
)

// target is where a restored state goes: each chunk becomes a run in the state zone.
//
//	Begin ──► Write, Write, … ──► Build, if paged ──► commit: durable
//	              └─────────────────────────────────► Abort: the zone is empty again
type target struct {
	store *Store

	mu struct {
		sync.Mutex
		manifest *avlstar.Manifest
		restore  *storage.Restore // the one under way; nil: none
	}
}

// runID names the records of a chunk: they are the same wherever it lies, but for the height of the
// first.
func runID(e *avlstar.Entry) storage.RunID {
	return storage.RunID(fmt.Sprintf("%s-%d", hex.EncodeToString(e.Root.Hash[:]), e.BoundaryHeight))
}

func (t *target) begun(m *avlstar.Manifest, restore *storage.Restore) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.manifest, t.mu.restore = m, restore
}

// Begin implements statesync.Target. The restore has no label, so that it cannot be resumed.
func (t *target) Begin(_ int64, m *avlstar.Manifest) error {
	restore, err := t.store.zone.BeginRestore(nil)
	if err != nil {
		return err
	}
	t.begun(m, restore)
	return nil
}

// current returns the restore under way.
func (t *target) current() (*avlstar.Manifest, *storage.Restore, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.restore == nil {
		return nil, nil, errors.New("no restore is under way")
	}
	return t.mu.manifest, t.mu.restore, nil
}

// Write implements statesync.Target. It keeps no account of the chunks, the Restorer does: a second
// Write of a chunk is storage.ErrRunExists.
func (t *target) Write(k uint32, c *avlstar.Chunk) error {
	m, restore, err := t.current()
	if err != nil {
		return err
	}
	entry := &m.Entries[k]
	return restore.Add(runID(entry), entry.BoundaryHeight, c.Bytes())
}

// readable ends the writing, so that the zone can be read.
func (t *target) readable() (*avlstar.Manifest, error) {
	m, restore, err := t.current()
	if err != nil {
		return nil, err
	}
	return m, restore.Readable()
}

// commit makes v durable.
func (t *target) commit(height int64, v *avlstar.Version) error {
	_, restore, err := t.current()
	if err != nil {
		return err
	}
	meta, err := t.store.meta(height, v)
	if err != nil {
		return err
	}
	if err := restore.Commit(meta); err != nil {
		return err
	}
	t.store.begin(height, v)
	t.over()
	return nil
}

// over forgets the restore that was under way, and returns it.
func (t *target) over() *storage.Restore {
	t.mu.Lock()
	defer t.mu.Unlock()
	restore := t.mu.restore
	t.mu.restore, t.mu.manifest = nil, nil
	return restore
}

// Abort implements statesync.Target.
func (t *target) Abort() error {
	if restore := t.over(); restore != nil {
		return restore.Abort()
	}
	return nil
}
