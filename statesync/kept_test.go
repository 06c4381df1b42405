package statesync

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync/scheduler"
)

// rewriting commits blocks that replace most of the state, while a peer asks for every snapshot. It
// returns the most that snapshots kept after a block.
func rewriting(t *testing.T, m *Manager, blocks int64) (most Kept) {
	t.Helper()
	v := randomTree(t, newRNG(t, 30), 300, 300)
	for height := int64(1); height <= blocks; height++ {
		var changes []avlstar.Change
		for k := range 100 {
			changes = append(changes, avlstar.Change{Key: fmt.Appendf(nil, "key %03d", k), Value: fmt.Appendf(nil, "%0300d", height)})
		}
		v = next(t, v, changes...)
		m.Committed(height, v)
		_, err := m.ListSnapshots(context.Background(), &abci.RequestListSnapshots{})
		require.NoError(t, err)
		kept, _ := m.Kept()
		most = Kept{max(most.Memory, kept.Memory), max(most.Disk, kept.Disk), max(most.Manifests, kept.Manifests)}
	}
	v.Release()
	return most
}

// Peers that ask for every snapshot make a node keep 32 of them. Options.MaxBytes limits what these
// keep in memory and on disk, the oldest go first, and the newest is always served.
func TestSnapshotsAreBoundedInBytes(t *testing.T) {
	const blocks, each = 40, 1 << 20
	disk := map[int64]uint64{}
	for height := range int64(blocks) {
		disk[height+1] = each
	}
	manager := func(most int64) *Manager {
		m := NewManager(Options{Interval: 1, Keep: 2, MaxBytes: most, OnDisk: func() map[int64]uint64 { return disk }})
		t.Cleanup(func() { require.NoError(t, m.Close()) })
		return m
	}
	unbounded := rewriting(t, manager(math.MaxInt64), blocks)
	require.EqualValues(t, 34*each, unbounded.Disk)

	m := manager(unbounded.Memory / 4)
	disk = nil
	bounded := rewriting(t, m, blocks)
	require.LessOrEqual(t, bounded.Memory, unbounded.Memory/4)
	require.Greater(t, bounded.Memory, unbounded.Memory/8, "not fewer than necessary")
	heights := m.Heights()
	require.EqualValues(t, blocks, heights[len(heights)-1])
	for i := 1; i < len(heights); i++ {
		require.Equal(t, heights[i-1]+1, heights[i], "the oldest went first")
	}

	disk = map[int64]uint64{39: 1 << 40, 40: 1 << 40} // whatever it takes
	m.serving.Lock()
	m.drop()
	m.serving.Unlock()
	require.Equal(t, []int64{40}, m.Heights(), "the newest stays")

	m = manager(3 * each)
	disk = map[int64]uint64{1: each, 2: each, 3: each, 4: each}
	rewriting(t, m, 4)
	require.Equal(t, []int64{2, 3, 4}, m.Heights())
	kept, limits := m.Kept()
	require.EqualValues(t, 3*each, kept.Disk)
	require.EqualValues(t, 3*each, limits.Disk)

	m = manager(0)
	rewriting(t, m, 1)
	_, limits = m.Kept()
	require.EqualValues(t, MinKept, limits.Memory, "a small state")
	m.serving.state = 1 << 40
	_, limits = m.Kept()
	require.EqualValues(t, 1<<40, limits.Disk, "as much as the state")
}

// Parts of snapshots are bounded in the same way, by what OnDisk says when Measured is called.
func TestPartsAreBoundedInBytes(t *testing.T) {
	disk := map[int64]uint64{}
	v := randomTree(t, newRNG(t, 32), 50, 300)
	description, err := EncodePin(v)
	require.NoError(t, err)
	m := NewManager(Options{Interval: 10, Keep: 3, OnDisk: func() map[int64]uint64 { return disk }})
	defer m.Close()
	for _, height := range []int64{10, 20, 30} {
		require.NoError(t, m.AddPart(height, description, []scheduler.Span{{From: 0, To: 1}}, closer{}))
	}
	disk = map[int64]uint64{10: 1, 20: 1, 30: 2 * MinKept}
	m.Measured(2*MinKept + 2)
	require.Len(t, m.Parts(), 3, "as much as the state")
	m.Measured(2*MinKept + 1)
	require.Len(t, m.Parts(), 2)
	m.Measured(0)
	require.Equal(t, []int64{30}, m.Held(), "the newest stays")
}

// manifests are a source with a large manifest.
type manifests struct {
	source
	bytes uint64
}

func (s manifests) kept() (tree, manifest uint64) { return 0, s.bytes }
func (s manifests) release()                      {}

// Manifests of many chunks have a limit of their own.
func TestManifestsAreBoundedInBytes(t *testing.T) {
	m := NewManager(Options{Interval: 1, Keep: 10, now: func() time.Time { return time.Unix(1, 0) }})
	m.serving.Lock()
	for height := int64(1); height <= 10; height++ {
		m.serving.pins = append(m.serving.pins, &pin{height: height, source: manifests{bytes: MaxManifestBytes / 4}})
	}
	require.EqualValues(t, 10*MaxManifestBytes/4, m.kept().Manifests)
	m.drop()
	m.serving.Unlock()
	require.Equal(t, []int64{7, 8, 9, 10}, m.Heights())
	kept, limits := m.Kept()
	require.Equal(t, limits.Manifests, kept.Manifests)
}

// What a manifest takes is not less than its length, in memory, on disk, or of a part.
func TestKeptManifests(t *testing.T) {
	v := randomTree(t, newRNG(t, 31), 500, 300)
	m := NewManager(Options{Interval: 10, Keep: 3})
	defer m.Close()
	m.Committed(10, v)
	inMemory, _ := m.Kept()
	require.Greater(t, v.NumChunks(), uint32(10))
	require.Greater(t, inMemory.Manifests, int64(len(v.Manifest().Encode())))
	description, err := EncodePin(v)
	require.NoError(t, err)
	require.NoError(t, m.AddPart(20, description, []scheduler.Span{{From: 0, To: 1}}, closer{}))
	both, _ := m.Kept()
	require.Greater(t, both.Manifests-inMemory.Manifests, int64(len(description)))
}

// closer is a Pin that is not read.
type closer struct{ Pin }

func (closer) Close() error { return nil }
