package storage

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/internal/rowtable"
)

// The footer of a table as internal/rowtable writes it.
const (
	tableMagic  = "\xf0\x9f\xaa\xb3\xf0\x9f\xaa\xb3"
	footerBytes = 53
)

// restoredSmall is as restored, with values of which many go into a block.
func restoredSmall() model {
	m := restored()
	for key := range m.leaves {
		m.leaves[key] = strings.Repeat(key, 40)
	}
	return m
}

// testRuns cuts a state into runs.
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

func addRuns(t *testing.T, r *Restore, runs map[RunID][]record.Leaf, ids ...RunID) {
	t.Helper()
	for _, id := range ids {
		require.NoError(t, r.Add(id, slices.Values(runs[id])))
	}
}

func readRun(r *Restore, id RunID) (leaves []record.Leaf, err error) {
	for l, err := range r.Read(id) {
		if err != nil {
			return nil, err
		}
		leaves = append(leaves, record.Leaf{Key: bytes.Clone(l.Key), Value: append([]byte{}, l.Value...), Height: l.Height})
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

func requireNoFolder(t *testing.T, fs vfs.FS) {
	t.Helper()
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
	require.Equal(t, ids[:5], r.Runs(), "what it had")
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
	for range r.Read(ids[0]) {
		break
	}
	require.NoError(t, r.Commit(want.meta))
	want.requireIn(t, s)
	requireNoRestore(t, s)
	requireNoFolder(t, fs)
	r.Close()
	require.NoError(t, r.Abort())
	want.requireIn(t, s)
	require.NoError(t, s.Close())
	s = openZone(t, fs)
	want.requireIn(t, s)
	requireNoRestore(t, s)
}

// A restore that was readable when it was interrupted, and continues with another target: nothing
// of the runs that it gives up is in the state.
func TestRunsChangeAfterReadable(t *testing.T) {
	s := openZone(t, vfs.NewMem())
	want := restoredSmall()
	runs := testRuns(want, 10)
	ids := idsOf(runs)
	old := []record.Leaf{{Key: []byte("of the old target"), Value: []byte("x")}}
	r, err := s.BeginRestore([]byte("label"))
	require.NoError(t, err)
	addRuns(t, r, runs, ids[1:]...)
	require.NoError(t, r.Add("old", slices.Values(old)))
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
	require.Error(t, r.Add(RunID(strings.Repeat("x", MaxRunID+1)), slices.Values([]record.Leaf(nil))))
	require.Error(t, r.SetLabel(make([]byte, MaxLabel+1)))
	longest := RunID(strings.Repeat("\xff", MaxRunID))
	require.NoError(t, r.Add(longest, slices.Values([]record.Leaf(nil))))
	addRuns(t, r, runs, ids...)
	require.ErrorIs(t, r.Add(ids[0], slices.Values(runs[ids[0]])), ErrRunExists)
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
	require.ErrorIs(t, r.Add(ids[0], slices.Values(runs[ids[0]])), ErrClosed)
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
	require.Error(t, r.Add("more", slices.Values([]record.Leaf(nil))))
	require.Error(t, r.Remove(ids[0]))
	requireRuns(t, r, runs)
	r.Close() // what could be read is gone again
	requireInterrupted(t, s, "another")
	r, err = s.ResumeRestore()
	require.NoError(t, err)
	requireRuns(t, r, runs)
	require.NoError(t, r.Readable())
	require.NoError(t, r.Commit(want.meta))
	want.requireIn(t, s)
	requireNoFolder(t, fs)
}

// Whoever empties the zone, or writes a block, drops what was interrupted.
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
			requireNoFolder(t, fs)
			before := scanAll(t, s)
			require.NoError(t, s.Close())
			s = openZone(t, fs)
			requireNoRestore(t, s)
			require.Equal(t, before, scanAll(t, s))
		})
	}
}

