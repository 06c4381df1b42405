package blocks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/internal/spectest"
	"github.com/starling-kv/starling/storage/internal/engine"
	"github.com/starling-kv/starling/storage/seglog"
	"github.com/starling-kv/starling/storage/sgc"
)

func partKey(height, index int) []byte { return fmt.Appendf(nil, "P:%d:%d", height, index) }

// partOf returns a value that is stored in a segment, different for each height and index.
func partOf(height, index int) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "part %d of %d;", index, height), largeValue/10)
}

// stored returns Pebble's value of a key of the block store.
func stored(t testing.TB, z *Zone, key []byte) []byte {
	t.Helper()
	value, _, err := z.read(z.DB(partsID).(*database).key(key))
	require.NoError(t, err)
	return value
}

// segmentsIn returns the numbers of the segment files.
func segmentsIn(t testing.TB, fs vfs.FS) []uint32 {
	t.Helper()
	numbers, err := seglog.Numbers(fs, "zone")
	require.NoError(t, err)
	return numbers
}

// TestWhatIsOutside: exactly the large parts of the block store are outside of Pebble, however they
// were written.
func TestWhatIsOutside(t *testing.T) {
	z := openZone(t, vfs.NewMem(), Options{})
	large, small := bytes.Repeat([]byte("x"), largeValue), bytes.Repeat([]byte("x"), largeValue-1)
	for _, c := range []struct {
		id, key string
		value   []byte
		outside bool
	}{
		{partsID, "P:1:0", large, true}, {partsID, "P:1:1", small, false}, {partsID, "H:1", large, false},
		{partsID, "P", large, false}, {"blockstore2", "P:1:0", large, false}, {"state", "P:1:0", large, false},
	} {
		db := z.DB(c.id)
		for _, sync := range []bool{false, true} {
			for _, batched := range []bool{false, true} {
				b := db.NewBatch()
				switch {
				case batched:
					require.NoError(t, b.Set([]byte("other"), []byte("1")))
					require.NoError(t, b.Delete([]byte(c.key)))
					require.NoError(t, b.Set([]byte(c.key), c.value))
					require.NoError(t, b.Set([]byte("last"), []byte("2")))
					if sync {
						require.NoError(t, b.WriteSync())
					} else {
						require.NoError(t, b.Write())
					}
				case sync:
					require.NoError(t, db.SetSync([]byte(c.key), c.value))
				default:
					require.NoError(t, db.Set([]byte(c.key), c.value))
					require.NoError(t, db.Set([]byte("y"), []byte("z"))) // writes the held values
				}
				raw, _, err := z.read(db.(*database).key([]byte(c.key)))
				require.NoError(t, err)
				require.Equal(t, c.outside, len(raw) == partBytes, c)
				value, err := db.Get([]byte(c.key))
				require.NoError(t, err)
				require.Equal(t, c.value, value)
				has, err := db.Has([]byte(c.key))
				require.NoError(t, err)
				require.True(t, has)
			}
		}
	}
	require.Equal(t, 1, z.Metrics().Segments)
	require.GreaterOrEqual(t, z.Metrics().SegmentBytes, uint64(4*largeValue))
	size, err := z.Bytes(partsID)
	require.NoError(t, err)
	require.GreaterOrEqual(t, size, uint64(4*largeValue))
}

// TestSpecExample writes the part in docs/spec/segments.md, which leaves out its value.
func TestSpecExample(t *testing.T) {
	fs := vfs.NewMem()
	z := openZone(t, fs, Options{})
	for i := range z.parts.tag { // otherwise random
		z.parts.tag[i] = byte(i)
	}
	key, value := partKey(7, 0), bytes.Repeat([]byte("x"), largeValue)
	require.NoError(t, z.DB(partsID).SetSync(key, value))
	f, err := fs.Open(z.parts.store.Path(1))
	require.NoError(t, err)
	segment, err := io.ReadAll(f)
	require.NoError(t, errors.Join(err, f.Close()))
	record, is := bytes.CutSuffix(segment, value)
	require.True(t, is)
	end, _, err := z.read(endKey(1))
	require.NoError(t, err)
	spectest.Require(t, "segments.md", record, endKey(1), end, stored(t, z, key))
}

