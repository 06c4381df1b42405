package treestore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/storage"
)

// Target writes the state of a joining node into the state zone, and then passes it to the
// application. A join interrupted by a crash can be resumed. With a paged store it is a
// statesync.Builder, so that a state larger than memory can be restored.
type Target interface {
	statesync.Resumer
	// Unfinished returns the arguments of the last Continue of an interrupted restore; false if
	// there is none.
	Unfinished() (height int64, m *avlstar.Manifest, ok bool)
	// Replace allows the next restore to replace a state that was computed from blocks, because the
	// node catches up.
	Replace()
}

// Application receives a restored state. *app.App implements it.
type Application interface {
	// Height returns the height of its state, 0 if it has none.
	Height() int64
	// Forget drops that state.
	Forget()
	// MayExecute returns an error if the block after v needs a newer program.
	MayExecute(v *avlstar.Version) error
	// Restored publishes v, which is durable. The application retains it.
	Restored(height int64, v *avlstar.Version) error
}

// JoinOptions configure the handling of a restored state.
type JoinOptions struct {
	// Application receives the state after its parameters were checked. nil: any state is accepted.
	Application Application
	// Known is called with the parameters of the restored state before it is published, Done with
	// its height afterwards. Both may be nil.
	Known func(app.Params)
	Done  func(height int64)
}

// JoinTarget returns the target of a join.
func (s *Store) JoinTarget(o JoinOptions) Target {
	if o.Known == nil {
		o.Known = func(app.Params) {}
	}
	if o.Done == nil {
		o.Done = func(int64) {}
	}
	t := &joinTarget{target: target{store: s}, o: o}
	if !s.inMemory {
		return pagedTarget{t}
	}
	return t
}

type joinTarget struct {
	target
	o        JoinOptions
	replaces bool // see Replace; guarded by target.mu
}

// pagedTarget builds the version from the chunks on disk.
type pagedTarget struct{ *joinTarget }

var _ statesync.Builder = pagedTarget{}

// Build implements statesync.Builder.
func (t pagedTarget) Build() (*avlstar.Version, error) {
	m, err := t.readable()
	if err != nil {
		return nil, err
	}
	return t.store.build(context.Background(), m.ChunkBytes, t.store.progress(time.Now()))
}

// Begin implements statesync.Target.
func (t *joinTarget) Begin(height int64, m *avlstar.Manifest) error {
	if err := t.mayReplace(); err != nil {
		return err
	}
	return t.target.Begin(height, m)
}

// mayReplace makes room for another state. A state that was computed from blocks is never replaced
// by a snapshot, unless the node catches up, because CometBFT offers snapshots to empty nodes only.
// A restored state on which no block was executed is left over from a join that a crash
// interrupted.
func (t *joinTarget) mayReplace() error {
	if t.o.Application == nil {
		return nil
	}
	height := t.o.Application.Height()
	if height == 0 {
		return nil
	}
	t.mu.Lock()
	replaces := t.replaces
	t.mu.Unlock()
	meta, ok := t.store.zone.Meta()
	switch {
	case ok && meta.Restored:
		t.store.log.Info("Replacing the state of an interrupted join", "height", height)
	case replaces:
		t.store.log.Info("Replacing the state with a newer one", "height", height)
	default:
		return fmt.Errorf("there is already a state at height %d, which a snapshot cannot replace: to join again, stop the node and run `starlingd unsafe-reset-all`", height)
	}
	t.o.Application.Forget()
	return nil
}

// Replace implements Target.
func (t *joinTarget) Replace() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.replaces = true
}

// joinLabel returns the label of a restore that can be resumed: version:u8 ‖ height:u64be ‖
// manifest.
func joinLabel(height int64, m *avlstar.Manifest) []byte {
	return append(binary.BigEndian.AppendUint64([]byte{joinLabelVersion}, uint64(height)), m.Encode()...)
}

const joinLabelVersion = 1

// CheckInterrupted returns storage.ErrNewerFormat if the zone has an interrupted join of a newer
// program, which this program would discard.
func CheckInterrupted(zone *storage.Zone) error {
	label, ok := zone.Interrupted()
	if !ok || len(label) == 0 || label[0] <= joinLabelVersion {
		return nil
	}
	return fmt.Errorf("an interrupted join in the home folder was %w: version %d, this program knows %d: continue with the starlingd that began it, "+
		"or remove the home's data with `starlingd unsafe-reset-all` and join again", storage.ErrNewerFormat, label[0], joinLabelVersion)
}

