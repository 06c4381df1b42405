package storage

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/internal/crc32c"
)

// The footer of a table, as written by internal/rowtable.
const (
	tableMagic  = "\xf0\x9f\xaa\xb3\xf0\x9f\xaa\xb3"
	footerBytes = 53
)

// restoredSmall is like restored, with small values of which many fit into a block.
func restoredSmall() model {
	m := restored()
	for key := range m.leaves {
		m.leaves[key] = strings.Repeat(key, 40)
	}
	return m
}

// testRuns splits a state into runs.
func testRuns(m model, each int) map[RunID][]record.Leaf {
	runs := map[RunID][]record.Leaf{}
	for piece := range slices.Chunk(m.list(), each) {
		runs[RunID(fmt.Sprintf("run %04d", len(runs)))] = piece
	}
	return runs
}

func idsOf[V any](runs map[RunID]V) []RunID {
	ids := []RunID{}
	for id := range runs {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// addLeaves adds a run. The height in its first record does not matter.
func addLeaves(r *Restore, id RunID, leaves []record.Leaf) error {
	var records []byte
	height := uint8(0)
	for i, l := range leaves {
		if i == 0 {
			height, l.Height = l.Height, 77
		}
		records = record.Append(records, l)
	}
	return r.Add(id, height, records)
}

func addRuns(t *testing.T, r *Restore, runs map[RunID][]record.Leaf, ids ...RunID) {
	t.Helper()
	for _, id := range ids {
		require.NoError(t, addLeaves(r, id, runs[id]))
	}
}

func readRun(r *Restore, id RunID) ([]record.Leaf, error) {
	records, err := r.Read(id)
	if err != nil {
		return nil, err
	}
	var leaves []record.Leaf
	for len(records) > 0 {
		var l record.Leaf
		if l, records, err = record.Decode(records); err != nil {
			return nil, err
		}
		leaves = append(leaves, l)
	}
	if len(leaves) > 0 {
		r.mu.Lock()
		leaves[0].Height = r.mu.runs[id].height
		r.mu.Unlock()
	}
	return leaves, nil
}

func requireRuns(t *testing.T, r *Restore, want map[RunID][]record.Leaf) {
	t.Helper()
	require.Equal(t, idsOf(want), append([]RunID{}, r.Runs()...))
	for id, leaves := range want {
		got, err := readRun(r, id)
		require.NoError(t, err)
		require.Equal(t, leaves, got)
	}
}

func requireInterrupted(t *testing.T, s *Zone, label string) {
	t.Helper()
	got, ok := s.Interrupted()
	require.True(t, ok)
	require.Equal(t, label, string(got))
	_, ok = s.Meta()
	require.False(t, ok)
	require.Empty(t, scanAll(t, s))
}

func requireNoRestore(t *testing.T, s *Zone) {
	t.Helper()
	_, ok := s.Interrupted()
	require.False(t, ok)
	_, err := s.ResumeRestore()
	require.ErrorIs(t, err, ErrNoRestore)
}

// requireNoFolder requires that no file of a settled restore remains.
func requireNoFolder(t *testing.T, s *Zone, fs vfs.FS) {
	t.Helper()
	<-s.Settled()
	names, err := fs.List("zone")
	require.NoError(t, err)
	for _, name := range names {
		require.NotContains(t, name, "restore")
		require.NotContains(t, name, "ingest")
	}
}

func TestResumeAfterClose(t *testing.T) {
	fs := vfs.NewMem()
	want := restoredSmall()
	runs := testRuns(want, 9)
	ids := idsOf(runs)
	s, err := Open("zone", testOptions(fs))
	require.NoError(t, err)
	requireNoRestore(t, s)
	r, err := s.BeginRestore([]byte("height 9"))
	require.NoError(t, err)
	requireNoRestore(t, s)
	addRuns(t, r, runs, ids[:5]...)
	require.NoError(t, s.Close())
	r.Close()
	require.Equal(t, ids[:5], r.Runs(), "the runs from before")
	require.ErrorIs(t, r.Remove(ids[0]), ErrClosed)

	opts := testOptions(fs)
	opts.ReadOnly = true
	s, err = Open("zone", opts)
	require.NoError(t, err)
	requireInterrupted(t, s, "height 9")
	_, err = s.ResumeRestore()
	require.Error(t, err)
	require.NoError(t, s.Close())

	s, err = Open("zone", testOptions(fs))
	require.NoError(t, err)
	requireInterrupted(t, s, "height 9")
	r, err = s.ResumeRestore()
	require.NoError(t, err)
	requireNoRestore(t, s)
	require.ErrorIs(t, s.Write(Block{Meta: testMeta(1)}), ErrRestoring)
	require.Len(t, r.Runs(), 5)
	for _, id := range ids[:5] {
		got, err := readRun(r, id)
		require.NoError(t, err)
		require.Equal(t, runs[id], got)
	}
	addRuns(t, r, runs, ids[5:]...)
	requireRuns(t, r, runs)
	require.NoError(t, r.Commit(want.meta))
	want.requireIn(t, s)
	requireNoRestore(t, s)
	requireNoFolder(t, s, fs)
	r.Close()
	require.NoError(t, r.Abort())
	want.requireIn(t, s)
	require.NoError(t, s.Close())
	s = openZone(t, fs)
	want.requireIn(t, s)
	requireNoRestore(t, s)
}

// TestRunsChangeAfterReadable: a restore was readable when it was interrupted, and continues with
// another target. The runs that it removes are not in the state.
func TestRunsChangeAfterReadable(t *testing.T) {
	s := openZone(t, vfs.NewMem())
	want := restoredSmall()
	runs := testRuns(want, 10)
	ids := idsOf(runs)
	old := []record.Leaf{{Key: []byte("of the old target"), Value: []byte("x")}}
	r, err := s.BeginRestore([]byte("label"))
	require.NoError(t, err)
	addRuns(t, r, runs, ids[1:]...)
	require.NoError(t, addLeaves(r, "old", old))
	require.NoError(t, r.Readable())
	r.Close()
	requireInterrupted(t, s, "label")
	r, err = s.ResumeRestore()
	require.NoError(t, err)
	require.NoError(t, r.Remove("old"))
	addRuns(t, r, runs, ids[0])
	require.NoError(t, r.Commit(want.meta))
	want.requireIn(t, s)
}

func TestRunsChange(t *testing.T) {
	fs := vfs.NewMem()
	want := restoredSmall()
	runs := testRuns(want, 9)
	ids := idsOf(runs)
	s := openZone(t, fs)
	_, err := s.BeginRestore(make([]byte, MaxLabel+1))
	require.Error(t, err)
	r, err := s.BeginRestore(nil)
	require.NoError(t, err)
	require.Error(t, addLeaves(r, RunID(strings.Repeat("x", MaxRunID+1)), nil))
	require.Error(t, r.SetLabel(make([]byte, MaxLabel+1)))
	longest := RunID(strings.Repeat("\xff", MaxRunID))
	require.NoError(t, addLeaves(r, longest, nil))
	addRuns(t, r, runs, ids...)
	require.ErrorIs(t, addLeaves(r, ids[0], runs[ids[0]]), ErrRunExists)
	require.NoError(t, r.Remove(ids[0]))
	require.ErrorIs(t, r.Remove(ids[0]), ErrNoRun)
	_, err = readRun(r, ids[0])
	require.ErrorIs(t, err, ErrNoRun)
	got, err := readRun(r, longest)
	require.NoError(t, err)
	require.Empty(t, got)
	require.NoError(t, r.SetLabel([]byte("another")))
	r.Close()
	r.Close()
	requireInterrupted(t, s, "another")
	require.ErrorIs(t, addLeaves(r, ids[0], runs[ids[0]]), ErrClosed)
	require.ErrorIs(t, r.Commit(want.meta), ErrClosed)
	require.ErrorIs(t, r.SetLabel(nil), ErrClosed)

	r, err = s.ResumeRestore()
	require.NoError(t, err)
	require.Equal(t, append(slices.Clone(ids[1:]), longest), r.Runs())
	addRuns(t, r, runs, ids[0])
	require.NoError(t, r.Remove(longest))
	require.NoError(t, r.Readable())
	require.NoError(t, r.Readable())
	require.Equal(t, want.list(), scanAll(t, s))
	require.Error(t, addLeaves(r, "more", nil))
	require.Error(t, r.Remove(ids[0]))
	requireRuns(t, r, runs)
	r.Close() // it is not readable any more
	requireInterrupted(t, s, "another")
	r, err = s.ResumeRestore()
	require.NoError(t, err)
	requireRuns(t, r, runs)
	require.NoError(t, r.Readable())
	require.NoError(t, r.Commit(want.meta))
	want.requireIn(t, s)
	requireNoFolder(t, s, fs)
}

// TestInterruptedRestoreIsDropped: emptying the zone or writing a block drops an interrupted
// restore.
func TestInterruptedRestoreIsDropped(t *testing.T) {
	want := restoredSmall()
	runs := testRuns(want, 50)
	for name, drop := range map[string]func(t *testing.T, s *Zone){
		"reset": func(t *testing.T, s *Zone) { require.NoError(t, s.Reset()) },
		"another": func(t *testing.T, s *Zone) {
			r, err := s.BeginRestore([]byte("2"))
			require.NoError(t, err)
			require.Empty(t, r.Runs())
			require.NoError(t, r.Abort())
		},
		"block": func(t *testing.T, s *Zone) { write(t, s, blockOf(1, "a", "1")) },
		"aborted": func(t *testing.T, s *Zone) {
			r, err := s.ResumeRestore()
			require.NoError(t, err)
			require.NoError(t, r.Abort())
		},
	} {
		t.Run(name, func(t *testing.T) {
			fs := vfs.NewMem()
			s := openZone(t, fs)
			r, err := s.BeginRestore([]byte("1"))
			require.NoError(t, err)
			addRuns(t, r, runs, idsOf(runs)...)
			require.NoError(t, r.Readable())
			r.Close()
			requireInterrupted(t, s, "1")
			drop(t, s)
			requireNoRestore(t, s)
			requireNoFolder(t, s, fs)
			before := scanAll(t, s)
			require.NoError(t, s.Close())
			s = openZone(t, fs)
			requireNoRestore(t, s)
			require.Equal(t, before, scanAll(t, s))
		})
	}
}

// TestJunkOfRestores: foreign files are removed, the restore is kept.
func TestJunkOfRestores(t *testing.T) {
	fs := vfs.NewMem()
	want := restoredSmall()
	runs := testRuns(want, 50)
	s, err := Open("zone", testOptions(fs))
	require.NoError(t, err)
	r, err := s.BeginRestore([]byte("1"))
	require.NoError(t, err)
	addRuns(t, r, runs, idsOf(runs)...)
	require.NoError(t, s.Close())
	keep, err := fs.List("zone/restore")
	require.NoError(t, err)
	for _, path := range []string{
		"zone/restore-made/LABEL", "zone/restore-gone/000001.runs", "zone/ingest/000001.sst", "zone/restore/000999.runs",
		"zone/restore/1.runs", "zone/restore/000001.sst", "zone/restore/LABEL.new", "zone/restore/JOURNAL.new", "zone/restore/folder/file",
	} {
		require.NoError(t, fs.MkdirAll(fs.PathDir(path), 0o755))
		require.NoError(t, writeSynced(fs, path, []byte("junk")))
	}
	opts := testOptions(fs)
	opts.ReadOnly = true
	s, err = Open("zone", opts)
	require.NoError(t, err)
	requireInterrupted(t, s, "1")
	require.NoError(t, s.Close())
	_, err = fs.Stat("zone/restore/000999.runs")
	require.NoError(t, err, "a read-only zone removes nothing")

	s = openZone(t, fs)
	names, err := fs.List("zone/restore")
	require.NoError(t, err)
	require.ElementsMatch(t, keep, names)
	for _, path := range []string{"zone/restore-made", "zone/restore-gone", "zone/ingest"} {
		_, err := fs.Stat(path)
		require.Error(t, err)
	}
	r, err = s.ResumeRestore()
	require.NoError(t, err)
	requireRuns(t, r, runs)
	require.NoError(t, r.Commit(want.meta))
	want.requireIn(t, s)
}

// TestOverlappingRuns: two runs with the same leaves are refused as a whole, and the restore can be
// repaired.
func TestOverlappingRuns(t *testing.T) {
	s := openZone(t, vfs.NewMem())
	want := restoredSmall()
	runs := testRuns(want, 50)
	ids := idsOf(runs)
	r, err := s.BeginRestore(nil)
	require.NoError(t, err)
	addRuns(t, r, runs, ids...)
	require.NoError(t, addLeaves(r, "other", runs[ids[1]][:20]))
	require.Error(t, r.Commit(want.meta))
	emptyModel().requireIn(t, s)
	r.Close()
	requireInterrupted(t, s, "")
	r, err = s.ResumeRestore()
	require.NoError(t, err)
	require.NoError(t, r.Remove("other"))
	require.NoError(t, r.Commit(want.meta))
	want.requireIn(t, s)
}

// TestRunsInManyFiles: runs in files of the usual size, and a run that is longer than a table and a
// file.
func TestRunsInManyFiles(t *testing.T) {
	fs := vfs.NewMem()
	s := openZone(t, fs)
	rng := newRNG(3)
	var leaves []record.Leaf
	for i := range 56 {
		leaves = append(leaves, record.Leaf{Key: fmt.Appendf(nil, "%03d", i), Value: randomBytes(rng, 1<<20), Height: uint8(i % 3)})
	}
	runs := map[RunID][]record.Leaf{"whole": leaves[20:]}
	r, err := s.BeginRestore(nil)
	require.NoError(t, err)
	for i, l := range leaves[:20] {
		runs[RunID(fmt.Sprintf("%03d", i))] = []record.Leaf{l}
	}
	var adding sync.WaitGroup
	for id, leaves := range runs {
		adding.Go(func() { require.NoError(t, addLeaves(r, id, leaves)) })
	}
	adding.Wait()
	requireRuns(t, r, runs)
	files := map[uint64]bool{}
	for _, run := range r.mu.runs {
		files[run.file] = true
		require.LessOrEqual(t, run.at, uint64(appendBytes), "a full file is not continued")
	}
	require.GreaterOrEqual(t, len(files), 2)

	// Space is freed once a file contains no runs.
	for id := range runs {
		require.NoError(t, r.Remove(id))
	}
	names, err := fs.List("zone/restore")
	require.NoError(t, err)
	require.LessOrEqual(t, len(names), 3, "label, journal, and the file that is being continued: %v", names)
	for id, leaves := range runs {
		require.NoError(t, addLeaves(r, id, leaves))
	}
	require.NoError(t, r.Commit(testMeta(1)))
	require.True(t, slices.EqualFunc(leaves, scanAll(t, s), equalLeaves))
	<-s.Settled()
	require.True(t, slices.EqualFunc(leaves, scanAll(t, s), equalLeaves))
	requireNoFolder(t, s, fs)
}

func equalLeaves(a, b record.Leaf) bool {
	return bytes.Equal(a.Key, b.Key) && bytes.Equal(a.Value, b.Value) && a.Height == b.Height
}

// randomLeaves returns leaves whose keys have common prefixes of all lengths.
func randomLeaves(rng *rand.Rand, n int) []record.Leaf {
	var leaves []record.Leaf
	for range n {
		var key []byte
		if len(leaves) > 0 && rng.IntN(2) == 0 {
			other := leaves[rng.IntN(len(leaves))].Key
			key = append(key, other[:rng.IntN(len(other)+1)]...)
		}
		most := 40
		if rng.IntN(50) == 0 {
			most = record.MaxKeyBytes - 60
		}
		key = append(key, randomBytes(rng, rng.IntN(most))...)
		if rng.IntN(4) == 0 {
			key = append(key, bytes.Repeat([]byte{[]byte{0, 0xff}[rng.IntN(2)]}, rng.IntN(10))...)
		}
		if len(key) == 0 {
			key = []byte{0}
		}
		size := 1 + rng.IntN(300)
		if rng.IntN(50) == 0 {
			size = 1 + rng.IntN(100_000)
		}
		leaves = append(leaves, record.Leaf{Key: key, Value: randomBytes(rng, size), Height: uint8(rng.IntN(3))})
	}
	slices.SortFunc(leaves, func(a, b record.Leaf) int { return bytes.Compare(a.Key, b.Key) })
	return slices.CompactFunc(leaves, func(a, b record.Leaf) bool { return bytes.Equal(a.Key, b.Key) })
}

// TestRestoredStateReads: a state in tables written by this package is read like any other: by
// scan, by page, compacted, pinned.
func TestRestoredStateReads(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rng := newRNG(seed)
			leaves := randomLeaves(rng, 1+rng.IntN(1500))
			m := emptyModel()
			m.meta = testMeta(5)
			m.meta.Restored = true
			for _, l := range leaves {
				m.leaves[string(l.Key)] = string(l.Value)
				if l.Height > 0 {
					m.heights[string(l.Key)] = l.Height
				}
			}
			s := openZone(t, vfs.NewMem())
			r, err := s.BeginRestore(nil)
			require.NoError(t, err)
			runs := testRuns(m, 1+rng.IntN(1000))
			addRuns(t, r, runs, idsOf(runs)...)
			requireRuns(t, r, runs)
			require.NoError(t, r.Commit(m.meta))
			settled := s.Settled()
			requirePages := func() {
				for range 20 {
					from, to := rng.IntN(len(leaves)), rng.IntN(len(leaves))
					first, after := leaves[min(from, to)].Key, leaves[max(from, to)].Key
					var got []byte
					want := m.records(first, after)
					require.NoError(t, s.Page(first, after, uint64(len(want)), func(b []byte) bool { got = bytes.Clone(b); return true }))
					require.Equal(t, string(want), string(got))
				}
			}
			require.Equal(t, m.list(), scanAll(t, s))
			requirePages()
			<-settled
			require.Equal(t, m.list(), scanAll(t, s))
			requirePages()
			b := blockOf(6, "new", "1")
			b.Deletes = [][]byte{leaves[len(leaves)/2].Key}
			pinWith(&b, withPin("pin"))
			write(t, s, b)
			m = m.apply(b)
			leaves = m.list()
			require.Equal(t, m.records(nil, nil), pinRecords(t, s, 6))
			require.NoError(t, s.Compact(t.Context(), nil))
			m.requireIn(t, s)
			requirePages()
		})
	}
}

