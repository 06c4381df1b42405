package node

import (
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/storage"
)

// restoring is where a joining node's state goes: into the state zone, then to the application.
//
//	Begin ──► Write, Write, … ──► Commit: durable, then published
//	              └──────────────► Abort: the zone is empty again
type restoring struct {
	zone *stateZone
	app  *app.App
	// known is told the parameters of the restored state before it is published, done its height after that.
	known func(app.Params)
	done  func(height int64)

	mu struct {
		sync.Mutex
		manifest *avlstar.Manifest
		restore  *storage.Restore
	}
}

var _ statesync.Target = (*restoring)(nil)

func (r *restoring) Begin(_ int64, m *avlstar.Manifest) error {
	// A state that blocks led to is never wiped for a snapshot: CometBFT only offers one to an empty node. One that came as a
	// snapshot itself, and that no block was executed on, was left by a join that a crash interrupted.
	if height := r.app.Height(); height > 0 {
		if meta, ok := r.zone.state.Meta(); ok && meta.Restored {
			r.zone.log.Info("Replacing the state of a join that was interrupted", "height", height)
			r.app.Forget()
		}
	}
	if height := r.app.Height(); height > 0 {
		return fmt.Errorf("there is a state at height %d already, no snapshot can be restored over it: to join again, stop the node and run `starlingd unsafe-reset-all`", height)
	}
	restore, err := r.zone.state.BeginRestore()
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.manifest, r.mu.restore = m, restore
	return nil
}

// current returns the restore under way.
func (r *restoring) current() (*avlstar.Manifest, *storage.Restore, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.restore == nil {
		return nil, nil, errors.New("no restore is under way")
	}
	return r.mu.manifest, r.mu.restore, nil
}

func (r *restoring) Write(k uint32, c *avlstar.Chunk) error {
	m, restore, err := r.current()
	if err != nil {
		return err
	}
	return restore.Add(storageLeaves(statesync.Leaves(m, k, c)))
}

// pagedRestoring makes the version of what was written, so that a state larger than memory can be restored.
type pagedRestoring struct{ *restoring }

var _ statesync.Builder = pagedRestoring{}

// Build implements statesync.Builder.
func (r pagedRestoring) Build() (*avlstar.Version, error) {
	m, restore, err := r.current()
	if err != nil {
		return nil, err
	}
	if err := restore.Readable(); err != nil {
		return nil, err
	}
	return r.zone.build(m.ChunkBytes, time.Now())
}

func storageLeaves(leaves iter.Seq[avlstar.Leaf]) iter.Seq[storage.Leaf] {
	return func(yield func(storage.Leaf) bool) {
		for l := range leaves {
			if !yield(storage.Leaf(l)) {
				return
			}
		}
	}
}

func (r *restoring) Commit(height int64, v *avlstar.Version) error {
	_, restore, err := r.current()
	if err != nil {
		return err
	}
	params, err := app.ReadParams(v)
	if err != nil {
		return err
	}
	if want := r.zone.chainID; want != "" && params.ChainId != want {
		return fmt.Errorf("%w: the snapshot is of chain %q, the genesis file of %q", ErrOtherChain, params.ChainId, want)
	}
	if params.SnapshotInterval > 0 && height%params.SnapshotInterval != 0 {
		return fmt.Errorf("%w: height %d, interval %d", statesync.ErrWrongInterval, height, params.SnapshotInterval)
	}
	meta, err := metaOf(height, v)
	if err != nil {
		return err
	}
	if err := restore.Commit(meta); err != nil {
		return err
	}
	r.mu.Lock()
	r.mu.restore, r.mu.manifest = nil, nil
	r.mu.Unlock()
	r.known(params)
	if err := r.app.Restored(height, v); err != nil {
		return errors.Join(err, r.zone.state.Reset())
	}
	r.done(height)
	return nil
}

func (r *restoring) Abort() error {
	_, restore, err := r.current()
	if err != nil {
		return nil //nolint:nilerr // nothing to forget
	}
	r.mu.Lock()
	r.mu.restore, r.mu.manifest = nil, nil
	r.mu.Unlock()
	return restore.Abort()
}
