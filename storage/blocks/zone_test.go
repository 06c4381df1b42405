package blocks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
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
	dbm "github.com/cometbft/cometbft-db"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/storage/sgc"
)

const (
	smallMemTable = 64 << 10
	smallSegment  = 100 << 10
)

func newRNG(t testing.TB, seed uint64) *rand.Rand {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

// model is the reference: the databases as plain maps.
type model map[string]map[string]string

var ids = []string{"blockstore", "state", "tx_index"}

func newModel() model {
	m := model{}
	for _, id := range ids {
		m[id] = map[string]string{}
	}
	return m
}

func (m model) clone() model {
	n := model{}
	for id, db := range m {
		n[id] = maps.Clone(db)
	}
	return n
}

func (m model) requireIn(t testing.TB, z *Zone) {
	t.Helper()
	for _, id := range ids {
		require.Equal(t, m[id], content(t, z.DB(id)), id)
	}
}

// randomKey returns one of a few keys of the database. Those of the block store are parts.
func randomKey(rng *rand.Rand, id string) string {
	key := fmt.Sprintf("%0*d", 1+rng.IntN(3), rng.IntN(60))
	if id == partsID && rng.IntN(20) > 0 {
		return partsPrefix + key
	}
	return key
}

// write is a change of one database; a nil value deletes.
type write struct {
	id         string
	keys, vals []string
	deleted    []bool
	single     bool // without a batch
	sync       bool
}

func randomWrite(rng *rand.Rand) write {
	w := write{id: ids[rng.IntN(len(ids))], single: rng.IntN(2) == 0, sync: rng.IntN(4) == 0}
	n := 1
	if !w.single {
		n = rng.IntN(20)
	}
	for range n {
		size := rng.IntN(200)
		if rng.IntN(10) == 0 {
			size = rng.IntN(3 * largeValue)
		}
		value := make([]byte, size)
		for i := range value {
			value[i] = byte(rng.Uint32())
		}
		w.keys, w.vals = append(w.keys, randomKey(rng, w.id)), append(w.vals, string(value))
		w.deleted = append(w.deleted, rng.IntN(4) == 0)
	}
	return w
}

func (w write) applyTo(m model) {
	for i, key := range w.keys {
		if w.deleted[i] {
			delete(m[w.id], key)
		} else {
			m[w.id][key] = w.vals[i]
		}
	}
}

func (w write) do(z *Zone) error {
	db := z.DB(w.id)
	if w.single {
		key, value := []byte(w.keys[0]), []byte(w.vals[0])
		switch {
		case w.deleted[0] && w.sync:
			return db.DeleteSync(key)
		case w.deleted[0]:
			return db.Delete(key)
		case w.sync:
			return db.SetSync(key, value)
		}
		return db.Set(key, value)
	}
	b := db.NewBatch()
	defer b.Close()
	for i, key := range w.keys {
		var err error
		if w.deleted[i] {
			err = b.Delete([]byte(key))
		} else {
			err = b.Set([]byte(key), []byte(w.vals[i]))
		}
		if err != nil {
			return err
		}
	}
	if w.sync {
		return b.WriteSync()
	}
	return b.Write()
}

// TestModel: random operations give the same results as maps, with a cache of any size and without
// one, including after the zone was reopened.
func TestModel(t *testing.T) {
	for name, cacheBytes := range map[string]int64{"no cache": -1, "tiny cache": 40 << 10, "cache": 4 << 20} {
		t.Run(name, func(t *testing.T) {
			rng := newRNG(t, 1)
			fs := vfs.NewMem()
			var cache *sgc.Cache
			open := func() *Zone {
				o := Options{FS: fs, MemTableBytes: smallMemTable, segmentLimit: smallSegment}
				if cache = nil; cacheBytes >= 0 {
					cache = sgc.New(cacheBytes)
					o.Cache = cache
				}
				z, err := Open("zone", o)
				require.NoError(t, err)
				return z
			}
			z, m := open(), newModel()
			for range 4000 {
				switch op := rng.IntN(1000); {
				case op < 300:
					w := randomWrite(rng)
					require.NoError(t, w.do(z))
					w.applyTo(m)
				case op < 305:
					m.requireIn(t, z)
				case op < 307:
					require.NoError(t, z.Close())
					requireVerified(t, fs)
					z = open()
				case op < 309:
					require.NoError(t, z.Compact(context.Background(), nil))
				case op < 311:
					require.NoError(t, z.DB(ids[rng.IntN(len(ids))]).Compact([]byte("1"), []byte("4")))
				case op < 400:
					checkRange(t, rng, z, m)
				default:
					id := ids[rng.IntN(len(ids))]
					key := randomKey(rng, id)
					want, there := m[id][key]
					value, err := z.DB(id).Get([]byte(key))
					require.NoError(t, err)
					require.Equal(t, there, value != nil)
					require.Equal(t, want, string(value))
					if len(value) > 0 {
						value[0]++ // the caller owns it
					}
					has, err := z.DB(id).Has([]byte(key))
					require.NoError(t, err)
					require.Equal(t, there, has)
				}
			}
			m.requireIn(t, z)
			require.Greater(t, z.parts.store.Active(), uint32(10))
			require.Less(t, z.Metrics().Segments, int(z.parts.store.Active())/2, "segments were removed")
			if cache != nil && cacheBytes > 1<<20 {
				require.NotZero(t, cache.Stats().Zones[sgc.Blocks].Hits)
			}
			got, err := z.IDs()
			require.NoError(t, err)
			require.Equal(t, []string{"state", "tx_index", "blockstore"}, got)
			require.NoError(t, z.Close())
		})
	}
}

func checkRange(t *testing.T, rng *rand.Rand, z *Zone, m model) {
	t.Helper()
	id := ids[rng.IntN(len(ids))]
	bound := func() []byte {
		if rng.IntN(3) == 0 {
			return nil
		}
		return []byte(randomKey(rng, id))
	}
	start, end := bound(), bound()
	var want []string
	for _, key := range slices.Sorted(maps.Keys(m[id])) {
		if dbm.IsKeyInDomain([]byte(key), start, end) {
			want = append(want, key)
		}
	}
	it, err := z.DB(id).Iterator(start, end)
	require.NoError(t, err)
	if rng.IntN(2) == 0 {
		require.NoError(t, it.Close())
		it, err = z.DB(id).ReverseIterator(start, end)
		require.NoError(t, err)
		slices.Reverse(want)
	}
	var got []string
	for ; it.Valid(); it.Next() {
		got = append(got, string(it.Key()))
		require.Equal(t, m[id][string(it.Key())], string(it.Value()))
	}
	require.NoError(t, it.Error())
	require.NoError(t, it.Close())
	require.Equal(t, want, got, "[%q, %q)", start, end)
}

// TestIteratorIsAView: an iterator sees the data from its creation, and the returned slices stay
// unchanged.
func TestIteratorIsAView(t *testing.T) {
	z := openZone(t, vfs.NewMem(), Options{MemTableBytes: smallMemTable})
	db := z.DB("test")
	for i := range 100 {
		require.NoError(t, db.Set(fmt.Appendf(nil, "%03d", i), fmt.Appendf(nil, "old %d", i)))
	}
	it, err := db.Iterator(nil, nil)
	require.NoError(t, err)
	var keys, values [][]byte
	for i := 0; it.Valid(); i++ {
		keys, values = append(keys, it.Key()), append(values, it.Value())
		require.NoError(t, db.Delete(fmt.Appendf(nil, "%03d", 99-i)))
		require.NoError(t, db.Set(fmt.Appendf(nil, "%03d", i), bytes.Repeat([]byte("new"), 1000)))
		it.Next()
	}
	require.NoError(t, it.Close())
	require.NoError(t, z.Compact(context.Background(), nil))
	require.Len(t, keys, 100)
	for i := range keys {
		require.Equal(t, fmt.Sprintf("%03d", i), string(keys[i]))
		require.Equal(t, fmt.Sprintf("old %d", i), string(values[i]))
	}
}

// TestCloseUnderUsers: if the zone is closed, current reads and iterators, such as those of queries
// when a node stops, end with an error.
func TestCloseUnderUsers(t *testing.T) {
	z, err := Open("zone", Options{FS: vfs.NewMem(), Cache: sgc.New(1 << 20)})
	require.NoError(t, err)
	db := z.DB("test")
	for i := range 1000 {
		require.NoError(t, db.Set(fmt.Appendf(nil, "%03d", i), []byte("value")))
	}
	at, err := db.Iterator(nil, nil)
	require.NoError(t, err)
	b := db.NewBatch()
	require.NoError(t, b.Set([]byte("x"), []byte("y")))
	var users sync.WaitGroup
	started := make(chan struct{}, 4)
	for range 2 {
		users.Go(func() {
			started <- struct{}{}
			for {
				if _, err := db.Get([]byte("007")); err != nil {
					require.ErrorIs(t, err, ErrClosed)
					return
				}
			}
		})
		users.Go(func() {
			started <- struct{}{}
			for {
				it, err := db.Iterator(nil, nil)
				for ; err == nil && it.Valid(); it.Next() {
					require.Equal(t, "value", string(it.Value()))
				}
				if err == nil {
					err = errors.Join(it.Error(), it.Close())
				}
				if err != nil {
					require.ErrorIs(t, err, ErrClosed)
					return
				}
			}
		})
	}
	for range 4 {
		<-started
	}
	require.NoError(t, z.Close())
	users.Wait()
	require.NoError(t, z.Close())

	require.True(t, at.Valid())
	require.Equal(t, "value", string(at.Value()))
	at.Next()
	requireInvalid(t, at)
	require.ErrorIs(t, at.Error(), ErrClosed)
	require.NoError(t, at.Close())

	require.ErrorIs(t, db.Set([]byte("x"), []byte("y")), ErrClosed)
	require.ErrorIs(t, b.Write(), ErrClosed)
	require.NoError(t, b.Close())
	b = db.NewBatch()
	require.NoError(t, b.Delete([]byte("x")))
	require.ErrorIs(t, b.WriteSync(), ErrClosed)
	require.NoError(t, b.Close())
	_, err = db.Has([]byte("x"))
	require.ErrorIs(t, err, ErrClosed)
	_, err = z.IDs()
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorIs(t, db.Compact(nil, nil), ErrClosed)
	require.ErrorIs(t, z.Compact(context.Background(), nil), ErrClosed)
	require.Empty(t, db.Stats())
	require.Zero(t, z.Metrics())
}

func TestReadOnly(t *testing.T) {
	fs := vfs.NewMem()
	_, err := Open("zone", Options{FS: fs, ReadOnly: true})
	require.Error(t, err) // there is no database
	z, err := Open("zone", Options{FS: fs})
	require.NoError(t, err)
	_, err = Open("zone", Options{FS: fs, ReadOnly: true})
	require.ErrorIs(t, err, ErrLocked)
	require.NoError(t, z.DB("state").Set([]byte("a"), []byte("1")))
	require.NoError(t, z.Close())

	z = openZone(t, errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && !strings.HasSuffix(op.Path, "LOCK") {
			t.Errorf("a read-only zone changes %s", op.Path)
		}
		return nil
	})), Options{ReadOnly: true, Cache: sgc.New(1 << 20)})
	db := z.DB("state")
	require.Equal(t, map[string]string{"a": "1"}, content(t, db))
	require.ErrorIs(t, db.Set([]byte("a"), []byte("2")), ErrReadOnly)
	require.ErrorIs(t, db.DeleteSync([]byte("a")), ErrReadOnly)
	b := db.NewBatch()
	require.NoError(t, b.Delete([]byte("a")))
	require.ErrorIs(t, b.WriteSync(), ErrReadOnly)
	require.NoError(t, b.Close())
	require.ErrorIs(t, db.Compact(nil, nil), ErrReadOnly)
	require.ErrorIs(t, z.Compact(context.Background(), nil), ErrReadOnly)
	require.NotEmpty(t, db.Stats())
	require.Equal(t, map[string]string{"a": "1"}, content(t, db))
}