// TestRestoreOnAFullDisk: on a full disk, Add fails and leaves no files, and the restore continues
// once there is space.
func TestRestoreOnAFullDisk(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rng := newRNG(seed)
			var room atomic.Int64 // number of writes until the disk is full
			mem := vfs.NewMem()
			fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if strings.Contains(op.Path, "restore") && (op.Kind == errorfs.OpFileWrite || op.Kind == errorfs.OpCreate) && room.Add(-1) < 0 {
					return syscall.ENOSPC
				}
				return nil
			}))
			room.Store(1 << 40)
			want := restoredSmall()
			runs := testRuns(want, 9)
			s, err := Open("zone", testOptions(fs))
			require.NoError(t, err)
			r, err := s.BeginRestore(nil)
			require.NoError(t, err)
			room.Store(rng.Int64N(20))
			full := 0
			for _, id := range idsOf(runs) {
				err := addLeaves(r, id, runs[id])
				for ; err != nil; err = addLeaves(r, id, runs[id]) {
					require.ErrorIs(t, err, ErrDiskFull)
					require.NotContains(t, r.Runs(), id)
					if room.Load() < -3 {
						full++
						room.Store(rng.Int64N(20))
					}
				}
			}
			room.Store(1 << 40)
			require.Positive(t, full)
			if rng.IntN(2) == 0 {
				require.NoError(t, s.Close())
				s = openZone(t, mem)
				r, err = s.ResumeRestore()
				require.NoError(t, err)
			}
			requireRuns(t, r, runs)
			names, err := mem.List("zone/restore")
			require.NoError(t, err)
			require.LessOrEqual(t, len(names), len(runs)+2, "no file without a run")
			require.NoError(t, r.Commit(want.meta))
			want.requireIn(t, s)
			require.NoError(t, s.Close())
		})
	}
}