// TestValueLikeAReference: a value that looks like a reference is returned as it was written.
func TestValueLikeAReference(t *testing.T) {
	z := openZone(t, vfs.NewMem(), Options{})
	require.NoError(t, z.DB(partsID).SetSync(partKey(1, 0), partOf(1, 0)))
	like := stored(t, z, partKey(1, 0))
	require.Len(t, like, partBytes)
	for _, id := range []string{partsID, "state"} {
		require.NoError(t, z.DB(id).SetSync([]byte("like"), like))
		value, err := z.DB(id).Get([]byte("like"))
		require.NoError(t, err)
		require.Equal(t, like, value)
	}
	require.Equal(t, map[string]string{"like": string(like)}, content(t, z.DB("state")))
}

// TestHeld: parts that are set one by one without sync are held in memory, where they can be read,
// until something else is written.
func TestHeld(t *testing.T) {
	for name, c := range map[string]struct {
		release func(z *Zone) error
		synced  bool
	}{
		"a batch that is synced": {func(z *Zone) error { return z.DB("state").SetSync([]byte("a"), []byte("b")) }, true},
		"an empty batch":         {func(z *Zone) error { return z.DB(partsID).NewBatch().WriteSync() }, true},
		"another database":       {func(z *Zone) error { return z.DB("state").Set([]byte("a"), []byte("b")) }, false},
		"a deletion":             {func(z *Zone) error { return z.DB(partsID).Delete(partKey(1, 1)) }, false},
		"an iterator":            {func(z *Zone) error { it, err := z.DB(partsID).Iterator(nil, nil); return errors.Join(err, it.Close()) }, false},
		"the end":                {func(z *Zone) error { return z.Close() }, true},
		"more than memory is to hold": {func(z *Zone) error {
			for i := range heldRecords {
				if err := z.DB(partsID).Set(partKey(2, i), partOf(2, i)); err != nil {
					return err
				}
			}
			return nil
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			mem := vfs.NewCrashableMem()
			z, err := Open("zone", Options{FS: mem, Cache: sgc.New(1 << 20)})
			require.NoError(t, err)
			db := z.DB(partsID)
			require.NoError(t, db.SetSync(partKey(1, 0), []byte("old")))
			value, err := db.Get(partKey(1, 0)) // the cache keeps it
			require.NoError(t, err)
			require.Equal(t, "old", string(value))
			for i := range 3 {
				require.NoError(t, db.Set(partKey(1, i), partOf(1, 9)))
				require.NoError(t, db.Set(partKey(1, i), partOf(1, i)))
			}
			require.Empty(t, segmentsIn(t, mem))
			require.Equal(t, "old", string(stored(t, z, partKey(1, 0))))
			for i := range 4 {
				value, err := db.Get(partKey(1, i))
				require.NoError(t, err)
				has, err := db.Has(partKey(1, i))
				require.NoError(t, err)
				require.Equal(t, i < 3, has)
				if i < 3 {
					require.Equal(t, partOf(1, i), value)
					value[0]++ // the caller owns it
				} else {
					require.Nil(t, value)
				}
			}
			require.NoError(t, c.release(z))
			left := mem
			if c.synced {
				left = mem.CrashClone(vfs.CrashCloneCfg{})
			}
			if name != "the end" {
				if name != "more than memory is to hold" {
					require.False(t, z.parts.held.any.Load())
				}
				require.Len(t, stored(t, z, partKey(1, 0)), partBytes)
				value, err = db.Get(partKey(1, 0))
				require.NoError(t, err)
				require.Equal(t, partOf(1, 0), value)
				require.NoError(t, z.Close())
			}
			z = openZone(t, left, Options{})
			value, err = z.DB(partsID).Get(partKey(1, 0))
			require.NoError(t, err)
			require.Equal(t, partOf(1, 0), value)
		})
	}
}