type silent struct{}

func (silent) Infof(string, ...any)  {}
func (silent) Errorf(string, ...any) {}
func (silent) Fatalf(format string, args ...any) {
	panic(fmt.Sprintf(format, args...))
}

func TestFormat(t *testing.T) {
	fs := vfs.NewMem()
	alter := func(value []byte) error {
		raw, err := pebble.Open("other", &pebble.Options{FS: fs, Logger: silent{}})
		require.NoError(t, err)
		require.NoError(t, raw.Set(formatKey, value, pebble.Sync))
		if value == nil {
			require.NoError(t, raw.Delete(formatKey, pebble.Sync))
			require.NoError(t, raw.Set([]byte("\x01ak"), []byte("v"), pebble.Sync))
		}
		require.NoError(t, raw.Close())
		z, err := Open("other", Options{FS: fs})
		if err == nil {
			return z.Close()
		}
		return err
	}
	require.ErrorIs(t, alter([]byte{FormatVersion}), ErrCorrupt, "the tag is missing")
	newer := alter([]byte{FormatVersion + 1})
	require.ErrorIs(t, newer, ErrNewerFormat)
	require.ErrorContains(t, newer, "blocks folder other was written by a newer version: layout 2, this program knows up to 1: use the starlingd that wrote it")
	require.ErrorIs(t, alter([]byte{}), ErrCorrupt)
	require.ErrorIs(t, alter([]byte{0}), ErrCorrupt)
	require.ErrorIs(t, alter(nil), ErrCorrupt)
}