// TestRunsThatCannotBeSynced: the runs in a file that cannot be synced are lost. The restore
// reports it, and continues without them when it is resumed.
func TestRunsThatCannotBeSynced(t *testing.T) {
	var broken atomic.Bool
	mem := vfs.NewMem()
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if broken.Load() && op.Kind == errorfs.OpFileSync && strings.HasSuffix(op.Path, "000002.runs") {
			return syscall.EIO
		}
		return nil
	}))
	broken.Store(true)
	want := restoredSmall()
	runs := testRuns(want, 9)
	ids := idsOf(runs)
	s := openZone(t, fs)
	r, err := s.BeginRestore(nil)
	require.NoError(t, err)
	addRuns(t, r, runs, ids[:3]...)
	r.completeLast()
	addRuns(t, r, runs, ids[3:6]...)
	r.completeLast()
	r.syncer.wait()
	require.ErrorIs(t, addLeaves(r, ids[7], runs[ids[7]]), syscall.EIO)
	require.ErrorIs(t, r.Commit(want.meta), syscall.EIO)
	require.Equal(t, ids[:3], r.Runs())
	_, err = mem.Stat("zone/restore/000002.runs")
	require.ErrorIs(t, err, os.ErrNotExist)
	emptyModel().requireIn(t, s)
	r.Close()
	broken.Store(false)
	r, err = s.ResumeRestore()
	require.NoError(t, err)
	require.Equal(t, ids[:3], r.Runs())
	addRuns(t, r, runs, ids[3:]...)
	require.NoError(t, r.Commit(want.meta))
	want.requireIn(t, s)
}

