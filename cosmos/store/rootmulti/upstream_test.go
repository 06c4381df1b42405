package rootmulti

import (
	"testing"

	"github.com/starling-kv/starling/internal/upstream"
)

// TestUpstream runs the tests of the SDK's multi-store over this package's, once with Starling
// stores in place of IAVL stores, and once unchanged (suite_test.go).
func TestUpstream(t *testing.T) {
	const newSDK = "NewStore(db, log.NewNopLogger())"
	key := func(name string) (from, to string) {
		return `"/iavlStoreKey/` + name + `"`, `"/iavlStoreKey"+inStore+"/` + name + `"`
	}
	s := upstream.Suite{
		Module:  "github.com/cosmos/cosmos-sdk/store/v2",
		Files:   []string{"rootmulti/store_test.go", "rootmulti/snapshot_test.go", "rootmulti/proof_test.go"},
		Package: "rootmulti",
		Replace: map[string]string{
			newSDK:                "newStore(db)",
			"rootmulti." + newSDK: "newStore(db)",
			"rootmulti.NewStore(dbm.NewMemDB(), log.NewNopLogger())": "newStore(dbm.NewMemDB())",
			"rootmulti.Store":            "Store",
			"types.StoreTypeIAVL":        "testType",
			"&iavl.Store{}":              "storeOfTestType()",
			"*iavl.Store":                "versionedStore",
			"cachemulti.Store{}":         "&branch{}",
			"ms.getCommitStore":          "ms.GetStore",
			"ms.getCommitKVStore":        "ms.GetStore",
			"multi.getCommitKVStore":     "multi.GetStore",
			"store.stores[iavlStoreKey]": "store.GetStore(iavlStoreKey)",
			"ms.keysByName":              "ms.StoreKeysByName()",
			"multi.keysByName":           "multi.StoreKeysByName()",
			"ms.pruningManager":          "ms.pruning",
			"1*time.Second":              "time.Minute", // IAVL prunes later
			`"/MYKEY"`:                   `inStore+"/MYKEY"`,
			`iavl.LoadStore(db, log.NewNopLogger(), types.NewKVStoreKey("test"), types.CommitID{}, iavl.DefaultIAVLCacheSize, false)`: "loadStore(db)",
		},
		Drop: map[string]string{
			"TestCommitStores":    "uses a private function of the SDK; TestRandom and TestKilled interrupt commits",
			"TestParsePath":       "uses a private function of the SDK; TestQueryProofs tests wrong paths",
			"prepareStoreMap":     "of TestCommitStores",
			"commitStoreStub":     "of TestCommitStores",
			"unmountStore":        "uses private fields of the SDK; suite_test.go has a replacement",
			"getExpectedCommitID": "uses private fields of the SDK; suite_test.go has a replacement",
			"hashStores":          "of getExpectedCommitID",
		},
	}
	for _, name := range []string{"MYKEY", "MYKEY_NOT", "MYABSENTKEY"} {
		from, to := key(name)
		s.Replace[from] = to
	}
	upstream.Run(t, s)
}
