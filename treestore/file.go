package treestore

import (
	"context"
	"sync/atomic"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync"
)

// FileTarget is where the state of a snapshot file goes. Unlike a joining node's target it takes
// any height, since no liar can make a node wait for one that nobody else has. An import that was
// interrupted is not resumed: the file is still there.
type FileTarget struct {
	target
	ctx      context.Context
	check    func(app.Params) error
	progress func(done, total uint64)
	keys     atomic.Uint64 // written
}

var _ statesync.Builder = (*FileTarget)(nil)

// FileTarget returns a target whose Commit checks the parameters of the state with check. Ending
// ctx ends its Build, which reads back what was written; progress is told how many of the keys were
// read. The store must have a cache.
func (s *Store) FileTarget(ctx context.Context, check func(app.Params) error, progress func(done, total uint64)) *FileTarget {
	return &FileTarget{target: target{store: s}, ctx: ctx, check: check, progress: progress}
}

// Write implements statesync.Target.
func (t *FileTarget) Write(k uint32, c *avlstar.Chunk) error {
	t.keys.Add(c.Len())
	return t.target.Write(k, c)
}

// Build implements statesync.Builder. It reads back what was written, so that a state larger than
// memory can be imported, and what is on the disk is what was proved.
func (t *FileTarget) Build() (*avlstar.Version, error) {
	m, err := t.readable()
	if err != nil {
		return nil, err
	}
	zone, pages := t.store.zone, t.store.pages
	v, err := assemble(t.ctx, m.ChunkBytes, pages.paging(), zone.Scan(), func(done uint64) { t.progress(done, t.keys.Load()) })
	if err != nil {
		return nil, t.store.unlikeStored(err)
	}
	pages.account(v)
	return v, nil
}

// Commit implements statesync.Target.
func (t *FileTarget) Commit(height int64, v *avlstar.Version) error {
	params, err := app.ReadParams(v)
	if err == nil {
		err = t.check(params)
	}
	if err != nil {
		return err
	}
	return t.commit(height, v)
}