// TestDamagedRestore: with any byte flipped, a run is missing, or cannot be read, or is what was
// added. Removals are complete.
func TestDamagedRestore(t *testing.T) {
	mem := vfs.NewMem()
	want := restoredSmall()
	runs := testRuns(want, 30)
	s, err := Open("zone", testOptions(mem))
	require.NoError(t, err)
	r, err := s.BeginRestore([]byte("label"))
	require.NoError(t, err)
	addRuns(t, r, runs, idsOf(runs)...)
	require.NoError(t, s.Close())
	names, err := mem.List("zone/restore")
	require.NoError(t, err)
	rng, missing, unreadable, dropped := newRNG(7), 0, 0, 0
	for range 200 {
		name := names[rng.IntN(len(names))]
		fs := cloneFS(t, mem)
		b, err := readAll(fs, "zone/restore/"+name, 1<<40)
		require.NoError(t, err)
		at := rng.IntN(len(b))
		where := fmt.Sprintf("%s, byte %d", name, at)
		switch rng.IntN(4) {
		case 0:
			b = b[:at]
		case 1:
			b = append(b, byte(at))
		default:
			b[at] ^= byte(1 + rng.IntN(255))
			if name == journalFile && at == 0 {
				b[0] = 0 // otherwise it may be that of a newer version, which is refused
			}
		}
		require.NoError(t, writeSynced(fs, "zone/restore/"+name, b))
		s, err := Open("zone", testOptions(fs))
		require.NoError(t, err, where)
		label, ok := s.Interrupted()
		require.Equal(t, name != labelFile, ok, where)
		if !ok {
			dropped++
			requireNoFolder(t, s, fs)
			require.NoError(t, s.Close())
			continue
		}
		require.Equal(t, "label", string(label))
		r, err := s.ResumeRestore()
		require.NoError(t, err, where)
		missing += len(runs) - len(r.Runs())
		for _, id := range r.Runs() {
			got, err := readRun(r, id)
			if err == nil {
				require.Equal(t, runs[id], got, where)
				continue
			}
			require.ErrorIs(t, err, ErrCorrupt, where)
			unreadable++
			require.NoError(t, r.Remove(id))
		}
		for id := range runs {
			if !slices.Contains(r.Runs(), id) {
				addRuns(t, r, runs, id)
			}
		}
		require.NoError(t, r.Commit(want.meta), where)
		want.requireIn(t, s)
		require.NoError(t, s.Close())
	}
	t.Logf("missing: %d, unreadable: %d, restores dropped: %d", missing, unreadable, dropped)
	require.Positive(t, missing)
	require.Positive(t, unreadable)
	require.Positive(t, dropped)
}