func TestIDBounds(t *testing.T) {
	z := openZone(t, vfs.NewMem(), Options{})
	require.Panics(t, func() { z.DB("") })
	require.Panics(t, func() { z.DB(strings.Repeat("x", maxID+1)) })
	long := strings.Repeat("\xff", maxID)
	for _, id := range []string{long, long[1:], "\xff", "\x01", "\x01\xff"} {
		require.NoError(t, z.DB(id).Set([]byte(strings.Repeat("\xff", 300)), []byte(id)))
	}
	for _, id := range []string{long, long[1:], "\xff", "\x01", "\x01\xff"} {
		require.Equal(t, map[string]string{strings.Repeat("\xff", 300): id}, content(t, z.DB(id)))
	}
	got, err := z.IDs()
	require.NoError(t, err)
	require.Equal(t, []string{"\x01", "\xff", "\x01\xff", long[1:], long}, got)
	require.NoError(t, z.Compact(context.Background(), nil))
}

func TestCompactAndMetrics(t *testing.T) {
	z := openZone(t, vfs.NewMem(), Options{})
	noise := rand.NewChaCha8([32]byte{5}) // incompressible
	db := z.DB("blockstore")
	value := make([]byte, 1<<20)
	for i := range 160 {
		_, _ = noise.Read(value)
		require.NoError(t, db.Set(fmt.Appendf(nil, "%03d", i%40), value))
	}
	before := z.Metrics()
	require.Greater(t, before.BytesWritten, uint64(160<<20))
	var reports []uint64
	require.NoError(t, z.Compact(context.Background(), func(done, total uint64) {
		require.LessOrEqual(t, done, total)
		reports = append(reports, done)
	}))
	require.True(t, slices.IsSorted(reports))
	require.GreaterOrEqual(t, len(reports), 2)
	after := z.Metrics()
	require.Len(t, after.Levels, 7)
	require.Less(t, after.Levels[6].Bytes, int64(50<<20))
	require.Greater(t, after.CompactedBytes, before.CompactedBytes)
	require.Greater(t, after.WriteAmp, 1.)
	require.NotZero(t, after.DiskBytes)

	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	require.NoError(t, db.Set([]byte("x"), value))
	require.ErrorIs(t, z.Compact(canceled, nil), context.Canceled)
}