// TestPruning: a segment is removed when CometBFT has deleted all its parts, and not before. A part
// that is never deleted keeps only its own segment. An iterator yields everything that existed when
// it was created.
func TestPruning(t *testing.T) {
	fs := vfs.NewMem()
	o := Options{FS: fs, segmentLimit: 10 * largeValue, Cache: sgc.New(1 << 20)}
	z, err := Open("zone", o)
	require.NoError(t, err)
	const heights = 200
	want := map[string]string{}
	for height := range heights {
		b := z.DB(partsID).NewBatch()
		for i := range 3 {
			want[string(partKey(height, i))] = string(partOf(height, i))
			require.NoError(t, b.Set(partKey(height, i), partOf(height, i)))
		}
		require.NoError(t, b.WriteSync())
	}
	all := segmentsIn(t, fs)
	require.Greater(t, len(all), 30)
	require.Equal(t, len(all), z.Metrics().Segments)
	_, err = z.DB(partsID).Get(partKey(0, 0)) // its reference is in the cache
	require.NoError(t, err)

	prune := func(from, to int) {
		t.Helper()
		b := z.DB(partsID).NewBatch()
		for height := from; height < to; height++ {
			for i := range 3 {
				if height == 55 && i == 1 {
					continue // it is never deleted
				}
				require.NoError(t, b.Delete(partKey(height, i)))
				delete(want, string(partKey(height, i)))
			}
		}
		require.NoError(t, b.WriteSync())
	}
	it, err := z.DB(partsID).Iterator([]byte("P:0:"), []byte("P:0;"))
	require.NoError(t, err)
	prune(0, 50)
	require.Equal(t, all, segmentsIn(t, fs), "an older iterator holds them")
	require.Less(t, z.Metrics().Segments, len(all)*9/10)
	value, err := z.DB(partsID).Get(partKey(0, 0))
	require.NoError(t, err)
	require.Nil(t, value)
	for i := range 3 {
		require.Equal(t, partOf(0, i), it.Value())
		it.Next()
	}
	requireInvalid(t, it)
	require.NoError(t, it.Close())
	left := segmentsIn(t, fs)
	require.Len(t, left, z.Metrics().Segments)
	require.Equal(t, want, content(t, z.DB(partsID)))

	require.NoError(t, z.Close())
	z, err = Open("zone", o)
	require.NoError(t, err)
	require.Equal(t, left, segmentsIn(t, fs))
	for height := 50; height < heights; height++ {
		prune(height, height+1)
	}
	require.Equal(t, want, content(t, z.DB(partsID)))
	require.Len(t, want, 1)
	require.LessOrEqual(t, len(segmentsIn(t, fs)), 2+1, "the part's segment, the last one, and one that was not full")
	require.NoError(t, z.Compact(t.Context(), nil))
	require.Len(t, segmentsIn(t, fs), 2)
	require.NoError(t, z.Close())
	requireVerified(t, fs)
}

// TestPruneOfManyBlocks: a prune of many blocks checks only some records; the following writes
// continue.
func TestPruneOfManyBlocks(t *testing.T) {
	z := openZone(t, vfs.NewMem(), Options{segmentLimit: 10 * largeValue})
	db := z.DB(partsID)
	const records = 10 * sweepSteps
	deleted := db.NewBatch()
	for height := range records {
		require.NoError(t, db.SetSync(partKey(height, 0), partOf(height, 0)))
		require.NoError(t, deleted.Delete(partKey(height, 0)))
	}
	require.NoError(t, deleted.WriteSync())
	before := z.Metrics().Segments
	require.Greater(t, before, records/12, "one write checks only few of them")
	writes := 0
	for ; z.parts.sweeping.Load(); writes++ {
		left := z.Metrics().Segments
		require.NoError(t, z.DB("state").Set([]byte("key"), []byte("value")))
		require.LessOrEqual(t, left-z.Metrics().Segments, sweepSteps/5)
	}
	require.InDelta(t, records/sweepSteps, writes, 3)
	require.Equal(t, 1, z.Metrics().Segments, "it is appended to")
}

