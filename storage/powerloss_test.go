package storage

import (
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar/record"
)

// powerLoss returns the contents of the disk after a loss of everything unsynced.
func powerLoss(fs *vfs.MemFS) *vfs.MemFS { return fs.CrashClone(vfs.CrashCloneCfg{}) }

// unsyncedRuns does not sync files of runs: they are only in the memory of the operating system.
type unsyncedRuns struct{ vfs.FS }

func (u unsyncedRuns) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := u.FS.Create(name, category)
	if err == nil && strings.HasSuffix(name, runsSuffix) {
		return unsyncedFile{file}, nil
	}
	return file, err
}

type unsyncedFile struct{ vfs.File }

func (unsyncedFile) Sync() error                { return nil }
func (unsyncedFile) SyncData() error            { return nil }
func (unsyncedFile) SyncTo(int64) (bool, error) { return false, nil }

// TestPinSurvivesAPowerLoss: a pin confirmed by Flush is complete after a power loss.
func TestPinSurvivesAPowerLoss(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s := openZone(t, fs)
	rng, m := newRNG(1), emptyModel()
	for height := int64(1); height <= 6; height++ {
		b := randomBlock(rng, m, height)
		if height == 3 || height == 6 {
			pinWith(&b, withPin("description"))
		}
		m = m.apply(b)
		write(t, s, b)
		if height%3 > 0 {
			continue
		}
		after := openZone(t, powerLoss(fs))
		require.Len(t, after.Pins(), int(height/3))
		require.Equal(t, PinInfo{height, []byte("description")}, after.Pins()[height/3-1])
		require.Equal(t, m.records(nil, nil), pinRecords(t, after, height))
	}
}

// TestPinAboveTheState: a pin above the height of the state, even by one, does not belong to this
// state, and is removed.
func TestPinAboveTheState(t *testing.T) {
	fs := vfs.NewMem()
	s := openZone(t, fs)
	b := blockOf(5, "key", "value")
	pinWith(&b, withPin(""))
	write(t, s, b)
	require.NoError(t, s.Close())
	for _, height := range []int64{6, 7} {
		_, err := vfs.Clone(fs, fs, s.pinPath("", 5), s.pinPath("", height))
		require.NoError(t, err)
		require.NoError(t, fs.Remove(fs.PathJoin(s.pinPath("", height), pinDescription)))
		require.NoError(t, writeSynced(fs, fs.PathJoin(s.pinPath("", height), pinDescription), sealPin(pinVersion, height, nil)))
	}
	opts := testOptions(fs)
	opts.ReadOnly = true
	offline, err := Open("zone", opts)
	require.NoError(t, err)
	require.Len(t, offline.Pins(), 1)
	require.Len(t, offline.UnusablePins(), 2)
	for _, err := range offline.UnusablePins() {
		require.ErrorIs(t, err, ErrCorrupt)
		require.ErrorContains(t, err, "the state is at height 5: remove that folder")
	}
	require.NoError(t, offline.Close())
	s = openZone(t, fs)
	require.Equal(t, []PinInfo{{5, []byte{}}}, s.Pins())
	require.Empty(t, s.UnusablePins())
	names, err := fs.List(s.opts.PinDir)
	require.NoError(t, err)
	require.Equal(t, []string{"5"}, names)
}

// TestPowerLossWhileARestoreIsRead: after Readable, a state larger than memory is read back, which
// takes minutes. Because the journal is synced, a power loss meanwhile loses no run.
func TestPowerLossWhileARestoreIsRead(t *testing.T) {
	fs := vfs.NewCrashableMem()
	want := restoredSmall()
	runs := testRuns(want, 10)
	ids := idsOf(runs)
	// A kill before any file of runs is synced.
	s, err := Open("zone", testOptions(unsyncedRuns{fs}))
	require.NoError(t, err)
	r, err := s.BeginRestore([]byte("label"))
	require.NoError(t, err)
	addRuns(t, r, runs, ids[:len(ids)/2]...)
	require.NoError(t, s.Close())

	s = openZone(t, fs)
	r, err = s.ResumeRestore()
	require.NoError(t, err)
	addRuns(t, r, runs, ids[len(ids)/2:]...)
	require.NoError(t, r.Readable())

	after := openZone(t, powerLoss(fs))
	requireInterrupted(t, after, "label")
	r, err = after.ResumeRestore()
	require.NoError(t, err)
	requireRuns(t, r, runs)
	require.NoError(t, r.Commit(want.meta))
	want.requireIn(t, after)
}

// TestSwappedFiles: a complete file of the length listed in the journal, but with other contents.
func TestSwappedFiles(t *testing.T) {
	fs := vfs.NewMem()
	s := openZone(t, fs)
	r, err := s.BeginRestore([]byte("label"))
	require.NoError(t, err)
	leaf := func(key, value string) []record.Leaf {
		return []record.Leaf{{Key: []byte(key), Value: []byte(strings.Repeat(value, 100))}}
	}
	require.NoError(t, addLeaves(r, "a", leaf("key a", "1")))
	r.completeLast()
	require.NoError(t, addLeaves(r, "b", leaf("key b", "2")))
	r.Close()
	a, b := s.runsPath(1), s.runsPath(2)
	require.NoError(t, fs.Rename(a, "aside"))
	require.NoError(t, fs.Rename(b, a))
	require.NoError(t, fs.Rename("aside", b))
	r, err = s.ResumeRestore()
	require.NoError(t, err)
	require.Equal(t, []RunID{"a", "b"}, r.Runs())
	for _, id := range r.Runs() {
		_, err = readRun(r, id)
		require.ErrorIs(t, err, ErrCorrupt, id)
		require.ErrorContains(t, err, "wrong checksum")
	}
}