// Unfinished implements Target.
func (t *joinTarget) Unfinished() (int64, *avlstar.Manifest, bool) { return Unfinished(t.store.zone) }

// Unfinished returns the height and the manifest of the interrupted join; false if there is none.
func Unfinished(zone *storage.Zone) (height int64, m *avlstar.Manifest, ok bool) {
	label, ok := zone.Interrupted()
	if !ok || len(label) < 9 || label[0] != joinLabelVersion {
		return 0, nil, false
	}
	m, err := avlstar.DecodeManifest(label[9:])
	if err != nil {
		return 0, nil, false
	}
	return int64(binary.BigEndian.Uint64(label[1:])), m, true
}

// Continue implements statesync.Resumer.
func (t *joinTarget) Continue(height int64, m *avlstar.Manifest) error {
	if err := t.mayReplace(); err != nil {
		return err
	}
	label := joinLabel(height, m)
	_, restore, err := t.current()
	if err != nil {
		if _, _, ok := t.Unfinished(); !ok {
			if restore, err = t.store.zone.BeginRestore(label); err != nil {
				return err
			}
			t.begun(m, restore)
			return nil
		}
		if restore, err = t.store.zone.ResumeRestore(); err != nil {
			return err
		}
	}
	if err := restore.SetLabel(label); err != nil {
		return err
	}
	// Otherwise each new target could use the space of one more state.
	if err := keepOnly(m, restore); err != nil {
		return err
	}
	t.begun(m, restore)
	return nil
}

// keepOnly removes the chunks that are not in the manifest.
func keepOnly(m *avlstar.Manifest, restore *storage.Restore) error {
	wanted := make(map[storage.RunID]bool, len(m.Entries))
	for k := range m.Entries {
		wanted[runID(&m.Entries[k])] = true
	}
	for _, id := range restore.Runs() {
		if !wanted[id] {
			if err := restore.Remove(id); err != nil {
				return err
			}
		}
	}
	return nil
}

// Stored implements statesync.Resumer.
func (t *joinTarget) Stored(k uint32) []byte {
	m, restore, err := t.current()
	if err != nil {
		return nil
	}
	records, err := restore.Read(runID(&m.Entries[k]))
	if err != nil || len(records) == 0 {
		return nil
	}
	return records
}

// Forget implements statesync.Resumer.
func (t *joinTarget) Forget(k uint32) error {
	m, restore, err := t.current()
	if err != nil {
		return err
	}
	if err := restore.Remove(runID(&m.Entries[k])); !errors.Is(err, storage.ErrNoRun) {
		return err
	}
	return nil
}

// Commit implements statesync.Target.
func (t *joinTarget) Commit(height int64, v *avlstar.Version) error {
	var params app.Params
	if t.o.Application != nil {
		if _, _, err := t.current(); err != nil {
			return err
		}
		var err error
		if params, err = t.check(height, v); err != nil {
			return err
		}
	}
	if err := t.commit(height, v); err != nil {
		return err
	}
	t.mu.Lock()
	t.replaces = false
	t.mu.Unlock()
	if t.o.Application != nil {
		t.o.Known(params)
		if err := t.o.Application.Restored(height, v); err != nil {
			return errors.Join(err, t.store.zone.Reset())
		}
	}
	t.o.Done(height)
	return nil
}

// check returns the parameters of a restored state, or an error if this node cannot use it.
func (t *joinTarget) check(height int64, v *avlstar.Version) (app.Params, error) {
	params, err := app.ReadParams(v)
	if err != nil {
		return params, err
	}
	if want := t.store.chainID; want != "" && params.ChainId != want {
		return params, fmt.Errorf("%w: the snapshot belongs to chain %q, the genesis file to %q", app.ErrOtherChain, params.ChainId, want)
	}
	if err := t.o.Application.MayExecute(v); err != nil {
		// CometBFT only learns that state sync was aborted, and would try again.
		t.store.failed(err)
		return params, err
	}
	if params.SnapshotInterval > 0 && height%params.SnapshotInterval != 0 {
		return params, fmt.Errorf("%w: height %d, interval %d", statesync.ErrWrongInterval, height, params.SnapshotInterval)
	}
	return params, nil
}