// cloneFS copies the folder of the zone.
func cloneFS(t *testing.T, from vfs.FS) *vfs.MemFS {
	t.Helper()
	to := vfs.NewMem()
	ok, err := vfs.Clone(from, to, "zone", "zone")
	require.NoError(t, err)
	require.True(t, ok)
	return to
}

// TestForgedRuns: records with valid checksums that no chunk contains, runs beyond the bytes of a
// file, and bytes that are not a record cause an error, no panic.
func TestForgedRuns(t *testing.T) {
	fs := vfs.NewMem()
	s := openZone(t, fs)
	r, err := s.BeginRestore(nil)
	require.NoError(t, err)
	require.Error(t, r.Add("no record", 0, []byte{0, 1}))
	require.NoError(t, addLeaves(r, "good", restoredSmall().list()[:5]))
	good := r.mu.runs["good"]
	for id, forge := range map[RunID]func(r *run){
		"behind the end": func(r *run) { r.at = r.bytes },
		"longer":         func(r *run) { r.bytes++ },
		"far":            func(r *run) { r.at = 1 << 62 },
		"long":           func(r *run) { r.bytes = 1 << 62 },
		"no file":        func(r *run) { r.file = 77 },
		"checksum":       func(r *run) { r.crc++ },
	} {
		forged := good
		forge(&forged)
		r.mu.runs[id] = forged
		_, err := readRun(r, id)
		require.Error(t, err, id)
	}
	for i, b := range [][]byte{{9}, randomBytes(newRNG(1), 1000), append(record.Append(nil, record.Leaf{Key: []byte("k"), Value: []byte("v")}), 0, 0)} {
		require.NoError(t, writeSynced(fs, s.runsPath(uint64(10+i)), b))
		set, err := s.newRunSet(map[RunID]run{"": {file: uint64(10 + i), bytes: uint64(len(b)), crc: crcOf(b), first: []byte("k")}})
		require.NoError(t, err)
		require.ErrorIs(t, set.each(0, 1, func(record.Leaf) bool { return true }), errDamagedRun)
		_, err = set.records(nil, nil, nil, 1<<20)
		require.ErrorIs(t, err, errDamagedRun)
	}
}