// TestMemTablesLeaveTheCache: memtables of the full size leave Pebble's block cache its memory.
func TestMemTablesLeaveTheCache(t *testing.T) {
	const size = 4 << 20
	z := openZone(t, vfs.NewMem(), Options{MemTableBytes: size, CacheBytes: size})
	db := z.DB("tx_index")
	noise := rand.NewChaCha8([32]byte{})
	value := make([]byte, 10<<10)
	const values = 4000
	for i := range values {
		_, _ = noise.Read(value)
		require.NoError(t, db.Set(fmt.Append(nil, i), value))
	}
	require.NoError(t, z.db.Flush())
	require.EqualValues(t, size, z.Metrics().MemTableBytes) // and as much is kept for reuse
	for i := range values {
		_, err := db.Get(fmt.Append(nil, i))
		require.NoError(t, err)
	}
	require.Greater(t, z.Metrics().BlockCacheBytes, int64(size/2))
}

// crashFS copies a crashable file system as a crash would leave it, just before its n-th change. A
// random part of the unsynced data survives.
type crashFS struct {
	vfs.FS
	changes atomic.Int64
	begun   atomic.Int64 // writes begun
	synced  atomic.Int64 // writes confirmed by a synced write
	crash   struct {
		sync.Once
		left          *vfs.MemFS
		begun, synced int64
	}
}