// What lies about and is no part of a restore is removed, the restore stays.
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
		"zone/restore-made/LABEL", "zone/restore-gone/000001.sst", "zone/ingest/000001.sst", "zone/restore/000999.sst",
		"zone/restore/1.sst", "zone/restore/LABEL.new", "zone/restore/JOURNAL.new", "zone/restore/folder/file",
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
	_, err = fs.Stat("zone/restore/000999.sst")
	require.NoError(t, err, "nothing is removed when only read")

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

// Runs that overlap are refused as a whole, and the restore can be mended.
func TestOverlappingRuns(t *testing.T) {
	s := openZone(t, vfs.NewMem())
	want := restoredSmall()
	runs := testRuns(want, 50)
	r, err := s.BeginRestore(nil)
	require.NoError(t, err)
	addRuns(t, r, runs, idsOf(runs)...)
	require.NoError(t, r.Add("other", slices.Values(want.list()[10:20])))
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

// A run longer than a table, read again and committed; and order across its tables.
func TestRunOfManyTables(t *testing.T) {
	s := openZone(t, vfs.NewMem())
	rng := newRNG(3)
	var leaves []record.Leaf
	for i := range 36 {
		leaves = append(leaves, record.Leaf{Key: fmt.Appendf(nil, "%03d", i), Value: randomBytes(rng, 1<<20), Height: uint8(i % 3)})
	}
	r, err := s.BeginRestore(nil)
	require.NoError(t, err)
	require.ErrorIs(t, r.Add("1", slices.Values(append(slices.Clone(leaves[:30]), leaves[3]))), rowtable.ErrOrder)
	require.NoError(t, r.Add("1", slices.Values(leaves)))
	require.GreaterOrEqual(t, len(r.mu.runs["1"]), 1+36/17)
	got, err := readRun(r, "1")
	require.NoError(t, err)
	require.True(t, slices.EqualFunc(leaves, got, equalLeaves))
	require.NoError(t, r.Commit(testMeta(1)))
	require.True(t, slices.EqualFunc(leaves, scanAll(t, s), equalLeaves))
}

func equalLeaves(a, b record.Leaf) bool {
	return bytes.Equal(a.Key, b.Key) && bytes.Equal(a.Value, b.Value) && a.Height == b.Height
}

// randomLeaves returns leaves whose keys share beginnings of all lengths.
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
			most = 5000
		}
		key = append(key, randomBytes(rng, rng.IntN(most))...)
		if rng.IntN(4) == 0 {
			key = append(key, bytes.Repeat([]byte{[]byte{0, 0xff}[rng.IntN(2)]}, rng.IntN(10))...)
		}
		if len(key) == 0 {
			key = []byte{0}
		}
		size := rng.IntN(300)
		if rng.IntN(50) == 0 {
			size = rng.IntN(100_000)
		}
		leaves = append(leaves, record.Leaf{Key: key, Value: randomBytes(rng, size), Height: uint8(rng.IntN(3))})
	}
	slices.SortFunc(leaves, func(a, b record.Leaf) int { return bytes.Compare(a.Key, b.Key) })
	return slices.CompactFunc(leaves, func(a, b record.Leaf) bool { return bytes.Equal(a.Key, b.Key) })
}

// A state of our tables reads as any other: by scan, by page, compacted, pinned.
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
			b := blockOf(6, "new", "1")
			b.Deletes, b.PinData = [][]byte{leaves[len(leaves)/2].Key}, withPin("pin")
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

// A disk that fills up: Add says so and leaves nothing behind, and the restore continues once there
// is space.
func TestRestoreOnAFullDisk(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rng := newRNG(seed)
			var room atomic.Int64 // writes until the disk is full
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
			room.Store(rng.Int64N(60))
			full := 0
			for _, id := range idsOf(runs) {
				err := r.Add(id, slices.Values(runs[id]))
				for ; err != nil; err = r.Add(id, slices.Values(runs[id])) {
					require.ErrorIs(t, err, ErrDiskFull)
					require.NotContains(t, r.Runs(), id)
					if room.Load() < -3 {
						full++
						room.Store(rng.Int64N(60))
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
			require.Len(t, names, 2*len(runs)+2)
			require.NoError(t, r.Commit(want.meta))
			want.requireIn(t, s)
			require.NoError(t, s.Close())
		})
	}
}