// requireVerified opens the zone read-only, because the tables of a writable one may be compacted
// while they are read.
func requireVerified(t testing.TB, fs vfs.FS) {
	t.Helper()
	z, err := Open("zone", Options{FS: fs, ReadOnly: true})
	require.NoError(t, err)
	_, err = z.Verify(t.Context(), nil)
	require.NoError(t, err)
	require.NoError(t, z.Close())
}

// TestCrashWhilePruning: the deletions of a segment's parts are durable before its file is removed.
// After a crash at any moment of pruning and writing, each part either exists or does not.
func TestCrashWhilePruning(t *testing.T) {
	crashes := 60
	if testing.Short() {
		crashes = 30
	}
	// There are four parts in a segment. The deletion of its last part is followed by the first
	// part of the next segment, whose name becomes durable before any of Pebble's data.
	const old, pruned = 41, 30
	all := seeds.Rand(t)
	for range crashes {
		rng := rand.New(rand.NewPCG(all.Uint64(), 0))
		mem := vfs.NewCrashableMem()
		var mu sync.Mutex // guards the variables below
		var left *vfs.MemFS
		begun, changes, crashAt := false, 0, 1+rng.IntN(200)
		fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			mu.Lock()
			defer mu.Unlock()
			if begun && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
				if changes++; changes == crashAt {
					left = mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(2) * rng.IntN(101), RNG: rng})
				}
			}
			return nil
		}))
		z, err := Open("zone", Options{FS: fs, segmentLimit: 4 * largeValue})
		require.NoError(t, err)
		for height := range old {
			require.NoError(t, z.DB(partsID).SetSync(partKey(height, 0), partOf(height, 0)))
		}
		mu.Lock()
		begun = true
		mu.Unlock()
		for height := range pruned {
			require.NoError(t, z.DB(partsID).Delete(partKey(height, 0))) // not synced
			require.NoError(t, z.DB(partsID).SetSync(partKey(old+height, 0), partOf(old+height, 0)))
		}
		require.NoError(t, z.Close())
		if left == nil {
			left = mem
		}
		requireVerified(t, left)
		z, err = Open("zone", Options{FS: left})
		require.NoError(t, err)
		there := content(t, z.DB(partsID))
		for height := range old + pruned {
			value, is := there[string(partKey(height, 0))]
			require.True(t, is || height < pruned || height >= old)
			if is {
				require.Equal(t, string(partOf(height, 0)), value)
			}
		}
		require.NoError(t, z.Close())
	}
}

// TestReferenceFromBeforePruning: a reader with a reference from before the removal of its segment
// gets the current value from the database. If the database still has that reference, it is damage.
func TestReferenceFromBeforePruning(t *testing.T) {
	z := openZone(t, vfs.NewMem(), Options{segmentLimit: 1, Cache: sgc.New(1 << 20)})
	db := z.DB(partsID).(*database)
	key := db.key(partKey(1, 0))
	require.NoError(t, db.SetSync(partKey(1, 0), partOf(1, 0)))
	require.NoError(t, db.SetSync(partKey(2, 0), partOf(2, 0)))
	before := stored(t, z, partKey(1, 0))
	require.NoError(t, db.DeleteSync(partKey(1, 0)))
	require.Equal(t, 1, z.Metrics().Segments)
	stale := func() { z.cache.fill(z.cache.beginRead(key), key, before) }

	stale()
	value, err := db.Get(partKey(1, 0))
	require.NoError(t, err)
	require.Nil(t, value)
	require.NoError(t, db.SetSync(partKey(1, 0), partOf(1, 1)))
	stale()
	value, err = db.Get(partKey(1, 0))
	require.NoError(t, err)
	require.Equal(t, partOf(1, 1), value)

	require.NoError(t, z.db.Set(key, before, pebble.Sync))
	_, err = db.Get(partKey(1, 0))
	require.ErrorIs(t, err, ErrCorrupt)
	_, err = z.Verify(t.Context(), nil)
	requireDamage(t, err, "000001.seg")
}

