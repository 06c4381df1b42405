package statesync

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
)

func newRNG(t *testing.T, seed uint64) *rand.Rand {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

// randomTree returns a tree of about keys keys, with chunks of at most chunkBytes bytes and a
// history of deletions.
func randomTree(t *testing.T, rng *rand.Rand, keys int, chunkBytes uint64) *avlstar.Version {
	t.Helper()
	v, err := avlstar.Empty(chunkBytes)
	require.NoError(t, err)
	for range 3 {
		seen := map[string]bool{}
		var changes []avlstar.Change
		for range max(keys/2, 1) {
			key := fmt.Sprintf("%0*x", 1+rng.IntN(8), rng.IntN(keys*2+1))
			if seen[key] {
				continue
			}
			seen[key] = true
			value := make([]byte, 1+rng.IntN(60))
			for i := range value {
				value[i] = byte(rng.Uint32())
			}
			if rng.IntN(5) == 0 && v.Len() > 1 {
				value = nil
			}
			changes = append(changes, avlstar.Change{Key: []byte(key), Value: value})
		}
		v = next(t, v, changes...)
	}
	if v.Len() == 0 {
		v = next(t, v, avlstar.Change{Key: []byte("k"), Value: []byte("v")})
	}
	return v
}

// next returns the version after v and releases v.
func next(t *testing.T, v *avlstar.Version, changes ...avlstar.Change) *avlstar.Version {
	t.Helper()
	defer v.Release()
	n, err := v.Apply(changes)
	require.NoError(t, err)
	return n
}

func chunksOf(t *testing.T, v *avlstar.Version) [][]byte {
	t.Helper()
	var chunks [][]byte
	for k := range v.NumChunks() {
		c, err := v.Chunk(k)
		require.NoError(t, err)
		chunks = append(chunks, c)
	}
	return chunks
}

var errDisk = errors.New("no space left on device")

// fakeTarget is an in-memory Target that checks its contract. Its faults make it fail.
type fakeTarget struct {
	t     *testing.T
	yield int // number of times that Write yields: varies the order of the pool
	fault struct {
		begin, write, commit, abort error
		writeAt                     uint32 // chunk at which Write fails
	}
	mu struct {
		sync.Mutex
		restoring bool
		manifest  *avlstar.Manifest
		leaves    map[uint32][]avlstar.Leaf
		height    int64            // committed
		version   *avlstar.Version // holds a reference
		refused   *avlstar.Version // last version that Commit failed for
		begins    int
		aborts    int
	}
}

func (f *fakeTarget) Begin(height int64, m *avlstar.Manifest) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fault.begin != nil {
		return f.fault.begin
	}
	f.mu.begins++
	f.mu.restoring, f.mu.manifest, f.mu.leaves = true, m, map[uint32][]avlstar.Leaf{}
	f.release()
	return nil
}

func (f *fakeTarget) Write(k uint32, c *avlstar.Chunk) error {
	for range f.yield {
		runtime.Gosched()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fault.write != nil && k == f.fault.writeAt {
		return f.fault.write
	}
	if !f.mu.restoring || f.mu.leaves[k] != nil {
		f.t.Errorf("write of chunk %d: restoring %v, written before %v", k, f.mu.restoring, f.mu.leaves[k] != nil)
	}
	height := f.mu.manifest.Entries[k].BoundaryHeight // of the first leaf, in the whole tree
	for l := range c.Leaves() {                       // valid during the call
		f.mu.leaves[k] = append(f.mu.leaves[k], avlstar.Leaf{Key: bytes.Clone(l.Key), Value: bytes.Clone(l.Value), Height: max(l.Height, height)})
		height = 0
	}
	return nil
}

// Commit checks that the written state matches and can be read back, as after a restart.
func (f *fakeTarget) Commit(height int64, v *avlstar.Version) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.mu.restoring {
		f.t.Error("commit outside of a restore")
	}
	if f.fault.commit != nil {
		f.mu.refused = v
		return f.fault.commit
	}
	reread, err := f.reread()
	if err != nil {
		return err
	}
	defer reread.Release()
	if reread.AppHash() != v.AppHash() {
		f.t.Error("the written state differs from the committed one")
	}
	v.Retain()
	f.mu.restoring, f.mu.height, f.mu.version = false, height, v
	return nil
}