// A run that cannot be synced is lost: the restore reports it, and continues without it when it is
// resumed.
func TestRunThatCannotBeSynced(t *testing.T) {
	var broken atomic.Bool
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if broken.Load() && op.Kind == errorfs.OpFileSync && strings.HasSuffix(op.Path, "000003.sst") {
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
	addRuns(t, r, runs, ids[0])
	lost := ids[1]
	require.NoError(t, r.Add(lost, slices.Values(runs[lost])))
	r.syncer.wait()
	require.ErrorIs(t, r.Add(ids[2], slices.Values(runs[ids[2]])), syscall.EIO)
	require.ErrorIs(t, r.Commit(want.meta), syscall.EIO)
	require.NotContains(t, r.Runs(), lost)
	emptyModel().requireIn(t, s)
	r.Close()
	broken.Store(false)
	r, err = s.ResumeRestore()
	require.NoError(t, err)
	require.Equal(t, ids[:1], r.Runs())
	addRuns(t, r, runs, ids[1:]...)
	require.NoError(t, r.Commit(want.meta))
	want.requireIn(t, s)
}

// One byte flipped anywhere: a run is missing, or cannot be read, or is what was added. Nothing is
// left half removed.
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
		}
		require.NoError(t, writeSynced(fs, "zone/restore/"+name, b))
		s, err := Open("zone", testOptions(fs))
		require.NoError(t, err, where)
		label, ok := s.Interrupted()
		require.Equal(t, name != labelFile, ok, where)
		if !ok {
			dropped++
			requireNoFolder(t, fs)
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

// Tables with right checksums that no run was written as: an error, no panic.
func TestForgedRuns(t *testing.T) {
	fs := vfs.NewMem()
	s := openZone(t, fs)
	r, err := s.BeginRestore(nil)
	require.NoError(t, err)
	forge := func(id RunID, tables ...[]record.Leaf) {
		var forged run
		for i, records := range tables {
			number := r.number.Add(1)
			file, err := fs.Create(s.tablePath(number), vfs.WriteCategoryUnspecified)
			require.NoError(t, err)
			kind := []byte{kindLeaf, kindHeight}[i%2]
			w := rowtable.New(file, kind)
			for _, l := range records {
				require.NoError(t, w.Add(l.Key, l.Value))
			}
			size, crc, err := w.Finish()
			require.NoError(t, err)
			require.NoError(t, file.Close())
			forged = append(forged, runTable{kind, number, size, crc})
		}
		r.mu.runs[id] = forged
	}
	one := func(key, value string) []record.Leaf { return []record.Leaf{{Key: []byte(key), Value: []byte(value)}} }
	forge("height without a leaf", one("b", "1"), one("a", "\x01"))
	forge("height after the last leaf", one("b", "1"), one("c", "\x01"))
	forge("long height", one("b", "1"), one("b", "\x01\x02"))
	for _, id := range r.Runs() {
		_, err := readRun(r, id)
		require.ErrorIs(t, err, ErrCorrupt, id)
	}
	forge("wrong kind", one("b", "1"), one("b", "\x01"))
	swapped := r.mu.runs["wrong kind"]
	swapped[0].kind, swapped[1].kind = kindHeight, kindLeaf
	slices.Reverse(swapped)
	_, err = readRun(r, "wrong kind")
	require.ErrorIs(t, err, ErrCorrupt)
	garbage := randomBytes(newRNG(1), 1000)
	for i, b := range [][]byte{{}, garbage, append(slices.Clone(garbage), tableMagic...)} {
		number := r.number.Add(1)
		require.NoError(t, writeSynced(fs, s.tablePath(number), b))
		id := RunID(fmt.Sprint("garbage ", i))
		r.mu.runs[id] = run{{kindLeaf, number, uint64(len(b)), crcOf(b)}}
		_, err := readRun(r, id)
		require.Error(t, err)
	}
}

// A random life of a restore: killed, closed, resumed, aimed at another state; whatever it had said
// to have is there.
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
					err := r.Add(id, slices.Values(runs[id]))
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
			requireNoFolder(t, fs)
			require.NoError(t, s.Close())
		})
	}
}

