package sdk

import (
	"errors"
	"testing"

	"cosmossdk.io/log"
	"cosmossdk.io/store/iavl"
	"cosmossdk.io/store/metrics"
	"cosmossdk.io/store/rootmulti"
	"cosmossdk.io/store/types"
	dbm "github.com/cosmos/cosmos-db"
	iavltree "github.com/cosmos/iavl"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync/iavlsynctest"
)

// chain is a multi-store that is opened anew, with an upgrade, whenever a store is added.
type chain struct {
	db    dbm.DB
	store *rootmulti.Store
	keys  map[string]*types.KVStoreKey
}

func (c *chain) open(t *testing.T, added []string) {
	c.store = rootmulti.NewStore(c.db, log.NewNopLogger(), metrics.NewNoOpMetrics())
	for _, name := range added {
		c.keys[name] = types.NewKVStoreKey(name)
	}
	for _, key := range c.keys {
		c.store.MountStoreWithDB(key, types.StoreTypeIAVL, nil)
	}
	// Stores of these types are in no app hash.
	c.store.MountStoreWithDB(types.NewTransientStoreKey("aaa_transient"), types.StoreTypeTransient, nil)
	c.store.MountStoreWithDB(types.NewMemoryStoreKey("zzz_memory"), types.StoreTypeMemory, nil)
	require.NoError(t, c.store.LoadLatestVersionAndUpgrade(&types.StoreUpgrades{Added: added}))
}

func (c *chain) Commit(t *testing.T, block map[string][]iavlsynctest.Op) {
	var added []string
	for _, name := range iavlsynctest.Keys(block) {
		if c.keys[name] == nil {
			added = append(added, name)
		}
	}
	if len(added) > 0 || c.store == nil {
		c.open(t, added)
	}
	for name, ops := range block {
		kv := c.store.GetCommitKVStore(c.keys[name])
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
	return c.store.GetCommitKVStore(c.keys[store]).(*iavl.Store)
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

func Test(t *testing.T) {
	iavlsynctest.Run(t, "../../testdata/vectors.json", func(*testing.T) iavlsynctest.Chain {
		return &chain{db: dbm.NewMemDB(), keys: map[string]*types.KVStoreKey{}}
	})
}
