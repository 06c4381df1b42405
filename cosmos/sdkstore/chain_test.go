package sdkstore

import (
	"encoding/hex"
	"errors"
	"testing"

	"cosmossdk.io/log/v2"
	dbm "github.com/cosmos/cosmos-db"
	"github.com/cosmos/cosmos-sdk/store/v2/iavl"
	"github.com/cosmos/cosmos-sdk/store/v2/rootmulti"
	"github.com/cosmos/cosmos-sdk/store/v2/types"
	iavltree "github.com/cosmos/iavl"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync/iavlsynctest"
	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/cosmos/nodedb/nodedbtest"
)

// chain is an application's multi-store. Whenever a store is added, it is loaded again, with an
// upgrade.
type chain struct {
	db          dbm.DB
	noFastIndex bool
	store       *rootmulti.Store
	keys        map[string]*types.KVStoreKey
}

// load loads the latest version, with upgrades unless they are nil.
func (c *chain) load(t *testing.T, names []string, upgrades *types.StoreUpgrades) {
	c.store = rootmulti.NewStore(c.db, log.NewNopLogger())
	c.store.SetIAVLDisableFastNode(c.noFastIndex)
	c.store.SetIAVLSyncPruning(true)
	c.keys = map[string]*types.KVStoreKey{}
	for _, name := range names {
		c.keys[name] = types.NewKVStoreKey(name)
		c.store.MountStoreWithDB(c.keys[name], types.StoreTypeIAVL, nil)
	}
	// The app hash does not cover stores of this type.
	c.store.MountStoreWithDB(types.NewTransientStoreKey("aaa_transient"), types.StoreTypeTransient, nil)
	c.store.MountStoreWithDB(types.NewMemoryStoreKey("zzz_memory"), types.StoreTypeMemory, nil)
	require.NoError(t, c.store.LoadLatestVersionAndUpgrade(upgrades))
}

func (c *chain) DB() nodedb.DB { return nodedb.Of(c.db) }

func (c *chain) Load(t *testing.T, height int64, stores []string) nodedbtest.Chain {
	loaded := &chain{db: c.db}
	if height > 0 {
		loaded.load(t, stores, nil)
		require.Equal(t, height, loaded.store.LastCommitID().Version)
	}
	return loaded
}

func (c *chain) Commit(t *testing.T, block map[string][]iavlsynctest.Op) {
	names, upgrade := iavlsynctest.Keys(block), &types.StoreUpgrades{}
	for _, name := range names {
		if c.keys[name] == nil {
			upgrade.Added = append(upgrade.Added, name)
		}
	}
	if len(upgrade.Added) > 0 || c.store == nil {
		c.load(t, names, upgrade)
	}
	for name, ops := range block {
		kv := c.store.GetKVStore(c.keys[name])
		for _, op := range ops {
			if op.Value == nil {
				kv.Delete(op.Key)
			} else {
				kv.Set(op.Key, op.Value)
			}
		}
	}
	c.store.Commit()
}

func (c *chain) tree(store string) *iavl.Store {
	return c.store.GetStore(c.keys[store]).(*iavl.Store)
}

func (c *chain) Root(_ *testing.T, store string) []byte { return c.tree(store).LastCommitID().Hash }

func (c *chain) AppHash(*testing.T) []byte { return c.store.LastCommitID().Hash }

func (c *chain) Export(t *testing.T, store string) (nodes []iavlsynctest.Exported) {
	e, err := c.tree(store).Export(c.store.LastCommitID().Version)
	require.NoError(t, err)
	defer e.Close()
	for {
		n, err := e.Next()
		if errors.Is(err, iavltree.ErrorExportDone) {
			return nodes
		}
		require.NoError(t, err)
		nodes = append(nodes, iavlsynctest.Exported{Key: n.Key, Value: n.Value, Version: n.Version, Height: n.Height})
	}
}

func (c *chain) Prune(t *testing.T, height int64) { require.NoError(t, c.store.PruneStores(height)) }

func (c *chain) Prove(t *testing.T, store string, key []byte, there bool) {
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

func TestFormats(t *testing.T) {
	iavlsynctest.Run(t, "../iavlsync/testdata/vectors.json", func(*testing.T) iavlsynctest.Chain { return &chain{db: dbm.NewMemDB()} })
}

func TestInstalled(t *testing.T) {
	nodedbtest.Run(t, func(*testing.T) nodedbtest.Home { return &chain{db: dbm.NewMemDB()} })
}

// TestInstalledOnDisk covers goleveldb and Pebble, which return different results for an empty
// value.
func TestInstalledOnDisk(t *testing.T) {
	for _, backend := range []dbm.BackendType{dbm.GoLevelDBBackend, dbm.PebbleDBBackend} {
		t.Run(string(backend), func(t *testing.T) {
			nodedbtest.Run(t, func(t *testing.T) nodedbtest.Home {
				db, err := dbm.NewDB("application", backend, t.TempDir())
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, db.Close()) })
				return &chain{db: db}
			})
		})
	}
}
