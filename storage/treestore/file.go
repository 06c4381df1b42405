package treestore

import (
	"context"
	"sync/atomic"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync"
)

// FileTarget is the target of a snapshot file. Unlike the target of a join, it accepts any height,
// because a file cannot make a node wait for a height that no peer has. An interrupted import is
// not resumed, because the file still exists.
type FileTarget struct {
	target
	ctx      context.Context
	check    func(app.Params) error
	progress func(done, total uint64)
	keys     atomic.Uint64 // number of keys written
}

var _ statesync.Builder = (*FileTarget)(nil)

// FileTarget returns a target whose Commit checks the parameters of the state with check. Its Build
// reads the written data back, ends with ctx, and calls progress with the number of keys read. The
// store must have a cache.
func (s *Store) FileTarget(ctx context.Context, check func(app.Params) error, progress func(done, total uint64)) *FileTarget {
	return &FileTarget{target: target{store: s}, ctx: ctx, check: check, progress: progress}
}

// Write implements statesync.Target.
func (t *FileTarget) Write(k uint32, c *avlstar.Chunk) error {
	t.keys.Add(c.Len())
	return t.target.Write(k, c)
}

// Build implements statesync.Builder. It builds the tree from the written data. So a state larger
// than memory can be imported, and the data on disk is known to be what was proved.
func (t *FileTarget) Build() (*avlstar.Version, error) {
	m, err := t.readable()
	if err != nil {
		return nil, err
	}
	return t.store.build(t.ctx, m.ChunkBytes, func(done uint64) { t.progress(done, t.keys.Load()) })
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
