//go:build upstream

package rootmulti

import (
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	dbm "github.com/cosmos/cosmos-db"

	"cosmossdk.io/log/v2"
	"github.com/cosmos/cosmos-sdk/store/v2/iavl"
	"github.com/cosmos/cosmos-sdk/store/v2/types"

	"github.com/starling-kv/starling/cosmos/store"
)

// testType is the type of the stores that the SDK's tests mount.
var testType types.StoreType

// inStore is the part of a key path between the store's name and the key.
var inStore string

// TestMain runs the SDK's tests over stores of both types.
func TestMain(m *testing.M) {
	flag.Parse()
	for _, suite := range []struct {
		typ      types.StoreType
		in, skip string
	}{
		// The checksum is for IAVL nodes; ../testdata/snapshots.json covers Starling stores.
		{store.Type, "/" + store.MapKey, "^TestMultistoreSnapshot_Checksum$"},
		// The first takes minutes with IAVL. The second unmounts a store, and for an IAVL store the
		// fields that this needs are private to the SDK.
		{types.StoreTypeIAVL, "", "^(TestMultiStore_Pruning_SameHeightsTwice|TestMultistoreLoadWithUpgrade)$"},
	} {
		testType, inStore = suite.typ, suite.in
		if err := flag.Set("test.skip", suite.skip); err != nil {
			panic(err)
		}
		fmt.Println("stores of type", int(testType))
		if code := m.Run(); code != 0 {
			os.Exit(code)
		}
	}
}

func storeOfTestType() any {
	if testType == store.Type {
		return new(store.Store)
	}
	return new(iavl.Store)
}

type versionedStore interface {
	types.CommitKVStore
	types.Queryable
	VersionExists(int64) bool
}

// loadStore returns an empty store without a multi-store.
func loadStore(db dbm.DB) (types.CommitKVStore, error) {
	if testType == store.Type {
		return store.New(store.Options{})
	}
	return iavl.LoadStore(db, log.NewNopLogger(), types.NewKVStoreKey("test"), types.CommitID{}, iavl.DefaultIAVLCacheSize, false)
}

// disks holds the in-memory folders of the Starling stores, by the databases they belong to.
var disks sync.Map // dbm.DB → *testDisk

type testDisk struct {
	fs   *vfs.MemFS
	last *Store
}

// newStore is NewStore with a folder that belongs to db. A second call with the same db is a
// restart, because the folder can be open only once.
func newStore(db dbm.DB) *Store {
	d, _ := disks.LoadOrStore(db, &testDisk{fs: vfs.NewMem()})
	disk := d.(*testDisk)
	if disk.last != nil {
		if err := disk.last.Close(); err != nil {
			panic(err)
		}
	}
	disk.last = NewStore(db, log.NewNopLogger(), Options{Dir: "starling", FS: disk.fs})
	return disk.last
}

func unmountStore(s *Store, name string) {
	delete(s.stores, s.mounted[name])
	delete(s.mounted, name)
}

// getExpectedCommitID computes the commit ID from the stores' own commit IDs.
func getExpectedCommitID(s *Store, version int64) types.CommitID {
	info := types.CommitInfo{Version: version}
	for name, key := range s.StoreKeysByName() {
		if of := s.GetStore(key).(types.CommitStore); of.GetStoreType() == testType {
			info.StoreInfos = append(info.StoreInfos, types.StoreInfo{Name: name, CommitId: of.LastCommitID()})
		}
	}
	return info.CommitID()
}