func newCrashFS(rng *rand.Rand, n int64) *crashFS {
	mem := vfs.NewCrashableMem()
	c := &crashFS{}
	cfg := vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng}
	c.FS = errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && c.changes.Add(1) >= n {
			c.crash.Do(func() {
				c.crash.synced = c.synced.Load()
				c.crash.left = mem.CrashClone(cfg)
				c.crash.begun = c.begun.Load()
			})
		}
		return nil
	}))
	return c
}

// TestCrash: after a crash at any point, the databases have the state after one of the writes, the
// same for all of them, and not older than the last synced write.
func TestCrash(t *testing.T) {
	crashes, writes := 80, 120
	if testing.Short() {
		crashes = 20
	}
	rng := newRNG(t, 1)
	history, all := []model{newModel()}, []write{}
	for i := range writes {
		w, m := randomWrite(rng), history[i].clone()
		w.applyTo(m)
		history, all = append(history, m), append(all, w)
	}
	run := func(c *crashFS) {
		z, err := Open("zone", Options{FS: c, MemTableBytes: smallMemTable, segmentLimit: smallSegment, Cache: sgc.New(1 << 20)})
		require.NoError(t, err)
		for i, w := range all {
			c.begun.Store(int64(i + 1))
			require.NoError(t, w.do(z))
			if w.sync && len(w.keys) > 0 {
				c.synced.Store(int64(i + 1))
			}
		}
		require.NoError(t, z.Close())
	}
	count := newCrashFS(newRNG(t, 0), 1<<60)
	run(count)
	lost := 0
	for seed := range uint64(crashes) {
		rng := newRNG(t, 100+seed)
		c := newCrashFS(rng, 1+rng.Int64N(count.changes.Load()))
		run(c)
		if c.crash.left == nil {
			continue // fewer changes this time: background work varies
		}
		z, err := Open("zone", Options{FS: c.crash.left})
		require.NoError(t, err)
		got := model{}
		for _, id := range ids {
			got[id] = content(t, z.DB(id))
		}
		require.Contains(t, history[c.crash.synced:c.crash.begun+1], got, "seed %d", 100+seed)
		if !slices.ContainsFunc(history[c.crash.begun:c.crash.begun+1], func(m model) bool { return maps.EqualFunc(m, got, maps.Equal) }) {
			lost++
		}
		next := randomWrite(rng) // and it continues from there
		next.sync = true
		require.NoError(t, next.do(z))
		next.applyTo(got)
		require.NoError(t, z.Close())
		requireVerified(t, c.crash.left)
		got.requireIn(t, openZone(t, c.crash.left, Options{}))
	}
	t.Logf("%d of %d crashes lost writes that were not synced", lost, crashes)
}