// TestRandomRestores: a random life of a restore, with kills, closes, resumes and changes of the
// target. Every run that it had confirmed exists.
func TestRandomRestores(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rng, fs := newRNG(seed), vfs.NewCrashableMem()
			want := restoredSmall()
			runs := testRuns(want, 1+rng.IntN(20))
			ids := idsOf(runs)
			s, err := Open("zone", testOptions(fs))
			require.NoError(t, err)
			r, err := s.BeginRestore([]byte("0"))
			require.NoError(t, err)
			there, label := map[RunID][]record.Leaf{}, "0"
			resume := func() {
				requireInterrupted(t, s, label)
				r, err = s.ResumeRestore()
				require.NoError(t, err)
				requireRuns(t, r, there)
			}
			for step := range 50 {
				id := ids[rng.IntN(len(ids))]
				switch n := rng.IntN(100); {
				case n < 60:
					err := addLeaves(r, id, runs[id])
					if _, have := there[id]; have {
						require.ErrorIs(t, err, ErrRunExists)
					} else {
						require.NoError(t, err)
					}
					there[id] = runs[id]
				case n < 75:
					if _, have := there[id]; have {
						require.NoError(t, r.Remove(id))
					} else {
						require.ErrorIs(t, r.Remove(id), ErrNoRun)
					}
					delete(there, id)
				case n < 80:
					label = fmt.Sprint(step)
					require.NoError(t, r.SetLabel([]byte(label)))
				case n < 85:
					require.NoError(t, r.Readable())
					r.Close()
					resume()
				case n < 90:
					r.Close()
					resume()
				case n < 95: // killed
					killed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng})
					require.NoError(t, s.Close())
					fs = killed
					s, err = Open("zone", testOptions(fs))
					require.NoError(t, err)
					resume()
				default:
					require.NoError(t, s.Close())
					s, err = Open("zone", testOptions(fs))
					require.NoError(t, err)
					resume()
				}
			}
			for _, id := range ids {
				if _, have := there[id]; !have {
					addRuns(t, r, runs, id)
				}
			}
			require.NoError(t, r.Commit(want.meta))
			want.requireIn(t, s)
			requireNoFolder(t, s, fs)
			require.NoError(t, s.Close())
		})
	}
}

