package node

import (
	"fmt"
	"os"
	"time"

	"cosmossdk.io/log/v2"
	abci "github.com/cometbft/cometbft/abci/types"
	dbm "github.com/cosmos/cosmos-db"
	"github.com/cosmos/cosmos-sdk/baseapp"
	"github.com/cosmos/cosmos-sdk/client"
	"github.com/cosmos/cosmos-sdk/server/api"
	"github.com/cosmos/cosmos-sdk/server/config"
	servertypes "github.com/cosmos/cosmos-sdk/server/types"
	storetypes "github.com/cosmos/cosmos-sdk/store/v2/types"
	sdk "github.com/cosmos/cosmos-sdk/types"

	"github.com/starling-kv/starling/bench/sdk/usage"
	"github.com/starling-kv/starling/cosmos/sdk/serve"
	"github.com/starling-kv/starling/internal/child"
)

const (
	chainID = "bench-1"
	// iavlCacheSize is the default of the SDK's server (app.toml, iavl-cache-size).
	iavlCacheSize = 781_250
)

// node is an application whose next block makes the given changes.
type node struct {
	app    servertypes.Application
	height int64
	next   []child.Change // changes of the next block
	joiner *joiner        // nil: no joiner
}

// application adds to baseapp the methods that a server calls.
type application struct{ *baseapp.BaseApp }

func (application) RegisterAPIRoutes(*api.Server, config.APIConfig)   {}
func (application) RegisterTxService(client.Context)                  {}
func (application) RegisterTendermintService(client.Context)          {}
func (application) RegisterNodeService(client.Context, config.Config) {}

// options are the settings of app.toml.
type options map[string]any

// Get implements servertypes.AppOptions.
func (o options) Get(name string) any { return o[name] }

// openNode opens the database of a chain that package store has written.
func openNode(b Begin) (*node, error) {
	db, err := dbm.NewDB("application", dbm.BackendType(b.Backend), b.Dir)
	if err != nil {
		return nil, err
	}
	n := &node{}
	create, o := servertypes.AppCreator(n.newApp), options{}
	switch b.Mode {
	case modePlain:
	case modeServed, modeJoined:
		create = serve.Creator(n.newApp)
		o = options{"state-sync.snapshot-interval": b.Interval, "starling.laddr": "127.0.0.1:0", "chain-id": chainID}
	default:
		return nil, fmt.Errorf("mode %q is not plain, served or joined", b.Mode)
	}
	n.app = create(log.NewLogger(os.Stderr, log.LevelOption(2)), db, o)
	n.height = n.app.CommitMultiStore().LastCommitID().Version
	if b.Mode == modeJoined {
		n.joiner = newJoiner(n.app.(*serve.App).Address)
	}
	return n, nil
}

func (n *node) newApp(logger log.Logger, db dbm.DB, _ servertypes.AppOptions) servertypes.Application {
	app := baseapp.NewBaseApp("bench", logger, db, nil, baseapp.SetChainID(chainID), baseapp.SetIAVLCacheSize(iavlCacheSize))
	key := storetypes.NewKVStoreKey("kv")
	app.MountStore(key, storetypes.StoreTypeIAVL)
	app.SetBeginBlocker(func(ctx sdk.Context) (sdk.BeginBlock, error) {
		kv := ctx.KVStore(key)
		for _, c := range n.next {
			if c.Value == nil {
				kv.Delete(c.Key)
			} else {
				kv.Set(c.Key, c.Value)
			}
		}
		return sdk.BeginBlock{}, nil
	})
	if err := app.LoadLatestVersion(); err != nil {
		panic(err) // as in the SDK's AppCreators
	}
	return application{app}
}

// commit makes a block with these changes.
func (n *node) commit(changes []child.Change) (a Answer, err error) {
	n.next = changes
	n.height++
	began := time.Now()
	r, err := n.app.FinalizeBlock(&abci.RequestFinalizeBlock{Height: n.height, Time: time.Unix(n.height, 0)})
	if err != nil {
		return a, err
	}
	from := time.Now()
	if _, err := n.app.Commit(); err != nil {
		return a, err
	}
	a.Nanos, a.BlockNanos, a.Root = time.Since(from).Nanoseconds(), time.Since(began).Nanoseconds(), r.AppHash
	return a, nil
}

// end returns the figures of serving.
func (n *node) end() (a Answer, err error) {
	list, err := n.app.ListSnapshots(&abci.RequestListSnapshots{})
	if err != nil {
		return a, err
	}
	a.Snapshots = len(list.Snapshots)
	_, a.PeakBytes = usage.Memory()
	if n.joiner != nil {
		a.Bytes = n.joiner.bytes.Load()
	}
	return a, nil
}

// Close implements child.Worker.
func (n *node) Close() error {
	if n.joiner != nil {
		n.joiner.stop()
	}
	return n.app.Close()
}