// TestDiskFailureIsFatal: if the log cannot be written, the process is ended, and synced data is
// available afterwards.
func TestDiskFailureIsFatal(t *testing.T) {
	syncs := []errorfs.OpKind{errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo}
	for name, c := range map[string]struct {
		suffix string
		kinds  []errorfs.OpKind
		err    error
		says   string
	}{
		"write":                     {".log", []errorfs.OpKind{errorfs.OpFileWrite}, errors.New("input/output error"), "check the disk"},
		"sync":                      {".log", syncs, errors.New("input/output error"), "check the disk"},
		"segment: write":            {".seg", []errorfs.OpKind{errorfs.OpFileWriteAt}, syscall.EIO, "check the disk"},
		"segment: full disk":        {".seg", []errorfs.OpKind{errorfs.OpFileWriteAt}, syscall.ENOSPC, "make room on the disk"},
		"segment: sync, quota":      {".seg", syncs, syscall.EDQUOT, "make room on the disk"},
		"segment: sync":             {".seg", syncs, syscall.EIO, "check the disk"},
		"segment: another is begun": {"000002.seg", []errorfs.OpKind{errorfs.OpOpen}, errors.New("no such device"), "check the disk"},
	} {
		t.Run(name, func(t *testing.T) {
			var broken atomic.Bool
			mem := vfs.NewCrashableMem()
			fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if broken.Load() && slices.Contains(c.kinds, op.Kind) && strings.HasSuffix(op.Path, c.suffix) {
					return c.err
				}
				return nil
			}))
			// A real Fatal ends the process. The database stays open, as in a killed one.
			fatal := make(chan error, 10)
			z, err := Open("zone", Options{FS: fs, segmentLimit: 1, Fatal: func(err error) { fatal <- err; select {} }})
			require.NoError(t, err)
			part := bytes.Repeat([]byte("part"), largeValue/4)
			require.NoError(t, z.DB(partsID).SetSync([]byte("P:1:0"), part))
			broken.Store(true)
			go func() { _ = z.DB(partsID).SetSync([]byte("P:2:0"), part) }()
			failure := <-fatal
			require.ErrorContains(t, failure, "blocks folder zone")
			require.ErrorContains(t, failure, c.says)
			after := openZone(t, mem.CrashClone(vfs.CrashCloneCfg{}), Options{})
			require.Equal(t, map[string]string{"P:1:0": string(part)}, content(t, after.DB(partsID)))
		})
	}
}