func crcOf(b []byte) uint32 { return crc32c.Sum(b) }

func FuzzJournal(f *testing.F) {
	journal := []byte{journalVersion}
	f.Add(journal)
	journal = appendAdded(journal, "a", run{file: 1, at: 100, bytes: 50, crc: 7, height: 3, first: []byte("key")})
	journal = appendAdded(journal, "", run{})
	f.Add(journal)
	f.Add(appendRemoved(journal, "a"))
	f.Add(append(journal, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0))
	f.Add(appendAdded(journal, "b", run{file: 1, at: 1 << 62, bytes: 1 << 62, first: []byte("key")}))
	f.Fuzz(func(t *testing.T, b []byte) {
		runs, whole := decodeJournal(b)
		require.LessOrEqual(t, whole, len(b))
		again, _ := decodeJournal(b[:whole])
		require.Equal(t, runs, again)
		journal := []byte{journalVersion}
		for id, r := range runs {
			require.LessOrEqual(t, len(id), MaxRunID)
			require.LessOrEqual(t, r.at+r.bytes, uint64(math.MaxInt64))
			journal = appendAdded(journal, id, r)
		}
		again, whole = decodeJournal(journal)
		require.Equal(t, len(journal), whole)
		require.Equal(t, runs, again)
	})
}

func FuzzLabel(f *testing.F) {
	f.Add(encodeLabel(nil))
	f.Add(encodeLabel([]byte("height 9")))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		label, err := decodeLabel(b)
		if err != nil {
			require.True(t, errors.Is(err, ErrCorrupt) || errors.Is(err, ErrNewerFormat))
			return
		}
		require.Equal(t, b, encodeLabel(label))
	})
}

