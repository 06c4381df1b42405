package engine

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"
)

// TestPowerLossWhileOpening: after a power loss at any point of the first openings, with any of the
// unsynced data kept or lost, the folder opens or can be created, and has the synced data. Nothing
// is reported as damage.
func TestPowerLossWhileOpening(t *testing.T) {
	seeds := uint64(12)
	if testing.Short() {
		seeds = 2
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 0))
			mem := vfs.NewCrashableMem()
			var mu sync.Mutex // guards the variables below, and rng
			var crashed []*vfs.MemFS
			var synced []int // number of keys at each sync
			keys := 0
			fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
					mu.Lock()
					defer mu.Unlock()
					crashed = append(crashed, mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng}))
					synced = append(synced, keys)
				}
				return nil
			}))
			for range 3 {
				db, err := openFolder(fs)
				require.NoError(t, err)
				require.NoError(t, db.Set(fmt.Appendf(nil, "key %d", keys), []byte("value"), pebble.Sync))
				mu.Lock()
				keys++
				mu.Unlock()
				require.NoError(t, db.Flush())
				require.NoError(t, db.Close())
			}
			require.Greater(t, len(crashed), 50)
			for i, left := range crashed {
				db, err := openFolder(left)
				require.NoError(t, err, "change %d", i)
				got, err := readDB(db)
				require.NoError(t, err)
				require.GreaterOrEqual(t, len(got), synced[i], "change %d", i)
				require.NoError(t, db.Close())
			}
		})
	}
}
