package tables_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	dbm "github.com/cosmos/cosmos-db"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/iavlsync/iavlsynctest"
	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/cosmos/nodedb/nodedbtest"
	"github.com/starling-kv/starling/cosmos/tables"
	"github.com/starling-kv/starling/internal/seeds"
)

func forEngines(t *testing.T, test func(t *testing.T, engine dbm.BackendType, begin func(dir string) (nodedb.Tables, error))) {
	t.Run("goleveldb", func(t *testing.T) {
		test(t, dbm.GoLevelDBBackend, func(dir string) (nodedb.Tables, error) { return tables.NewGoLevelDB(dir) })
	})
	t.Run("pebbledb", func(t *testing.T) {
		test(t, dbm.PebbleDBBackend, func(dir string) (nodedb.Tables, error) { return tables.NewPebble(dir) })
	})
}

func content(t *testing.T, db dbm.DB) (records []nodedb.Record) {
	it, err := db.Iterator(nil, nil)
	require.NoError(t, err)
	for ; it.Valid(); it.Next() {
		records = append(records, nodedb.Record{Key: bytes.Clone(it.Key()), Value: bytes.Clone(it.Value())})
	}
	require.NoError(t, it.Error())
	require.NoError(t, it.Close())
	return records
}

// TestRuns: cosmos-db reads what was written, by key and in order, and continues with it.
func TestRuns(t *testing.T) {
	forEngines(t, func(t *testing.T, engine dbm.BackendType, begin func(dir string) (nodedb.Tables, error)) {
		rnd := seeds.Rand(t)
		home := t.TempDir()
		dir := filepath.Join(home, "application.db")
		require.NoError(t, os.Mkdir(dir, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "CURRENT"), []byte("left by a crash"), 0o600))
		into, err := begin(dir)
		require.NoError(t, err)
		want := map[string][]byte{}
		var wg sync.WaitGroup
		errs := make([]error, 5)
		for r := range errs {
			var keys []string
			for range 1 + rnd.IntN(30_000) {
				value := make([]byte, rnd.IntN(200))
				for i := range value {
					value[i] = byte(rnd.Uint32())
				}
				key := fmt.Sprintf("%d/%d", r, rnd.Uint64())
				want[key] = value
				keys = append(keys, key)
			}
			slices.Sort(keys)
			records := make([]nodedb.Record, 0, len(keys))
			for _, key := range slices.Compact(keys) {
				records = append(records, nodedb.Record{Key: []byte(key), Value: want[key]})
			}
			wg.Go(func() { errs[r] = write(into, records) })
		}
		wg.Wait()
		for _, err := range errs {
			require.NoError(t, err)
		}
		want["last"] = []byte("record")
		require.NoError(t, into.Commit([]nodedb.Record{{Key: []byte("last"), Value: want["last"]}}))
		for range 2 {
			db, err := dbm.NewDB("application", engine, home)
			require.NoError(t, err)
			records := content(t, db)
			require.Len(t, records, len(want))
			for i, r := range records {
				require.Equal(t, want[string(r.Key)], append([]byte{}, r.Value...), "%s", r.Key)
				if i%50 == 0 {
					v, err := db.Get(r.Key)
					require.NoError(t, err)
					require.Equal(t, want[string(r.Key)], append([]byte{}, v...))
				}
				switch i % 3 { // a new value, or a deletion
				case 0:
					value := []byte(fmt.Sprint("new ", i))
					require.NoError(t, db.Set(r.Key, value))
					want[string(r.Key)] = value
				case 1:
					require.NoError(t, db.Delete(r.Key))
					delete(want, string(r.Key))
				}
			}
			require.NoError(t, db.Close())
		}
	})
}

func write(into nodedb.Tables, records []nodedb.Record) error {
	run, err := into.Run()
	if err != nil {
		return err
	}
	for _, r := range records {
		if err := run.Set(r.Key, r.Value); err != nil {
			return err
		}
	}
	return run.Finish()
}

// full is a database on a disk with room for some runs.
type full struct {
	nodedb.Tables
	room atomic.Int64
}

func (f *full) Run() (nodedb.Run, error) {
	if f.room.Add(-1) < 0 {
		return nil, syscall.ENOSPC
	}
	return f.Tables.Run()
}

