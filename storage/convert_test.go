package storage

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/storage/internal/engine"
)

// writeLayout1 makes a zone of layout 1, or adds to one, that holds the states of history one after
// another, each in tables of its own, and a pin of each of the heights in pinned.
func writeLayout1(t *testing.T, fs vfs.FS, sync *pebble.WriteOptions, history []model, pinned ...int64) {
	t.Helper()
	db, err := pebble.Open("zone", &pebble.Options{
		FS: fs, FormatMajorVersion: engine.Format, MemTableSize: smallMemTable, Logger: quiet{},
		L0StopWritesThreshold: 1 << 20, MemTableStopWritesThreshold: 1 << 20,
	})
	require.NoError(t, err)
	for i, m := range history {
		batch, before := db.NewBatch(), emptyModel()
		if i > 0 {
			before = history[i-1]
		}
		for key, value := range m.leaves {
			if old, is := before.leaves[key]; !is || old != value {
				require.NoError(t, batch.Set([]byte("k"+key), []byte(value), nil))
			}
		}
		for key, height := range m.heights {
			if before.heights[key] != height {
				require.NoError(t, batch.Set([]byte("h"+key), []byte{height}, nil))
			}
		}
		for key := range before.leaves {
			if _, is := m.leaves[key]; !is {
				require.NoError(t, batch.Delete([]byte("k"+key), nil))
			}
		}
		for key := range before.heights {
			if _, is := m.heights[key]; !is {
				require.NoError(t, batch.Delete([]byte("h"+key), nil))
			}
		}
		if m.meta.Height > 0 {
			meta := m.meta.encode()
			meta[0] = layout1
			require.NoError(t, batch.Set([]byte{kindMeta}, resum(meta), nil))
		}
		require.NoError(t, batch.Commit(sync))
		if sync == pebble.NoSync {
			require.NoError(t, db.Flush())
		}
		if slices.Contains(pinned, m.meta.Height) {
			path := fmt.Sprint("zone-pins/", m.meta.Height)
			require.NoError(t, db.Checkpoint(path))
			require.NoError(t, writePinDescription(fs, path+"/"+pinDescription, m.meta.Height, []byte("pin")))
		}
	}
	require.NoError(t, db.Close())
}

type quiet struct{}

func (quiet) Infof(string, ...any)           {}
func (quiet) Errorf(string, ...any)          {}
func (quiet) Fatalf(format string, a ...any) { panic(fmt.Sprintf(format, a...)) }

// A zone of layout 1 opens for reading as it is, and is converted when it may be written. Its pins
// stay readable, and the zone can be rolled back to one.
func TestConversion(t *testing.T) {
	fs := vfs.NewMem()
	all, history := randomHistory(newRNG(21), 40)
	writeLayout1(t, fs, pebble.NoSync, history, 20, 30)
	opts := testOptions(fs)
	opts.ReadOnly = true
	s, err := Open("zone", opts)
	require.NoError(t, err)
	history[40].requireIn(t, s)
	require.Equal(t, history[30].records(nil, nil), pinRecords(t, s, 30))
	keys, err := s.EstimateKeys()
	require.NoError(t, err)
	require.Positive(t, keys)
	require.NoError(t, s.Close())

	var told, toldOf uint64
	opts = testOptions(fs)
	opts.Converting = func(done, total uint64) error {
		told, toldOf = done, total
		return nil
	}
	s, err = Open("zone", opts)
	require.NoError(t, err)
	require.Positive(t, told)
	require.Equal(t, toldOf, told)
	history[40].requireIn(t, s)
	for _, height := range []int64{20, 30} {
		require.Equal(t, history[height].records(nil, nil), pinRecords(t, s, height))
		pin, err := s.OpenPin(height)
		require.NoError(t, err)
		meta, err := pin.Meta()
		require.NoError(t, err)
		require.Equal(t, history[height].meta, meta)
		require.NoError(t, pin.Close())
	}
	kept := s.Kept(40)
	for key, value := range history[40].leaves {
		got, ok, err := kept.Get([]byte(key))
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, value, string(got))
	}
	kept.Release()
	require.NoError(t, s.Close())
	requireConverted(t, fs)

	require.NoError(t, RollbackToPin("zone", 30, testOptions(fs)))
	s = openZone(t, fs)
	history[30].requireIn(t, s)
	for _, b := range all[30:] {
		write(t, s, b)
	}
	history[40].requireIn(t, s)
	require.NoError(t, s.Close())
}

