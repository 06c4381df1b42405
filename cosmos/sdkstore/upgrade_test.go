package sdkstore

import (
	"fmt"
	"testing"

	dbm "github.com/cosmos/cosmos-db"
	"github.com/cosmos/cosmos-sdk/store/v2/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/iavlsync/iavlsynctest"
	"github.com/starling-kv/starling/cosmos/nodedb/nodedbtest"
	"github.com/starling-kv/starling/internal/seeds"
)

// TestUpgrades: an upgrade adds, renames and deletes stores. A node that joins from any later
// height executes 50 blocks, including a second upgrade, with the same result as the server, and is
// pruned like it. All of this is tested with the fast index, and without it on either side.
func TestUpgrades(t *testing.T) {
	const first = 10
	for _, height := range []int64{first, first + 1, first + 7} {
		for _, without := range [][2]bool{{false, false}, {true, false}, {false, true}, {true, true}} {
			t.Run(fmt.Sprintf("%d, fast index %t %t", height, !without[0], !without[1]), func(t *testing.T) {
				rnd := seeds.Rand(t)
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
				server := &chain{db: db, noFastIndex: without[0]}
				server.load(t, names, nil)
				for range first - 1 {
					server.Commit(t, block(names))
				}
				names = []string{"added", "bank", "new", "still"}
				server.load(t, names, &types.StoreUpgrades{Added: []string{"added"}, Deleted: []string{"deleted"},
					Renamed: []types.StoreRename{{OldKey: "old", NewKey: "new"}}})
				for server.store.LastCommitID().Version < height {
					server.Commit(t, block(names))
				}
				joined := &chain{db: dbm.NewMemDB(), noFastIndex: without[1]}
				nodedbtest.Copy(t, rnd, server.DB(), joined.DB(), iavlsync.Format32, height, server.AppHash(t))
				joined.load(t, names, nil)
				chains := []*chain{server, joined}
				require.Equal(t, server.AppHash(t), joined.AppHash(t))
				for range 50 {
					last := chains[0].store.LastCommitID().Version
					if last == height+25 {
						names = []string{"added", "bank", "newer", "still"}
						upgrade := &types.StoreUpgrades{Renamed: []types.StoreRename{{OldKey: "new", NewKey: "newer"}}}
						for _, c := range chains {
							c.load(t, names, upgrade)
						}
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
