package treestore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/storage"
)

// Target is where a joining node's state goes: into the state zone, then to the application. A join
// that a crash interrupts can be resumed. Where the store is paged, it is a statesync.Builder, so
// that a state larger than memory can be restored.
type Target interface {
	statesync.Resumer
	// Unfinished returns what Continue was told last by a restore that was interrupted; false where
	// there is none.
	Unfinished() (height int64, m *avlstar.Manifest, ok bool)
	// Replace lets the next restore replace a state that blocks led to: the node catches up.
	Replace()
}

// Application takes a restored state. *app.App does.
type Application interface {
	// Height is that of the state it has, 0 where it has none.
	Height() int64
	// Forget drops that state.
	Forget()
	// MayExecute returns an error if the block after v is for a newer program.
	MayExecute(v *avlstar.Version) error
	// Restored publishes v, which is durable; the application retains it.
	Restored(height int64, v *avlstar.Version) error
}

// JoinOptions say who hears of a restored state.
type JoinOptions struct {
	// Application is who gets the state, after its parameters were checked; nil: nobody, and any
	// state will do.
	Application Application
	// Known is told the parameters of the restored state before it is published, Done its height
	// after that; nil: nobody.
	Known func(app.Params)
	Done  func(height int64)
}

// JoinTarget returns where a join puts the state.
func (s *Store) JoinTarget(o JoinOptions) Target {
	if o.Known == nil {
		o.Known = func(app.Params) {}
	}
	if o.Done == nil {
		o.Done = func(int64) {}
	}
	t := &joinTarget{target: target{store: s}, o: o}
	if s.pages != nil {
		return pagedTarget{t}
	}
	return t
}

type joinTarget struct {
	target
	o        JoinOptions
	replaces bool // see Replace; guarded by target.mu
}

// pagedTarget makes the version of what was written.
type pagedTarget struct{ *joinTarget }

var _ statesync.Builder = pagedTarget{}

// Build implements statesync.Builder.
func (t pagedTarget) Build() (*avlstar.Version, error) {
	m, err := t.readable()
	if err != nil {
		return nil, err
	}
	return t.store.build(m.ChunkBytes, time.Now())
}

// Begin implements statesync.Target.
func (t *joinTarget) Begin(height int64, m *avlstar.Manifest) error {
	if err := t.mayReplace(); err != nil {
		return err
	}
	return t.target.Begin(height, m)
}

// mayReplace makes room for another state. One that blocks led to is never wiped for a snapshot,
// unless the node catches up: CometBFT only offers one to an empty node. One that came as a
// snapshot itself, and that no block was executed on, was left by a join that a crash interrupted.
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
		t.store.log.Info("Replacing the state of a join that was interrupted", "height", height)
	case replaces:
		t.store.log.Info("Replacing the state by a newer one", "height", height)
	default:
		return fmt.Errorf("there is a state at height %d already, no snapshot can be restored over it: to join again, stop the node and run `starlingd unsafe-reset-all`", height)
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

// joinLabel is what the zone keeps of a restore that can be resumed: version:u8 ‖ height:u64be ‖
// manifest.
func joinLabel(height int64, m *avlstar.Manifest) []byte {
	return append(binary.BigEndian.AppendUint64([]byte{joinLabelVersion}, uint64(height)), m.Encode()...)
}

const joinLabelVersion = 1

// CheckInterrupted refuses a zone with a join that a newer program began and that was interrupted:
// it would be lost. The error is storage.ErrNewerFormat.
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

// Unfinished returns the height and the manifest of the join that was interrupted; false where
// there is none.
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
	// else each retarget could cost the space of one more state
	if err := keepOnly(m, restore); err != nil {
		return err
	}
	t.begun(m, restore)
	return nil
}

// keepOnly removes what an earlier manifest has left.
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

// check reads the parameters of a state that is to become this node's.
func (t *joinTarget) check(height int64, v *avlstar.Version) (app.Params, error) {
	params, err := app.ReadParams(v)
	if err != nil {
		return params, err
	}
	if want := t.store.chainID; want != "" && params.ChainId != want {
		return params, fmt.Errorf("%w: the snapshot is of chain %q, the genesis file of %q", app.ErrOtherChain, params.ChainId, want)
	}
	if err := t.o.Application.MayExecute(v); err != nil {
		// CometBFT hears only that its state sync is aborted, and would be told to try again
		t.store.failed(err)
		return params, err
	}
	if params.SnapshotInterval > 0 && height%params.SnapshotInterval != 0 {
		return params, fmt.Errorf("%w: height %d, interval %d", statesync.ErrWrongInterval, height, params.SnapshotInterval)
	}
	return params, nil
}