// requireConverted requires that nothing is left of a conversion, nor of layout 1.
func requireConverted(t *testing.T, fs vfs.FS) {
	t.Helper()
	names, err := fs.List("zone")
	require.NoError(t, err)
	for _, name := range names {
		require.NotContains(t, name, "convert")
		require.NotContains(t, name, "restore")
	}
	require.Equal(t, mergerName, engine.Folder{Dir: "zone", FS: fs}.Merger())
}

// RollbackToPin, too, may be the first to open a zone of layout 1.
func TestRollbackConverts(t *testing.T) {
	fs := vfs.NewMem()
	_, history := randomHistory(newRNG(22), 20)
	writeLayout1(t, fs, pebble.NoSync, history, 10)
	require.NoError(t, RollbackToPin("zone", 10, testOptions(fs)))
	requireConverted(t, fs)
	history[10].requireIn(t, openZone(t, fs))
}

// Data of the version that had a log of writes are converted, whether the log was flushed or not.
func TestConvertsWhatHadALog(t *testing.T) {
	fs := vfs.NewMem()
	_, history := randomHistory(newRNG(23), 12)
	for i := 0; i < len(history); i += 4 {
		if i > 0 {
			writeLayout1(t, fs, pebble.Sync, history[i-1:min(i+4, len(history))])
		} else {
			writeLayout1(t, fs, pebble.Sync, history[:4])
		}
	}
	last := history[len(history)-1]
	opts := testOptions(fs)
	opts.ReadOnly = true
	s, err := Open("zone", opts)
	require.NoError(t, err)
	last.requireIn(t, s)
	require.NoError(t, s.Close())
	s = openZone(t, fs)
	last.requireIn(t, s)
}

// Without its file of options, which may be removed when it is damaged, a zone of layout 1 is known
// by its records.
func TestConvertsWithoutOptions(t *testing.T) {
	fs := vfs.NewMem()
	_, history := randomHistory(newRNG(24), 5)
	writeLayout1(t, fs, pebble.NoSync, history)
	removeOptions(t, fs)
	history[5].requireIn(t, openZone(t, fs))
}

// A zone of layout 1 without a state: there is nothing to convert, and a join begins again.
func TestConvertsAnEmptyZone(t *testing.T) {
	fs := vfs.NewMem()
	writeLayout1(t, fs, pebble.NoSync, []model{emptyModel()})
	require.NoError(t, fs.MkdirAll("zone/restore", 0o755))
	require.NoError(t, writeSynced(fs, "zone/restore/"+labelFile, encodeLabel([]byte("height 9"))))
	s := openZone(t, fs)
	emptyModel().requireIn(t, s)
	requireNoRestore(t, s)
	requireConverted(t, fs)
	write(t, s, blockOf(1, "a", "1"))
}

// manyParts is a state of layout 1 that falls into several parts.
func manyParts() model {
	m, rng := emptyModel(), newRNG(25)
	m.meta = testMeta(7)
	for i := range 260 {
		key := fmt.Sprintf("%05d", i)
		m.leaves[key], m.heights[key] = string(randomBytes(rng, 50<<10)), uint8(i%20)
		if i%20 == 0 {
			delete(m.heights, key)
		}
	}
	return m
}

