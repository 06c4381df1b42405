// Command iavlnode is a CometBFT node whose application keeps its state in a cosmos/iavl tree, and
// makes snapshots as such applications do. It stands in for the opponent of the AVL* paper's
// evaluation (Fynn et al. 2022, section 5): starling-bench starts networks of it.
//
//	iavlnode init · start      the commands of cometbft
//	         lie               start, with false snapshots
//	   └─ CometBFT's node ──▶ app (app.go), in the same process
//	         key=value          FinalizeBlock ─▶ the tree; Commit ─▶ a version, on goleveldb
//	         state sync         snapshots.go: export ─▶ files of chunks ─▶ … ─▶ import
//
// The genesis file's app_state (type genesis) says how many keys the first block finds, and how
// often a snapshot is made.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cometbft/cometbft/cmd/cometbft/commands"
	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/cli"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/node"
	"github.com/cometbft/cometbft/p2p"
	"github.com/cometbft/cometbft/privval"
	"github.com/cometbft/cometbft/proxy"
	"github.com/cometbft/cometbft/types"
)

func main() {
	root := commands.RootCmd
	lie := commands.NewRunNodeCmd(newNode(true))
	lie.Use, lie.Aliases, lie.Short = "lie", nil, "Run a node that serves false snapshots"
	root.AddCommand(commands.InitFilesCmd, commands.NewRunNodeCmd(newNode(false)), lie)
	if err := cli.PrepareBaseCmd(root, "CMT", os.ExpandEnv(filepath.Join("$HOME", ".iavlnode"))).Execute(); err != nil {
		os.Exit(1) // the command has printed it
	}
}

// newNode returns a provider of honest or Byzantine nodes.
func newNode(lies bool) node.Provider {
	return func(config *cfg.Config, logger log.Logger) (*node.Node, error) { return start(config, logger, lies) }
}

func start(config *cfg.Config, logger log.Logger, lies bool) (*node.Node, error) {
	key, err := p2p.LoadOrGenNodeKey(config.NodeKeyFile())
	if err != nil {
		return nil, err
	}
	doc, err := types.GenesisDocFromFile(config.GenesisFile())
	if err != nil {
		return nil, err
	}
	var g genesis
	if err := json.Unmarshal(doc.AppState, &g); err != nil {
		return nil, fmt.Errorf("app_state of %s: %w", config.GenesisFile(), err)
	}
	a, err := open(g, filepath.Join(config.RootDir, "data"))
	if err != nil {
		return nil, err
	}
	a.lies = lies
	return node.NewNode(config, privval.LoadOrGenFilePV(config.PrivValidatorKeyFile(), config.PrivValidatorStateFile()), key,
		proxy.NewConnSyncLocalClientCreator(a), node.DefaultGenesisDocProviderFunc(config), cfg.DefaultDBProvider,
		node.DefaultMetricsProvider(config.Instrumentation), logger)
}
