package sdk

import (
	"fmt"
	"testing"

	"cosmossdk.io/log"
	"cosmossdk.io/store/metrics"
	"cosmossdk.io/store/rootmulti"
	"cosmossdk.io/store/types"
	dbm "github.com/cosmos/cosmos-db"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/iavlsync/iavlsynctest"
	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/cosmos/nodedb/nodedbtest"
)

// load opens a multi-store with an upgrade; nil: with none.
func load(t *testing.T, db dbm.DB, noFastIndex bool, names []string, upgrades *types.StoreUpgrades) *chain {
	c := &chain{db: db, keys: map[string]*types.KVStoreKey{}}
	c.store = rootmulti.NewStore(db, log.NewNopLogger(), metrics.NewNoOpMetrics())
	c.store.SetIAVLDisableFastNode(noFastIndex)
	c.store.SetIAVLSyncPruning(true)
	for _, name := range names {
		c.keys[name] = types.NewKVStoreKey(name)
		c.store.MountStoreWithDB(c.keys[name], types.StoreTypeIAVL, nil)
	}
	require.NoError(t, c.store.LoadLatestVersionAndUpgrade(upgrades))
	return c
}

// TestUpgrades: an upgrade adds, renames and deletes stores; what joins from any height after it
// executes 50 blocks, a second upgrade among them, as the server does, and is pruned as it is. All
// of this with the fast index, and without one on either side.
func TestUpgrades(t *testing.T) {
	const first = 10
	for _, height := range []int64{first, first + 1, first + 7} {
		for _, without := range [][2]bool{{false, false}, {true, false}, {false, true}, {true, true}} {
			t.Run(fmt.Sprintf("%d, fast index %t %t", height, !without[0], !without[1]), func(t *testing.T) {
				rnd := iavlsynctest.Rand(t)
				block := func(names []string) map[string][]iavlsynctest.Op {
					ops := map[string][]iavlsynctest.Op{}
					for _, name := range names {
						if ops[name] = nil; name != "still" && rnd.IntN(3) > 0 {
							ops[name] = iavlsynctest.RandomOps(rnd, 300, rnd.IntN(120), 0.3)
						}
					}
					return ops
				}
				db := dbm.NewMemDB()
				names := []string{"bank", "deleted", "old", "still"}
				server := load(t, db, without[0], names, nil)
				for range first - 1 {
					server.Commit(t, block(names))
				}
				names = []string{"added", "bank", "new", "still"}
				server = load(t, db, without[0], names, &types.StoreUpgrades{Added: []string{"added"}, Deleted: []string{"deleted"},
					Renamed: []types.StoreRename{{OldKey: "old", NewKey: "new"}}})
				for server.store.LastCommitID().Version < height {
					server.Commit(t, block(names))
				}
				joined := dbm.NewMemDB()
				nodedbtest.Copy(t, rnd, nodedb.Of(db), nodedb.Of(joined), iavlsync.Format32, height, server.AppHash(t))
				chains := []*chain{server, load(t, joined, without[1], names, nil)}
				require.Equal(t, server.AppHash(t), chains[1].AppHash(t))
				for range 50 {
					last := chains[0].store.LastCommitID().Version
					if last == height+25 {
						names = []string{"added", "bank", "newer", "still"}
						upgrade := &types.StoreUpgrades{Renamed: []types.StoreRename{{OldKey: "new", NewKey: "newer"}}}
						chains = []*chain{load(t, db, without[0], names, upgrade), load(t, joined, without[1], names, upgrade)}
					}
					ops := block(names)
					for _, c := range chains {
						c.Commit(t, ops)
					}
					require.Equal(t, chains[0].AppHash(t), chains[1].AppHash(t), "height %d", last+1)
					if rnd.IntN(6) == 0 && last > height+30 {
						for _, c := range chains {
							require.NoError(t, c.store.PruneStores(last-1))
						}
					}
				}
			})
		}
	}
}