// TestPruningUnderReaders: concurrently with a writer and pruning, readers get the complete value
// or none, from wherever they read it.
func TestPruningUnderReaders(t *testing.T) {
	for name, cache := range map[string]*sgc.Cache{"no cache": nil, "cache": sgc.New(1 << 20)} {
		t.Run(name, func(t *testing.T) {
			z := openZone(t, vfs.NewMem(), Options{segmentLimit: 4 * largeValue, Cache: cache, ReadFailed: func(err error) { t.Error(err) }})
			db := z.DB(partsID)
			rounds, window := 600, 20
			if testing.Short() {
				rounds = 150
			}
			var at, read, gone atomic.Int64
			var done atomic.Bool
			var readers sync.WaitGroup
			for i := range 3 {
				readers.Go(func() {
					for n := i; !done.Load(); n++ {
						height := max(0, int(at.Load())-window-3+n%(window+3))
						value, err := db.Get(partKey(height, 0))
						switch {
						case err != nil:
							t.Error(err)
							return
						case value == nil:
							gone.Add(1)
						case bytes.Equal(value, partOf(height, 0)):
							read.Add(1)
						default:
							t.Errorf("another value at height %d", height)
							return
						}
					}
				})
			}
			readers.Go(func() {
				for !done.Load() {
					it, err := db.Iterator(nil, nil)
					if err != nil {
						t.Error(err)
						return
					}
					for ; it.Valid(); it.Next() {
						var height int
						_, _ = fmt.Sscanf(string(it.Key()), "P:%d:", &height)
						if !bytes.Equal(it.Value(), partOf(height, 0)) {
							t.Errorf("iterator: another value at height %d: %v", height, it.Error())
						}
					}
					if err := errors.Join(it.Error(), it.Close()); err != nil {
						t.Error(err)
						return
					}
				}
			})
			for height := 0; height < rounds || read.Load() < 100 || gone.Load() < 10; height++ {
				var err error
				if height%3 == 0 {
					err = db.Set(partKey(height, 0), partOf(height, 0))
				} else {
					err = db.SetSync(partKey(height, 0), partOf(height, 0))
				}
				require.NoError(t, err)
				at.Store(int64(height))
				if height >= window {
					require.NoError(t, db.Delete(partKey(height-window, 0)))
				}
			}
			done.Store(true)
			readers.Wait()
			require.Less(t, z.Metrics().Segments, 20)
		})
	}
}

// closedZone returns the file system of a closed zone, and its segments.
func closedZone(t *testing.T) (*vfs.MemFS, []uint32) {
	t.Helper()
	mem := vfs.NewMem()
	z, err := Open("zone", Options{FS: mem, segmentLimit: 4 * largeValue})
	require.NoError(t, err)
	for height := range 20 {
		require.NoError(t, z.DB(partsID).SetSync(partKey(height, 0), partOf(height, 0)))
	}
	require.NoError(t, z.Close())
	return mem, segmentsIn(t, mem)
}