// TestTablesThatCannotBeWritten: tables cannot be written, but the log can. Pebble repeats the
// flush until it succeeds, so that neither a write nor Open would ever return. The first failure is
// reported.
func TestTablesThatCannotBeWritten(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		is   error
		says string
	}{
		"input/output error": {syscall.EIO, syscall.EIO, "check the disk"},
		"quota":              {syscall.EDQUOT, ErrDiskFull, "make room on the disk"},
		"full disk":          {syscall.ENOSPC, ErrDiskFull, "make room on the disk"},
	} {
		for _, when := range []string{"running", "opening"} {
			t.Run(name+", "+when, func(t *testing.T) {
				var broken atomic.Bool
				var failures atomic.Int64
				repeated, fatal := make(chan struct{}), make(chan error, 1)
				over := func(fs vfs.FS) vfs.FS {
					return errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
						if !broken.Load() || op.Kind != errorfs.OpFileWrite || !strings.HasSuffix(op.Path, ".sst") {
							return nil
						}
						if failures.Add(1) == 5 {
							close(repeated)
						}
						return c.err
					}))
				}
				at := vfs.NewCrashableMem()
				// A real Fatal ends the process.
				o := Options{FS: over(at), MemTableBytes: smallMemTable, Fatal: func(err error) { fatal <- err; select {} }}
				z, err := Open("zone", o)
				require.NoError(t, err)
				set := func(i int) error {
					return z.DB("state").SetSync(fmt.Appendf(nil, "%04d", i), bytes.Repeat([]byte{byte(i)}, 4<<10))
				}
				const before = 5
				for i := range before {
					require.NoError(t, set(i))
				}
				if when == "running" {
					broken.Store(true)
					go func() {
						for i := range 1000 { // far beyond the memtables
							_ = set(before + i)
						}
					}()
				} else {
					at = at.CrashClone(vfs.CrashCloneCfg{}) // killed: its data is in the log
					broken.Store(true)
					o.FS = over(at)
					go func() { _, _ = Open("zone", o) }()
				}
				select {
				case err = <-fatal:
				case <-repeated:
					t.Fatal("the flush is repeated without a report")
				}
				require.ErrorIs(t, err, c.is)
				require.ErrorContains(t, err, "blocks folder zone")
				require.ErrorContains(t, err, c.says)
				got := content(t, openZone(t, at.CrashClone(vfs.CrashCloneCfg{}), Options{}).DB("state"))
				for i := range before {
					require.Equal(t, strings.Repeat(string([]byte{byte(i)}), 4<<10), got[fmt.Sprintf("%04d", i)])
				}
			})
		}
	}
}

// TestReadFailure: a file that cannot be read is an error, not a missing key, and is first reported
// to ReadFailed.
func TestReadFailure(t *testing.T) {
	mem := vfs.NewMem()
	z, err := Open("zone", Options{FS: mem})
	require.NoError(t, err)
	noise, value := rand.NewChaCha8([32]byte{6}), make([]byte, 1000) // incompressible
	for i := range 1000 {
		_, _ = noise.Read(value)
		require.NoError(t, z.DB("state").Set(fmt.Appendf(nil, "%04d", i), value))
	}
	require.NoError(t, z.Compact(context.Background(), nil))
	require.NoError(t, z.Close())

	var broken atomic.Bool
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		// Pebble's own data is at the end, the layout record at the beginning.
		if broken.Load() && op.Kind == errorfs.OpFileReadAt && op.Offset > 0 && op.Offset < 500_000 && strings.HasSuffix(op.Path, ".sst") {
			return errors.New("input/output error")
		}
		return nil
	}))
	var told []error
	z = openZone(t, fs, Options{Cache: sgc.New(1 << 20), ReadFailed: func(err error) { told = append(told, err) }})
	db := z.DB("state")
	broken.Store(true)
	_, err = db.Get([]byte("0250"))
	require.ErrorContains(t, err, "input/output error")
	require.Equal(t, []error{err}, told)
	_, err = db.Has([]byte("0250"))
	require.ErrorContains(t, err, "input/output error")
	require.Equal(t, err, told[1])
	it, err := db.Iterator([]byte("0250"), nil)
	if err == nil {
		for it.Valid() {
			it.Next()
		}
		err = errors.Join(it.Error(), it.Close())
	}
	require.ErrorContains(t, err, "input/output error")
	require.Len(t, told, 3)
	broken.Store(false)
	value, err = db.Get([]byte("0250"))
	require.NoError(t, err)
	require.Len(t, value, 1000)
}