// TestForgedJournal: invalid records with a valid checksum end the journal.
func TestForgedJournal(t *testing.T) {
	some := run{file: 1, bytes: 100, crc: 7, first: []byte("key")}
	good := appendAdded([]byte{journalVersion}, "good", some)
	for name, body := range map[string][]byte{
		"empty": {}, "kind": {'x', 0}, "short id": {journalAdded, 2, 'a'}, "half a run": append([]byte{journalAdded, 0}, make([]byte, 5)...),
		"long id":       append([]byte{journalAdded, MaxRunID + 1}, make([]byte, MaxRunID+1)...),
		"run removed":   append([]byte{journalRemoved, 0}, make([]byte, runBytes)...),
		"no first key":  appendAdded(nil, "", run{file: 1, bytes: 1})[4:][:2+runBytes],
		"no file":       appendAdded(nil, "", run{bytes: 1, first: []byte("a")})[4:][:2+runBytes+1],
		"nothing there": appendAdded(nil, "", run{file: 1, first: []byte("a")})[4:][:2+runBytes+1],
		"too far":       appendAdded(nil, "", run{file: 1, at: math.MaxInt64, bytes: 1, first: []byte("a")})[4:][:2+runBytes+1],
	} {
		record := endRecord(append(append(slices.Clone(good), 0, 0, 0, 0), body...), len(good))
		runs, whole := decodeJournal(append(record, appendAdded(nil, "later", run{})...))
		require.Equal(t, len(good), whole, name)
		require.Equal(t, map[RunID]run{"good": some}, runs, name)
	}
	for _, version := range []byte{journalVersion - 1, journalVersion + 1} {
		runs, whole := decodeJournal(append([]byte{version}, good[1:]...))
		require.Empty(t, runs)
		require.Zero(t, whole)
	}
}

// TestDamagedRestoredTables: with bytes of a restored table flipped, the state is read correctly,
// or not at all. The format version is the only part of a table without a checksum of its own. If
// it is damaged, values may begin one byte late, which only readers that know their hashes detect.
func TestDamagedRestoredTables(t *testing.T) {
	mem := vfs.NewMem()
	want := restoredSmall()
	s, err := Open("zone", testOptions(mem))
	require.NoError(t, err)
	r, err := s.BeginRestore(nil)
	require.NoError(t, err)
	require.NoError(t, addLeaves(r, "all", want.list()))
	require.NoError(t, r.Commit(want.meta))
	require.NoError(t, s.Settle(t.Context()))
	require.NoError(t, s.Close())
	names, err := mem.List("zone")
	require.NoError(t, err)
	rng, found, unread := newRNG(1), 0, 0
	for _, name := range names {
		b, err := readAll(mem, "zone/"+name, 1<<40)
		if !strings.HasSuffix(name, ".sst") || err != nil || !bytes.Equal(b[len(b)-12:], append([]byte{1, 0, 0, 0}, tableMagic...)) {
			continue
		}
		offsets := rng.Perm(len(b) - footerBytes)[:20]
		for at := len(b) - footerBytes; at < len(b); at++ {
			offsets = append(offsets, at)
		}
		for _, at := range offsets {
			where := fmt.Sprintf("%s, byte %d of %d", name, at, len(b))
			bad := slices.Clone(b)
			for bad[at] ^= byte(1 + rng.IntN(255)); at == len(b)-12 && bad[at] < 5; {
				bad[at]++
			}
			fs := cloneFS(t, mem)
			require.NoError(t, writeSynced(fs, "zone/"+name, bad))
			opts := testOptions(fs)
			opts.ReadOnly = true
			var failure error
			s, err := Open("zone", opts)
			if err != nil {
				failure = err
			} else {
				var got []record.Leaf
				for l, err := range s.Scan() {
					if failure = err; err == nil {
						got = append(got, record.Leaf{Key: bytes.Clone(l.Key), Value: append([]byte{}, l.Value...), Height: l.Height})
					}
				}
				if failure == nil {
					require.Equal(t, want.list(), got, where)
				}
				require.NoError(t, s.Close())
			}
			if failure == nil {
				unread++
				continue
			}
			found++
			require.ErrorIs(t, failure, ErrCorrupt, where)
		}
	}
	t.Logf("found %d times, in unread parts %d times", found, unread)
	require.Greater(t, found, unread)
}