// TestDamagedSegments: damage to a segment is an error with the file and a remedy, wherever it is
// found, and never another value.
func TestDamagedSegments(t *testing.T) {
	mem, all := closedZone(t)
	require.GreaterOrEqual(t, len(all), 5)
	rng := seeds.Rand(t)
	for range 60 {
		fs := vfs.NewMem()
		_, err := vfs.Clone(mem, fs, "zone", "zone")
		require.NoError(t, err)
		name := fmt.Sprintf("%06d.seg", all[rng.IntN(len(all))])
		flipBit(t, fs, "zone/"+name, rng)

		var told []error
		z, err := Open("zone", Options{FS: fs, ReadFailed: func(err error) { told = append(told, err) }})
		require.NoError(t, err)
		damaged := 0
		for height := range 20 {
			value, err := z.DB(partsID).Get(partKey(height, 0))
			if err != nil {
				requireDamage(t, err, name)
				require.Equal(t, []error{err}, told)
				damaged++
				continue
			}
			require.Equal(t, partOf(height, 0), value)
		}
		require.Equal(t, 1, damaged)
		it, err := z.DB(partsID).Iterator(nil, nil)
		require.NoError(t, err)
		for it.Valid() {
			if it.Value() != nil {
				it.Next()
			}
		}
		requireDamage(t, it.Error(), name)
		require.NoError(t, it.Close())
		require.NoError(t, z.Close())
		z, err = Open("zone", Options{FS: fs, ReadOnly: true})
		require.NoError(t, err)
		good, err := z.Verify(t.Context(), nil)
		requireDamage(t, err, name)
		require.GreaterOrEqual(t, good.Count, len(all)-1)
		require.NoError(t, z.Close())
		z, err = Open("zone", Options{FS: fs})
		require.NoError(t, err)
		for height := range 20 { // CometBFT no longer needs them
			require.NoError(t, z.DB(partsID).Delete(partKey(height, 0)))
		}
		require.NoError(t, z.Compact(t.Context(), nil))
		require.LessOrEqual(t, len(segmentsIn(t, fs)), 2)
		require.NoError(t, z.Close())
	}
}

func requireDamage(t *testing.T, err error, name string) {
	t.Helper()
	require.ErrorIs(t, err, ErrCorrupt)
	require.ErrorContains(t, err, "blocks folder zone is damaged")
	require.ErrorContains(t, err, name)
	require.ErrorContains(t, err, "put back a copy")
}

// TestMissingSegments: a segment that is missing or too short is damage when the zone is opened,
// and so is a folder with only segments.
func TestMissingSegments(t *testing.T) {
	mem, all := closedZone(t)
	for _, number := range all {
		for _, cut := range []bool{false, true} {
			fs := vfs.NewMem()
			_, err := vfs.Clone(mem, fs, "zone", "zone")
			require.NoError(t, err)
			name := fmt.Sprintf("%06d.seg", number)
			require.NoError(t, fs.Remove("zone/"+name))
			if cut {
				file, err := fs.Create("zone/"+name, vfs.WriteCategoryUnspecified)
				require.NoError(t, err)
				_, err = file.Write(make([]byte, largeValue))
				require.NoError(t, err)
				require.NoError(t, file.Close())
			}
			for _, readOnly := range []bool{true, false} {
				_, err = Open("zone", Options{FS: fs, ReadOnly: readOnly})
				requireDamage(t, err, name)
			}
		}
	}
	fs := vfs.NewMem()
	_, err := vfs.Clone(mem, fs, "zone", "zone")
	require.NoError(t, err)
	names, err := fs.List("zone")
	require.NoError(t, err)
	for _, name := range names {
		if !strings.HasSuffix(name, ".seg") {
			require.NoError(t, fs.Remove("zone/"+name))
		}
	}
	_, err = Open("zone", Options{FS: fs})
	requireDamage(t, err, "marker.manifest")
	require.Equal(t, all, segmentsIn(t, fs))
	left, err := fs.List("zone")
	require.NoError(t, err)
	require.Len(t, left, len(all), "something was written")

	// A new database, created there by another program, has no references to them.
	db, err := pebble.Open("zone", &pebble.Options{FS: fs, FormatMajorVersion: engine.Format})
	require.NoError(t, err)
	require.NoError(t, db.Close())
	_, err = Open("zone", Options{FS: fs})
	requireDamage(t, err, "but no database")
	require.Equal(t, all, segmentsIn(t, fs))
}