func TestOverlap(t *testing.T) {
	forEngines(t, func(t *testing.T, _ dbm.BackendType, begin func(dir string) (nodedb.Tables, error)) {
		into, err := begin(filepath.Join(t.TempDir(), "db"))
		require.NoError(t, err)
		require.NoError(t, write(into, []nodedb.Record{{Key: []byte("a")}, {Key: []byte("c")}}))
		require.NoError(t, write(into, []nodedb.Record{{Key: []byte("b")}}))
		require.ErrorIs(t, into.Commit(nil), nodedb.ErrOverlap)
	})
}

// TestSpool: a spool that is resumed repeatedly makes the same database as the Installer, in memory
// or with parts in files.
func TestSpool(t *testing.T) {
	forEngines(t, func(t *testing.T, engine dbm.BackendType, begin func(dir string) (nodedb.Tables, error)) {
		rnd := seeds.Rand(t)
		for _, keys := range []int{1, 60, 3000} {
			for _, memory := range []int64{0, 20_000} {
				t.Run(fmt.Sprintf("%d keys, %d bytes", keys, memory), func(t *testing.T) {
					spooled(t, rnd, engine, begin, keys, memory)
				})
			}
		}
	})
}

func spooled(t *testing.T, rnd *rand.Rand, engine dbm.BackendType, begin func(dir string) (nodedb.Tables, error), keys int, memory int64) {
	const height = 12
	naive := iavlsynctest.RandomState(rnd, keys, height)
	m := nodedbtest.Manifest(t, iavlsync.Format512, height, naive)
	chunks := nodedbtest.Chunks(t, m, naive)
	var data [][]byte
	for _, name := range naive.Names() {
		for _, n := range naive[name].Chunks(512) {
			data = append(data, n.Chunk())
		}
	}
	mem := nodedbtest.NewMem()
	in, err := nodedb.NewInstaller(mem, m)
	require.NoError(t, err)
	in.SnapshotInterval = 5
	for k, c := range chunks {
		require.NoError(t, in.Install(k, c, nil))
	}
	require.NoError(t, in.Finish())
	home := t.TempDir()
	files := func() int {
		left, err := os.ReadDir(filepath.Join(home, "spool"))
		require.NoError(t, err)
		return len(left)
	}
	chunkFiles := 1 + len(chunks) // with the manifest
	for {
		s, err := nodedb.NewSpool(filepath.Join(home, "spool"), m)
		require.NoError(t, err)
		s.MemoryBytes, s.SnapshotInterval = memory, 5
		missing := s.Missing()
		if len(missing) == 0 {
			into, err := begin(filepath.Join(home, "application.db"))
			require.NoError(t, err)
			disk := &full{Tables: into}
			disk.room.Store(rnd.Int64N(2))
			require.ErrorIs(t, s.Finish(disk), syscall.ENOSPC)
			require.Equal(t, chunkFiles, files(), "no parts are left")
			into, err = begin(filepath.Join(home, "application.db"))
			require.NoError(t, err)
			done := 0.0
			s.Progress = func(share float64) {
				require.Greater(t, share, done)
				done = share
			}
			require.NoError(t, s.Finish(into))
			require.InDelta(t, 1, done, 1e-6)
			require.Equal(t, chunkFiles, files())
			require.NoError(t, s.Remove())
			break
		}
		// A killed join leaves parts of the database.
		require.NoError(t, os.WriteFile(filepath.Join(home, "spool", ".part-1"), []byte("part"), 0o600))
		k := missing[rnd.IntN(len(missing))]
		require.NoError(t, s.Install(k, chunks[k], data[k]))
		require.Len(t, s.Missing(), len(missing)-1)
	}
	db, err := dbm.NewDB("application", engine, home)
	require.NoError(t, err)
	records := content(t, db)
	require.NoError(t, db.Close())
	require.Len(t, records, len(mem.Keys()))
	for i, key := range mem.Keys() {
		value, _ := mem.Get([]byte(key))
		require.Equal(t, key, string(records[i].Key))
		require.Equal(t, value, append([]byte{}, records[i].Value...), "%q", key)
	}
}
