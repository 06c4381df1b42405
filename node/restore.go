package node

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/fastsync"
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
		replaces bool                   // a state that blocks led to may be replaced: this node catches up
		runs     map[storage.RunID]bool // that an unfinished restore has left
	}
}

var _ fastsync.Target = (*restoring)(nil)

func (r *restoring) Begin(_ int64, m *avlstar.Manifest) error {
	if err := r.mayReplace(); err != nil {
		return err
	}
	restore, err := r.zone.state.BeginRestore(nil)
	if err != nil {
		return err
	}
	r.begun(m, restore)
	return nil
}

// mayReplace makes room for another state. One that blocks led to is never wiped for a snapshot, unless the node catches up: CometBFT only
// offers one to an empty node. One that came as a snapshot itself, and that no block was executed on, was left by a join that a crash
// interrupted.
func (r *restoring) mayReplace() error {
	height := r.app.Height()
	if height == 0 {
		return nil
	}
	r.mu.Lock()
	replaces := r.mu.replaces
	r.mu.Unlock()
	meta, ok := r.zone.state.Meta()
	switch {
	case ok && meta.Restored:
		r.zone.log.Info("Replacing the state of a join that was interrupted", "height", height)
	case replaces:
		r.zone.log.Info("Replacing the state by a newer one", "height", height)
	default:
		return fmt.Errorf("there is a state at height %d already, no snapshot can be restored over it: to join again, stop the node and run `starlingd unsafe-reset-all`", height)
	}
	r.app.Forget()
	return nil
}

// replace lets the next restore replace a state that blocks led to.
func (r *restoring) replace() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.replaces = true
}

func (r *restoring) begun(m *avlstar.Manifest, restore *storage.Restore) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.manifest, r.mu.restore = m, restore
	r.mu.runs = map[storage.RunID]bool{}
	for _, id := range restore.Runs() {
		r.mu.runs[id] = true
	}
}

// restoreLabel is what the zone keeps of a restore that can be resumed: version:u8 ‖ height:u64be ‖ manifest.
func restoreLabel(height int64, m *avlstar.Manifest) []byte {
	return append(binary.BigEndian.AppendUint64([]byte{restoreVersion}, uint64(height)), m.Encode()...)
}

const restoreVersion = 1

// checkInterrupted refuses a restore that a newer program has left: it would be lost.
func checkInterrupted(state *storage.State) error {
	label, ok := state.Interrupted()
	if !ok || len(label) == 0 || label[0] <= restoreVersion {
		return nil
	}
	return fmt.Errorf("an interrupted join in the home folder was %w: version %d, this program knows %d: go on with the starlingd that began it, "+
		"or remove the home's data with `starlingd unsafe-reset-all` and join again", storage.ErrNewerFormat, label[0], restoreVersion)
}

// Unfinished implements fastsync.Target.
func (r *restoring) Unfinished() (int64, *avlstar.Manifest, bool) {
	return unfinishedJoin(r.zone.state)
}

// unfinishedJoin reads the label of a restore that was interrupted.
func unfinishedJoin(state *storage.State) (int64, *avlstar.Manifest, bool) {
	label, ok := state.Interrupted()
	if !ok || len(label) < 9 || label[0] != restoreVersion {
		return 0, nil, false
	}
	m, err := avlstar.DecodeManifest(label[9:])
	if err != nil {
		return 0, nil, false
	}
	return int64(binary.BigEndian.Uint64(label[1:])), m, true
}

// Continue implements statesync.Resumer.
func (r *restoring) Continue(height int64, m *avlstar.Manifest) error {
	if err := r.mayReplace(); err != nil {
		return err
	}
	r.mu.Lock()
	restore := r.mu.restore
	r.mu.Unlock()
	label := restoreLabel(height, m)
	var err error
	if restore == nil {
		if _, _, ok := r.Unfinished(); !ok {
			if restore, err = r.zone.state.BeginRestore(label); err != nil {
				return err
			}
			r.begun(m, restore)
			return nil
		}
		if restore, err = r.zone.state.ResumeRestore(); err != nil {
			return err
		}
	}
	if err := restore.SetLabel(label); err != nil {
		return err
	}
	if err := r.keepOnly(m, restore); err != nil { // else each retarget could cost the room of one more state
		return err
	}
	r.begun(m, restore)
	return nil
}

// runID names the records of a chunk: they are the same wherever it lies, but for the height of the first.
func runID(e *avlstar.Entry) storage.RunID {
	return storage.RunID(fmt.Sprintf("%s-%d", hex.EncodeToString(e.Root.Hash[:]), e.BoundaryHeight))
}

// Stored implements statesync.Resumer.
func (r *restoring) Stored(k uint32) []byte {
	r.mu.Lock()
	m, restore := r.mu.manifest, r.mu.restore
	entry := &m.Entries[k]
	id := runID(entry)
	there := r.mu.runs[id]
	r.mu.Unlock()
	if !there {
		return nil
	}
	data := make([]byte, 0, entry.Root.Bytes)
	for l, err := range restore.Read(id) {
		if err != nil || uint64(len(data))+avlstar.RecordBytes(len(l.Key), len(l.Value)) > entry.Root.Bytes {
			return nil // Write replaces it
		}
		height := l.Height
		if len(data) == 0 {
			height = 0 // as in every chunk
		}
		data = append(data, height)
		data = append(binary.AppendUvarint(data, uint64(len(l.Key))), l.Key...)
		data = append(binary.AppendUvarint(data, uint64(len(l.Value))), l.Value...)
	}
	return data
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
	id := runID(&m.Entries[k])
	r.mu.Lock()
	there := r.mu.runs[id]
	delete(r.mu.runs, id)
	r.mu.Unlock()
	if there { // damaged, else nobody had asked for the chunk
		if err := restore.Remove(id); err != nil {
			return err
		}
	}
	if err := restore.Add(id, storageLeaves(statesync.Leaves(m, k, c))); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.restore == restore {
		r.mu.runs[id] = true
	}
	return nil
}

// keepOnly removes what an earlier manifest has left.
func (r *restoring) keepOnly(m *avlstar.Manifest, restore *storage.Restore) error {
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
	if err := r.app.MayExecute(v); err != nil {
		if r.zone.failed != nil {
			r.zone.failed(err) // CometBFT hears only that its state sync is aborted, and would be told to try again
		}
		return err
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
	r.mu.restore, r.mu.manifest, r.mu.replaces = nil, nil, false
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