// A kill, or a loss of power, at any point of a conversion: the next Open finishes it, and the
// state is what it was. Until the copy is whole, the files of layout 1 are as they were.
func TestCrashDuringConversion(t *testing.T) {
	crashes := 60
	if testing.Short() {
		crashes = 12
	}
	want := manyParts()
	prepared := vfs.NewMem()
	writeLayout1(t, prepared, pebble.NoSync, []model{want}, 7)
	prepare := func() *vfs.MemFS {
		mem := vfs.NewCrashableMem()
		for _, dir := range []string{"zone", "zone-pins"} {
			_, err := vfs.Clone(prepared, mem, dir, dir, vfs.CloneSync)
			require.NoError(t, err)
		}
		require.NoError(t, engine.SyncDir(mem, "/"))
		return mem
	}
	c := newCrashFSOn(prepare(), newRNG(0), 1<<60)
	s, err := Open("zone", testOptions(c))
	require.NoError(t, err)
	require.NoError(t, s.Close())
	total := c.changes.Load()
	found := map[string]int{}
	for seed := range uint64(crashes) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rng := newRNG(seed)
			at := 1 + rng.Int64N(total)
			if seed%3 == 0 {
				at = total - rng.Int64N(60) // the swap is short
			}
			c := newCrashFSOn(prepare(), rng, at)
			s, err := Open("zone", testOptions(c))
			require.NoError(t, err)
			require.NoError(t, s.Close())
			left := c.crash.left
			if left == nil {
				return
			}
			old, err := isLayout1(engine.Folder{Dir: "zone", FS: left}.WithDefaults())
			require.NoError(t, err)
			switch {
			case old && !exists(left, "zone/"+convertWhole) && !exists(left, "zone/"+convertMoved):
				found["layout 1"]++
				requireOldReads(t, left, want)
			case exists(left, "zone/"+convertWhole):
				found["whole"]++
			case exists(left, "zone/"+convertMoved):
				found["moved"]++
			default:
				found["layout 2"]++
			}
			s, err = Open("zone", testOptions(left))
			require.NoError(t, err)
			want.requireIn(t, s)
			require.Equal(t, want.records(nil, nil), pinRecords(t, s, 7))
			require.NoError(t, s.Close())
			requireConverted(t, left)
			want.requireIn(t, openZone(t, powerLoss(left)))
		})
	}
	t.Logf("%d changes of files; found after the crash -> times: %v", total, found)
	if !testing.Short() {
		require.Len(t, found, 4)
	}
}

func exists(fs vfs.FS, path string) bool {
	_, err := fs.Stat(path)
	return err == nil
}

// requireOldReads reads the zone as the program did that wrote it.
func requireOldReads(t *testing.T, fs vfs.FS, want model) {
	t.Helper()
	db, err := pebble.Open("zone", &pebble.Options{FS: fs, FormatMajorVersion: engine.Format, ReadOnly: true, Logger: quiet{}})
	require.NoError(t, err)
	g := newGeneration(want.meta.Height, db, layout1)
	records, err := g.records(nil, nil, nil, 1<<40)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want.records(nil, nil), records))
	require.NoError(t, g.release())
}

// A conversion that was killed keeps what it has copied. If the program that wrote layout 1 has
// changed the state since, it begins again.
func TestConversionResumes(t *testing.T) {
	for _, changed := range []bool{false, true} {
		t.Run(fmt.Sprint("changed: ", changed), func(t *testing.T) {
			want := manyParts()
			fs := vfs.NewMem()
			writeLayout1(t, fs, pebble.NoSync, []model{want})
			opts := testOptions(fs).withDefaults("zone")
			c := beginConversion(t, fs, 2, false)
			require.Greater(t, len(c.parts), 2)
			if changed {
				next := want.apply(Block{Meta: testMeta(8), Deletes: [][]byte{[]byte("00001")}})
				writeLayout1(t, fs, pebble.NoSync, []model{want, next})
				want = next
			}
			enough := errors.New("enough")
			opts.Converting = func(uint64, uint64) error { return enough }
			_, err := Open("zone", opts)
			require.ErrorIs(t, err, enough)
			if !changed {
				// What was copied is counted from the start.
				first := uint64(math.MaxUint64)
				opts.Converting = func(done, _ uint64) error {
					first = min(first, done)
					return enough
				}
				_, err = Open("zone", opts)
				require.ErrorIs(t, err, enough)
				require.GreaterOrEqual(t, first, c.bytes/uint64(len(c.parts))*2)
			}
			opts.Converting = nil
			s, err := Open("zone", opts)
			require.NoError(t, err)
			want.requireIn(t, s)
			require.NoError(t, s.Close())
		})
	}
}

// A conversion is interrupted while it makes the tables, and resumed there.
func TestConversionInterruptedWhileSettling(t *testing.T) {
	want := manyParts()
	fs := vfs.NewMem()
	writeLayout1(t, fs, pebble.NoSync, []model{want})
	opts := testOptions(fs)
	enough := errors.New("enough")
	opts.Converting = func(done, total uint64) error {
		if done > total/2 {
			return enough
		}
		return nil
	}
	_, err := Open("zone", opts)
	require.ErrorIs(t, err, enough)
	requireOldReads(t, fs, want)
	var told []uint64
	opts.Converting = func(done, total uint64) error {
		require.GreaterOrEqual(t, done, total/2)
		require.LessOrEqual(t, done, total)
		told = append(told, total-done)
		return nil
	}
	s, err := Open("zone", opts)
	require.NoError(t, err)
	require.Greater(t, len(told), 2)
	require.Zero(t, told[len(told)-1])
	require.True(t, slices.IsSortedFunc(told, func(a, b uint64) int { return cmp.Compare(b, a) }))
	want.requireIn(t, s)
	require.NoError(t, s.Close())
	requireConverted(t, fs)
}

