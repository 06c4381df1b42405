package comet

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	dbm "github.com/cometbft/cometbft-db"
	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/storage/blocks"
)

// After a power failure, the results, the state and the index of a block are there if the next
// block is, or if Sync has returned. Evidence and deletions are there in any case.
func TestCoveredWrites(t *testing.T) {
	conf := config.DefaultCometBFT()
	conf.SetRoot(t.TempDir())
	disk := vfs.NewCrashableMem()
	d := NewDatabases(conf, log.NewNopLogger(), blocks.Options{FS: disk})
	ids := []string{"blockstore", "state", "evidence", "tx_index"}
	db := func(id string) dbm.DB {
		t.Helper()
		db, err := d.provideCovered(&cfg.DBContext{ID: id, Config: conf})
		require.NoError(t, err)
		return db
	}
	requireLeft := func(want ...string) {
		t.Helper()
		zone, err := blocks.Open(config.BlocksDir(conf.DBDir()), blocks.Options{FS: disk.CrashClone(vfs.CrashCloneCfg{})})
		require.NoError(t, err)
		left := []string{}
		for _, id := range ids {
			it, err := zone.DB(id).Iterator(nil, nil)
			require.NoError(t, err)
			for ; it.Valid(); it.Next() {
				left = append(left, string(it.Key()))
			}
			require.NoError(t, it.Close())
		}
		require.NoError(t, zone.Close())
		require.Equal(t, want, left)
	}
	batch := func(id string, change func(dbm.Batch) error) {
		t.Helper()
		b := db(id).NewBatch()
		require.NoError(t, change(b))
		require.NoError(t, b.WriteSync())
		require.NoError(t, b.Close())
	}
	set := func(key string) func(dbm.Batch) error {
		return func(b dbm.Batch) error { return b.Set([]byte(key), []byte("x")) }
	}
	apply := func(height string) {
		t.Helper()
		batch("blockstore", set("block "+height))
		require.NoError(t, db("state").SetSync([]byte("results "+height), []byte("x")))
		batch("state", set("state "+height))
		batch("tx_index", set("index "+height))
	}
	apply("1")
	requireLeft("block 1")
	apply("2")
	requireLeft("block 1", "block 2", "results 1", "state 1", "index 1")
	require.NoError(t, d.Sync())
	requireLeft("block 1", "block 2", "results 1", "results 2", "state 1", "state 2", "index 1", "index 2")

	batch("state", func(b dbm.Batch) error { return b.Delete([]byte("state 1")) })
	require.NoError(t, db("state").DeleteSync([]byte("results 1")))
	requireLeft("block 1", "block 2", "results 2", "state 2", "index 1", "index 2")
	require.NoError(t, db("evidence").Set([]byte("pending"), []byte("x")))
	require.NoError(t, db("evidence").Set([]byte("committed"), []byte("x")))
	require.NoError(t, db("evidence").Delete([]byte("pending")))
	requireLeft("block 1", "block 2", "results 2", "state 2", "committed", "index 1", "index 2")
	require.NoError(t, db("state").SetSync([]byte("results 3"), []byte("x")))
	require.NoError(t, d.Close())
	requireLeft("block 1", "block 2", "results 2", "results 3", "state 2", "committed", "index 1", "index 2")
	require.NoError(t, d.Sync(), "the zone is closed")
}

// Databases with logs of their own sync each write.
func TestOtherBackendsAreNotCovered(t *testing.T) {
	conf := cfg.TestConfig().SetRoot(t.TempDir())
	conf.DBBackend = "goleveldb"
	d := NewDatabases(conf, log.NewNopLogger(), blocks.Options{})
	for _, id := range []string{"state", "evidence"} {
		db, err := d.provideCovered(&cfg.DBContext{ID: id, Config: conf})
		require.NoError(t, err)
		require.IsType(t, &database{}, db)
	}
	require.NoError(t, d.Sync())
	require.NoError(t, d.Close())
}
