package store

import (
	"testing"

	"github.com/starling-kv/starling/internal/upstream"
)

// TestUpstream runs the tests of the SDK's IAVL store over this package's Store (suite_test.go).
func TestUpstream(t *testing.T) {
	load := func(id string) string {
		return `LoadStore(db, log.NewNopLogger(), types.NewKVStoreKey("test"), ` + id + `, DefaultIAVLCacheSize, false)`
	}
	upstream.Run(t, upstream.Suite{
		Module:  "github.com/cosmos/cosmos-sdk/store/v2",
		Files:   []string{"iavl/store_test.go"},
		Package: "store",
		Replace: map[string]string{
			"*iavl.MutableTree": "*testTree",
			"iavl.NewMutableTree(db, cacheSize, false, log.NewNopLogger())":                       "newTree(db)",
			"iavl.NewMutableTree(wrapper.NewDBWrapper(db), cacheSize, false, log.NewNopLogger())": "newTree(db)",
			load("cIDH"):               "loadStore(store, cIDH)",
			load("cIDHp"):              "loadStore(store, cIDHp)",
			load("cIDHc"):              "loadStore(store, cIDHc)",
			"&cachekv.Store{}":         "Cache{}",
			"kv.Pairs":                 "pairs",
			"kv.Pair":                  "pair",
			"store.tree.SaveVersion()": "(&testTree{store}).SaveVersion()",
		},
		Drop: map[string]string{
			"TestChangeSets": "Starling stores have no change sets",
		},
	})
}