// reread builds the tree from the written leaves. The caller holds f.mu.
func (f *fakeTarget) reread() (*avlstar.Version, error) {
	return avlstar.FromLeaves(f.mu.manifest.ChunkBytes, func(yield func(avlstar.Leaf, error) bool) {
		for k := range uint32(len(f.mu.manifest.Entries)) {
			for _, leaf := range f.mu.leaves[k] {
				if !yield(leaf, nil) {
					return
				}
			}
		}
	})
}

// fakeBuilder is a fakeTarget that builds the version itself.
type fakeBuilder struct{ *fakeTarget }

func (f fakeBuilder) Build() (*avlstar.Version, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reread()
}

// release releases the committed state. The caller holds f.mu.
func (f *fakeTarget) release() {
	if f.mu.version != nil {
		f.mu.version.Release()
	}
	f.mu.height, f.mu.version = 0, nil
}

func (f *fakeTarget) Abort() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.restoring, f.mu.leaves = false, nil
	f.mu.aborts++
	return f.fault.abort
}

func (f *fakeTarget) requireRestored(height int64, want *avlstar.Version) {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	require.NotNil(f.t, f.mu.version)
	require.Equal(f.t, height, f.mu.height)
	require.Equal(f.t, want.AppHash(), f.mu.version.AppHash())
}

func (f *fakeTarget) requireEmpty() {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	require.Nil(f.t, f.mu.version)
	require.False(f.t, f.mu.restoring)
	require.Empty(f.t, f.mu.leaves)
}

// settle waits until the pool is idle.
func (m *Manager) settle() {
	m.receiving.Lock()
	defer m.receiving.Unlock()
	s := m.receiving.session
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.mu.inFlight > 0 {
		s.mu.changed.Wait()
	}
}

const interval = 10

// serverOf returns a manager that serves v at the given heights.
func serverOf(t *testing.T, v *avlstar.Version, heights ...int64) *Manager {
	t.Helper()
	m := NewManager(Options{Interval: interval, Keep: len(heights)})
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	for _, h := range heights {
		m.Committed(h, v)
	}
	return m
}

// joiner returns a manager that restores into a fake target.
func joiner(t *testing.T, workers int) (*Manager, *fakeTarget) {
	t.Helper()
	target := &fakeTarget{t: t}
	m := NewManager(Options{Target: target, Interval: interval, Keep: 2, Workers: workers})
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m, target
}

func offerOf(t *testing.T, server *Manager) *abci.RequestOfferSnapshot {
	t.Helper()
	list, err := server.ListSnapshots(context.Background(), &abci.RequestListSnapshots{})
	require.NoError(t, err)
	require.NotEmpty(t, list.Snapshots)
	s := *list.Snapshots[0]
	return &abci.RequestOfferSnapshot{Snapshot: &s, AppHash: bytes.Clone(s.Hash)}
}

func offer(t *testing.T, m *Manager, req *abci.RequestOfferSnapshot) offerResult {
	t.Helper()
	resp, err := m.OfferSnapshot(context.Background(), req)
	require.NoError(t, err)
	return resp.Result
}

func apply(t *testing.T, m *Manager, k uint32, data []byte, sender string) *abci.ResponseApplySnapshotChunk {
	t.Helper()
	resp, err := m.ApplySnapshotChunk(context.Background(), &abci.RequestApplySnapshotChunk{Index: k, Chunk: data, Sender: sender})
	require.NoError(t, err)
	return resp
}

func load(t *testing.T, m *Manager, height uint64, format, k uint32) []byte {
	t.Helper()
	resp, err := m.LoadSnapshotChunk(context.Background(), &abci.RequestLoadSnapshotChunk{Height: height, Format: format, Chunk: k})
	require.NoError(t, err)
	return resp.Chunk
}