// Between the two layouts nothing can be read: an error says what to do.
func TestReadOnlyBetweenTheLayouts(t *testing.T) {
	fs := vfs.NewMem()
	want := emptyModel().apply(blockOf(3, "a", "1"))
	writeLayout1(t, fs, pebble.NoSync, []model{want})
	makeWhole(t, fs)
	opts := testOptions(fs)
	opts.ReadOnly = true
	_, err := Open("zone", opts)
	require.ErrorIs(t, err, errConverting)
	require.ErrorContains(t, err, "start starlingd")
	lock, err := engine.Lock(fs, "zone")
	require.NoError(t, err)
	_, err = Open("zone", opts)
	require.ErrorIs(t, err, ErrLocked)
	_, err = Open("zone", testOptions(fs))
	require.ErrorIs(t, err, ErrLocked)
	require.NoError(t, lock.Close())
	want.requireIn(t, openZone(t, fs))
	requireConverted(t, fs)
}

// makeWhole converts the zone as far as the swap, which does not begin.
func makeWhole(t *testing.T, fs vfs.FS) {
	t.Helper()
	old, err := openLayout1("zone", testOptions(fs).withDefaults("zone"))
	require.NoError(t, err)
	require.NoError(t, old.makeWhole())
	require.NoError(t, old.Close())
}

// smallDisk has few bytes left.
type smallDisk struct{ vfs.FS }

func (smallDisk) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: 1 << 20}, nil
}

// A conversion that does not fit the disk is not begun, and the zone stays as it is.
func TestConversionNeedsRoom(t *testing.T) {
	fs := vfs.NewMem()
	want := manyParts()
	writeLayout1(t, fs, pebble.NoSync, []model{want})
	_, err := Open("zone", testOptions(smallDisk{fs}))
	require.ErrorIs(t, err, ErrDiskFull)
	require.ErrorContains(t, err, "needs about")
	requireOldReads(t, fs, want)
	want.requireIn(t, openZone(t, fs))
}

// A layout whose merger this program does not know is refused, and not taken for damage.
func TestUnknownMergerIsRefused(t *testing.T) {
	fs := vfs.NewMem()
	db, err := pebble.Open("zone", &pebble.Options{
		FS: fs, FormatMajorVersion: engine.Format, Logger: quiet{}, Merger: &pebble.Merger{Name: "starling.height.v2", Merge: leafMerger.Merge},
	})
	require.NoError(t, err)
	require.NoError(t, db.Close())
	refusesNewer(t, fs, "merger starling.height.v2, this program knows "+mergerName)
}

// An older program that was started on layout 2, and was told to remove the options, writes its
// own. The state is as it was, and the error says how to get at it.
func TestAnOlderProgramHasWrittenOptions(t *testing.T) {
	fs := vfs.NewMem()
	s := openZone(t, fs)
	b := blockOf(3, "a", "1")
	write(t, s, b)
	require.NoError(t, s.Close())
	removeOptions(t, fs)
	db, err := pebble.Open("zone", &pebble.Options{FS: fs, FormatMajorVersion: engine.Format, Logger: quiet{}})
	require.NoError(t, err)
	require.NoError(t, db.Close())
	_, err = Open("zone", testOptions(fs))
	require.ErrorContains(t, err, "an older starlingd was started on it: remove its files named OPTIONS-")
	removeOptions(t, fs)
	emptyModel().apply(b).requireIn(t, openZone(t, fs))
}

func removeOptions(t *testing.T, fs vfs.FS) {
	t.Helper()
	names, err := fs.List("zone")
	require.NoError(t, err)
	for _, name := range names {
		if strings.HasPrefix(name, "OPTIONS-") {
			require.NoError(t, fs.Remove("zone/"+name))
		}
	}
}
