package rootmulti

import (
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	dbm "github.com/cosmos/cosmos-db"

	"cosmossdk.io/log"
	"cosmossdk.io/store/iavl"
	"cosmossdk.io/store/metrics"
	"cosmossdk.io/store/types"

	"github.com/starling-kv/starling/cosmos/store"
)

// testType is the type of the stores that the SDK's tests mount. They run twice: over Starling's
// stores, and over IAVL's, which this package is to mount as the SDK's does.
var testType types.StoreType

// inStore is what the key paths of such a store have between its name and a key.
var inStore string

func storeOfTestType() any {
	if testType == store.Type {
		return new(store.Store)
	}
	return new(iavl.Store)
}

type queryableStore interface {
	types.CommitKVStore
	types.Queryable
}

// loadStore returns a store that is empty, without a multi-store.
func loadStore(db dbm.DB) (queryableStore, error) {
	if testType == store.Type {
		return store.New(store.Options{})
	}
	s, err := iavl.LoadStore(db, log.NewNopLogger(), types.NewKVStoreKey("test"), types.CommitID{}, iavl.DefaultIAVLCacheSize, false, metrics.NewNoOpMetrics())
	return s.(*iavl.Store), err
}

func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		if err := f.Value.Set("30"); err != nil { // a fifth of them with -short
			panic(err)
		}
	}
	for _, testType = range []types.StoreType{store.Type, types.StoreTypeIAVL} {
		inStore = map[types.StoreType]string{store.Type: "/" + store.MapKey}[testType]
		fmt.Println("stores of type", int(testType))
		if code := m.Run(); code != 0 {
			os.Exit(code)
		}
	}
}

// disks are the folders of the Starling stores, in memory, by the databases that they belong to.
var disks sync.Map // dbm.DB → *testDisk

type testDisk struct {
	fs   *vfs.MemFS
	last *Store
}

// newStore is NewStore with a folder that belongs to db. A second call with the same db is a
// restart: the folder can be open once.
func newStore(db dbm.DB) *Store {
	d, _ := disks.LoadOrStore(db, &testDisk{fs: vfs.NewMem()})
	disk := d.(*testDisk)
	if disk.last != nil {
		if err := disk.last.Close(); err != nil {
			panic(err)
		}
	}
	disk.last = NewStore(db, log.NewNopLogger(), metrics.NewNoOpMetrics(), Options{Dir: "starling", FS: disk.fs})
	return disk.last
}
