package treestore

import (
	"encoding/hex"
	"errors"
	"fmt"
	"sync"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/storage"
)

// target writes a restored state into the state zone. Each chunk becomes a run.
//
//	Begin ──► Write, Write, … ──► Build, if paged ──► commit: durable
//	              └─────────────────────────────────► Abort: the zone is empty again
type target struct {
	store *Store

	mu struct {
		sync.Mutex
		manifest *avlstar.Manifest
		restore  *storage.Restore // the current restore; nil: none
	}
}

// runID returns the id of the records of a chunk. It depends on the root of the chunk and on the
// height of its first leaf, not on its position.
func runID(e *avlstar.Entry) storage.RunID {
	return storage.RunID(fmt.Sprintf("%s-%d", hex.EncodeToString(e.Root.Hash[:]), e.BoundaryHeight))
}

func (t *target) begun(m *avlstar.Manifest, restore *storage.Restore) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.manifest, t.mu.restore = m, restore
}

// Begin implements statesync.Target. The restore has no label, so it cannot be resumed.
func (t *target) Begin(_ int64, m *avlstar.Manifest) error {
	restore, err := t.store.zone.BeginRestore(nil)
	if err != nil {
		return err
	}
	t.begun(m, restore)
	return nil
}

// current returns the current restore.
func (t *target) current() (*avlstar.Manifest, *storage.Restore, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.restore == nil {
		return nil, nil, errors.New("no restore is under way")
	}
	return t.mu.manifest, t.mu.restore, nil
}

// Write implements statesync.Target. The Restorer knows which chunks are written; a second Write of
// a chunk fails with storage.ErrRunExists.
func (t *target) Write(k uint32, c *avlstar.Chunk) error {
	m, restore, err := t.current()
	if err != nil {
		return err
	}
	entry := &m.Entries[k]
	return restore.Add(runID(entry), entry.BoundaryHeight, c.Bytes())
}

// readable ends writing, so that the zone can be read, and returns the manifest.
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
	t.store.begin(height, v, false)
	t.over()
	return nil
}

// over ends the current restore in target's view, and returns it.
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