// TestSegmentThatCannotBeRead: a segment that cannot be read is an error that is reported to
// ReadFailed, and not a missing part.
func TestSegmentThatCannotBeRead(t *testing.T) {
	var broken atomic.Bool
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if broken.Load() && op.Kind == errorfs.OpFileReadAt && strings.HasSuffix(op.Path, ".seg") {
			return syscall.EIO
		}
		return nil
	}))
	var told []error
	z := openZone(t, fs, Options{Cache: sgc.New(1 << 20), ReadFailed: func(err error) { told = append(told, err) }})
	db := z.DB(partsID)
	require.NoError(t, db.SetSync(partKey(1, 0), partOf(1, 0)))
	broken.Store(true)
	_, err := db.Get(partKey(1, 0))
	require.ErrorIs(t, err, syscall.EIO)
	require.NotErrorIs(t, err, ErrCorrupt)
	require.ErrorContains(t, err, "check the disk")
	require.Equal(t, []error{err}, told)
	_, err = z.Verify(t.Context(), nil)
	require.ErrorIs(t, err, syscall.EIO)
	broken.Store(false)
	value, err := db.Get(partKey(1, 0))
	require.NoError(t, err)
	require.Equal(t, partOf(1, 0), value)

	// A write succeeds, whether or not old segments can be removed.
	for i := range 2 {
		require.NoError(t, db.SetSync(partKey(2, i), make([]byte, seglog.Limit)))
	}
	broken.Store(true)
	require.NoError(t, db.DeleteSync(partKey(1, 0)))
	require.NoError(t, db.DeleteSync(partKey(2, 0)))
	broken.Store(false)
	require.Len(t, segmentsIn(t, fs), 2)
}

// TestBatchWithPartsIsAtomic: after a crash at any change, a batch with parts exists completely or
// not at all.
func TestBatchWithPartsIsAtomic(t *testing.T) {
	rng := seeds.Rand(t)
	mem := vfs.NewCrashableMem()
	var mu sync.Mutex // guards crashed
	var crashed []*vfs.MemFS
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			mu.Lock()
			defer mu.Unlock()
			crashed = append(crashed, mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng}))
		}
		return nil
	}))
	z, err := Open("zone", Options{FS: fs, segmentLimit: 4 * largeValue})
	require.NoError(t, err)
	const heights = 12
	for height := range heights {
		b := z.DB(partsID).NewBatch()
		for i := range 2 {
			require.NoError(t, b.Set(partKey(height, i), partOf(height, i)))
		}
		require.NoError(t, b.Set(fmt.Appendf(nil, "H:%d", height), []byte("meta")))
		require.NoError(t, b.WriteSync())
	}
	require.NoError(t, z.Close())
	require.Greater(t, len(crashed), 4*heights)
	for _, left := range crashed {
		z, err := Open("zone", Options{FS: left})
		require.NoError(t, err)
		got := content(t, z.DB(partsID))
		require.Zero(t, len(got)%3)
		for height := range len(got) / 3 {
			require.Equal(t, "meta", got[fmt.Sprintf("H:%d", height)])
			for i := range 2 {
				require.Equal(t, string(partOf(height, i)), got[string(partKey(height, i))])
			}
		}
		require.NoError(t, z.Close())
	}
}

// TestPartsAreNotCached: parts are not stored in the shared cache, whose memory is for data that
// needs several reads; their references are.
func TestPartsAreNotCached(t *testing.T) {
	cache := sgc.New(1 << 20)
	z := openZone(t, vfs.NewMem(), Options{Cache: cache})
	for range 3 {
		require.NoError(t, z.DB(partsID).SetSync(partKey(1, 0), partOf(1, 0)))
		for range 3 {
			value, err := z.DB(partsID).Get(partKey(1, 0))
			require.NoError(t, err)
			require.Equal(t, partOf(1, 0), value)
		}
	}
	s := cache.Stats().Zones[sgc.Blocks]
	require.EqualValues(t, 6, s.Hits)
	require.Less(t, s.Bytes, int64(1<<10))
	require.True(t, slices.Equal(segmentsIn(t, z.folder.FS), []uint32{1}))
	require.NoError(t, z.Compact(context.Background(), nil))
}
