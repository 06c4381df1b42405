package sdk

import (
	"encoding/hex"
	"testing"

	"cosmossdk.io/log"
	"cosmossdk.io/store/metrics"
	"cosmossdk.io/store/rootmulti"
	"cosmossdk.io/store/types"
	dbm "github.com/cosmos/cosmos-db"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync/iavlsynctest"
	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/cosmos/nodedb/nodedbtest"
)

// home is the database of an application.
type home struct{ db dbm.DB }

func (h *home) DB() nodedb.DB { return nodedb.Of(h.db) }

func (h *home) Load(t *testing.T, height int64, stores []string) nodedbtest.Chain {
	c := &running{chain{db: h.db, keys: map[string]*types.KVStoreKey{}}}
	if height > 0 {
		c.load(t, stores, &types.StoreUpgrades{})
		require.Equal(t, height, c.store.LastCommitID().Version)
	}
	return c
}

// running is a chain that is pruned, and that proves keys up to its app hash.
type running struct{ chain }

func (c *running) load(t *testing.T, stores []string, upgrades *types.StoreUpgrades) {
	c.store = rootmulti.NewStore(c.db, log.NewNopLogger(), metrics.NewNoOpMetrics())
	c.store.SetIAVLSyncPruning(true)
	for _, name := range stores {
		if c.keys[name] == nil {
			c.keys[name] = types.NewKVStoreKey(name)
		}
		c.store.MountStoreWithDB(c.keys[name], types.StoreTypeIAVL, nil)
	}
	require.NoError(t, c.store.LoadLatestVersionAndUpgrade(upgrades))
}

func (c *running) Commit(t *testing.T, block map[string][]iavlsynctest.Op) {
	if names := iavlsynctest.Keys(block); len(names) != len(c.keys) { // the last block's upgrade
		added := &types.StoreUpgrades{}
		for _, name := range names {
			if c.keys[name] == nil {
				added.Added = append(added.Added, name)
			}
		}
		c.load(t, names, added)
	}
	c.chain.Commit(t, block)
}

func (c *running) Prune(t *testing.T, height int64) { require.NoError(t, c.store.PruneStores(height)) }

func (c *running) Prove(t *testing.T, store string, key []byte, there bool) {
	last := c.store.LastCommitID()
	answer, err := c.tree(store).Query(&types.RequestQuery{Path: "/key", Data: key, Height: last.Version, Prove: true})
	require.NoError(t, err)
	runtime := rootmulti.DefaultProofRuntime()
	proof := answer.ProofOps
	require.NotNil(t, proof)
	info, err := c.store.GetCommitInfo(last.Version)
	require.NoError(t, err)
	require.Equal(t, last.Hash, info.Hash())
	proof.Ops = append(proof.Ops, info.ProofOp(store))
	path := "/" + store + "/x:" + hex.EncodeToString(key)
	if there {
		require.NoError(t, runtime.VerifyValue(proof, last.Hash, path, answer.Value))
	} else {
		require.NoError(t, runtime.VerifyAbsence(proof, last.Hash, path))
	}
}

func TestInstalled(t *testing.T) {
	nodedbtest.Run(t, func(*testing.T) nodedbtest.Home { return &home{dbm.NewMemDB()} })
}

// TestInstalledOnDisk: goleveldb and Pebble, which differ in what they return for an empty value.
func TestInstalledOnDisk(t *testing.T) {
	for _, backend := range []dbm.BackendType{dbm.GoLevelDBBackend, dbm.PebbleDBBackend} {
		t.Run(string(backend), func(t *testing.T) {
			nodedbtest.Run(t, func(t *testing.T) nodedbtest.Home {
				db, err := dbm.NewDB("application", backend, t.TempDir())
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, db.Close()) })
				return &home{db}
			})
		})
	}
}
