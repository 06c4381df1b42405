package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"cosmossdk.io/log"
	storetypes "cosmossdk.io/store/types"
	abci "github.com/cometbft/cometbft/abci/types"
	dbm "github.com/cosmos/cosmos-db"
	"github.com/cosmos/cosmos-sdk/baseapp"
	"github.com/cosmos/cosmos-sdk/client"
	"github.com/cosmos/cosmos-sdk/server/api"
	"github.com/cosmos/cosmos-sdk/server/config"
	servertypes "github.com/cosmos/cosmos-sdk/server/types"
	sdk "github.com/cosmos/cosmos-sdk/types"

	"github.com/starling-kv/starling/bench/ops"
	"github.com/starling-kv/starling/cosmos/sdk/serve"
)

const (
	chainID = "bench-1"
	// iavlCacheSize is the default of the SDK's server (app.toml, iavl-cache-size).
	iavlCacheSize = 781_250
)

// node is an application whose next block makes the changes that were handed over.
type node struct {
	app    servertypes.Application
	height int64
	next   []ops.Change // of the next block
	joiner *joiner      // nil: there is none
}

// application adds to baseapp what a server calls.
type application struct{ *baseapp.BaseApp }

func (application) RegisterAPIRoutes(*api.Server, config.APIConfig)   {}
func (application) RegisterTxService(client.Context)                  {}
func (application) RegisterTendermintService(client.Context)          {}
func (application) RegisterNodeService(client.Context, config.Config) {}

// options are those of app.toml.
type options map[string]any

// Get implements servertypes.AppOptions.
func (o options) Get(name string) any { return o[name] }

// openNode opens the database of a chain that sdkstore has loaded.
func openNode(dir string, backend dbm.BackendType, mode string, interval int64) (*node, error) {
	db, err := dbm.NewDB("application", backend, dir)
	if err != nil {
		return nil, err
	}
	n := &node{}
	create, o := servertypes.AppCreator(n.newApp), options{}
	switch mode {
	case modePlain:
	case modeServed, modeJoined:
		create = serve.Creator(n.newApp)
		o = options{"state-sync.snapshot-interval": interval, "starling.laddr": "127.0.0.1:0", "chain-id": chainID}
	default:
		return nil, fmt.Errorf("mode %q is none of plain, served and joined", mode)
	}
	n.app = create(log.NewLogger(os.Stderr, log.LevelOption(2)), db, nil, o)
	n.height = n.app.CommitMultiStore().LastCommitID().Version
	if mode == modeJoined {
		n.joiner = newJoiner(n.app.(*serve.App).Address)
	}
	return n, nil
}

func (n *node) newApp(logger log.Logger, db dbm.DB, _ io.Writer, _ servertypes.AppOptions) servertypes.Application {
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
		panic(err) // as the SDK's creators do
	}
	return application{app}
}

// commit makes a block of changes.
func (n *node) commit(changes []ops.Change) (a Answer, err error) {
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

// end returns what was done beside the blocks.
func (n *node) end() (a Answer, err error) {
	list, err := n.app.ListSnapshots(&abci.RequestListSnapshots{})
	if err != nil {
		return a, err
	}
	a.Snapshots, a.PeakBytes = len(list.Snapshots), peakBytes()
	if n.joiner != nil {
		a.Bytes = n.joiner.bytes.Load()
	}
	return a, nil
}

func (n *node) close() error {
	if n.joiner != nil {
		n.joiner.stop()
	}
	return n.app.Close()
}

// peakBytes is VmHWM of proc(5); 0 where there is none.
func peakBytes() int64 {
	b, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(b)) {
		if text, is := strings.CutPrefix(line, "VmHWM:"); is {
			kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(text), " kB"), 10, 64)
			return kib << 10
		}
	}
	return 0
}
