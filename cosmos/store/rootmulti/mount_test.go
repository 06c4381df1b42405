package rootmulti_test

import (
	"path/filepath"
	"testing"

	dbm "github.com/cosmos/cosmos-db"
	"github.com/stretchr/testify/require"

	"cosmossdk.io/log/v2"
	"github.com/cosmos/cosmos-sdk/store/v2/types"

	"github.com/starling-kv/starling/cosmos/store"
	"github.com/starling-kv/starling/cosmos/store/rootmulti"
)

// app stands in for an SDK application's BaseApp. It has only the methods that the test needs.
type app struct{ cms types.CommitMultiStore }

func (a *app) SetCMS(cms types.CommitMultiStore) { a.cms = cms }

func (a *app) MountStore(key types.StoreKey, typ types.StoreType) {
	a.cms.MountStoreWithDB(key, typ, nil)
}

// TestMount mounts a store of our type and one of IAVL's.
func TestMount(t *testing.T) {
	db, logger, home, app := dbm.NewMemDB(), log.NewNopLogger(), t.TempDir(), new(app)
	keys := types.NewKVStoreKeys("bank", "gov")

	cms := rootmulti.NewStore(db, logger, rootmulti.Options{Dir: filepath.Join(home, "data", "starling")})
	app.SetCMS(cms)
	app.MountStore(keys["bank"], store.Type)

	app.MountStore(keys["gov"], types.StoreTypeIAVL)
	require.NoError(t, app.cms.LoadLatestVersion())
	cms.GetKVStore(keys["bank"]).Set([]byte("k"), []byte("v"))
	id := cms.Commit()
	require.Equal(t, int64(1), id.Version)

	// An oversized write fails in the transaction, not later when the block is written.
	branch := cms.CacheMultiStore().CacheMultiStore()
	require.Panics(t, func() { branch.GetKVStore(keys["bank"]).Set([]byte("k"), make([]byte, 2<<20)) })
	require.Panics(t, func() { branch.GetKVStore(keys["bank"]).Set(make([]byte, 5000), []byte("v")) })
	branch.GetKVStore(keys["gov"]).Set([]byte("k"), make([]byte, 2<<20))
	branch.Write()
	require.NoError(t, cms.Close())
}