func crcOf(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

func FuzzJournal(f *testing.F) {
	journal := []byte{journalVersion}
	f.Add(journal)
	journal = appendAdded(journal, "a", run{{kindLeaf, 1, 100, 7}, {kindLeaf, 2, 100, 7}, {kindHeight, 3, 100, 7}})
	journal = appendAdded(journal, "", nil)
	f.Add(journal)
	f.Add(appendRemoved(journal, "a"))
	f.Add(append(journal, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0))
	f.Add(appendAdded(journal, "b", run{{kindLeaf, 1, 100, 7}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		runs, whole := decodeJournal(b)
		require.LessOrEqual(t, whole, len(b))
		again, _ := decodeJournal(b[:whole])
		require.Equal(t, runs, again)
		journal := []byte{journalVersion}
		numbers := map[uint64]bool{}
		for id, r := range runs {
			require.LessOrEqual(t, len(id), MaxRunID)
			for _, table := range r {
				require.False(t, numbers[table.number])
				numbers[table.number] = true
			}
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

// Records with a right checksum that say what no journal does end it.
func TestForgedJournal(t *testing.T) {
	good := appendAdded([]byte{journalVersion}, "good", run{{kindLeaf, 1, 100, 7}})
	for name, body := range map[string][]byte{
		"empty": {}, "kind": {'x', 0}, "short id": {journalAdded, 2, 'a'}, "half a table": append([]byte{journalAdded, 0}, make([]byte, 5)...),
		"long id":         append([]byte{journalAdded, MaxRunID + 1}, make([]byte, MaxRunID+1)...),
		"kind of a table": append([]byte{journalAdded, 0}, make([]byte, runTableBytes)...),
		"tables removed":  append([]byte{journalRemoved, 0}, make([]byte, runTableBytes)...),
	} {
		record := endRecord(append(append(slices.Clone(good), 0, 0, 0, 0), body...), len(good))
		runs, whole := decodeJournal(append(record, appendAdded(nil, "later", nil)...))
		require.Equal(t, len(good), whole, name)
		require.Equal(t, []RunID{"good"}, idsOf(runs), name)
	}
	runs, _ := decodeJournal(appendAdded(good, "heights first", run{{kindHeight, 2, 1, 1}, {kindLeaf, 3, 1, 1}}))
	require.Len(t, runs, 1)
	runs, whole := decodeJournal(appendAdded(good, "same table", run{{kindLeaf, 1, 1, 1}}))
	require.Empty(t, runs)
	require.Greater(t, whole, len(good))
	runs, whole = decodeJournal(append([]byte{journalVersion + 1}, good[1:]...))
	require.Empty(t, runs)
	require.Zero(t, whole)
}

// Bytes of a restored table flipped: the state is read as it was, or not at all. What says which
// version of the format a table has is the one thing in it without a checksum of its own: values
// that begin one byte late are for who knows their hashes.
func TestDamagedRestoredTables(t *testing.T) {
	mem := vfs.NewMem()
	want := restoredSmall()
	s, err := Open("zone", testOptions(mem))
	require.NoError(t, err)
	r, err := s.BeginRestore(nil)
	require.NoError(t, err)
	require.NoError(t, r.Add("all", slices.Values(want.list())))
	require.NoError(t, r.Commit(want.meta))
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
	t.Logf("found %d times, in parts that nobody reads %d times", found, unread)
	require.Greater(t, found, unread)
}
