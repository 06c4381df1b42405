package main

import (
	"errors"
	"fmt"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/home"
	"github.com/starling-kv/starling/node/join"
)

// undoJoin removes the home of a join that a wrong header ended before it fetched anything, so that
// the command can be given again.
func undoJoin(env *cliEnv, made home.Newcomer) error {
	conf, err := config.Load(env.Home, env.V)
	if err != nil {
		return err
	}
	if err := made.Undo(conf.CometBFT); err != nil {
		return err
	}
	fmt.Fprintf(env.Err, "Removed %q again: nothing was fetched\n", made.Home)
	return nil
}

// maxStorageNodesBytes limits the file of --storage-nodes.
const maxStorageNodesBytes = 16 << 20

func newJoinCmd(env *cliEnv) *cobra.Command {
	var (
		opts   home.NewcomerOptions
		noRun  bool
		nodes  string
		joined home.Newcomer
	)
	cmd := &cobra.Command{
		Use:   "join ADDRESS",
		Short: "Create the home of a new node and join a running network with it",
		Long: `Creates a new home folder from one address of the network and runs the node, which
fetches the state from many peers at once, verifies every chunk and follows the
chain. If it is killed, "starlingd start" resumes the join.

ADDRESS is a node's RPC server (http://host:26657) or its transport (host:26666 or
id@host:26666: the p2p port + 10). The node's genesis file is used, and checked
against the trusted header: --trust-height and --trust-hash, which should come from
a source you trust. Without them the newest header of ADDRESS is trusted.

The settings that are given as flags are written into the new home's files.

With --storage-nodes the new node leaves the state to storage nodes ([state] mode =
"sharded"): it takes up the upper part of the tree only, in seconds whatever the
state's size. The file is config/storage_nodes.toml of a node that has done so.`,
		Example: `  starlingd join http://HOST:26657 --trust-height 1000 --trust-hash A1B2…
  starlingd join HOST:26666 --home ~/.starling-carol --moniker carol
  starlingd join HOST:26666 --storage-nodes storage_nodes.toml`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.Home, opts.From, opts.Moniker = env.Home, args[0], env.V.GetString("moniker")
			ctx, cancel := untilSignal(cmd.Context())
			defer cancel()
			var err error
			if nodes != "" {
				if opts.StorageNodes, err = readInput(cmd, nodes, maxStorageNodesBytes); err != nil {
					return config.Invalid(fmt.Errorf("--storage-nodes: %w", err))
				}
			}
			if err := config.CheckFlags(env.V); err != nil { // before they are written
				return err
			}
			if err := config.SetFlags(cmd.Flags(), config.DefaultCometBFT(), new(config.App)); err != nil {
				return err
			}
			// the same as just now, so that it cannot fail
			opts.Edit = func(c *cfg.Config, a *config.App) { _ = config.SetFlags(cmd.Flags(), c, a) }
			opts.OtherPeers = env.V.GetString("p2p.persistent_peers") != "" || env.V.GetString("p2p.seeds") != ""
			if joined, err = home.InitFrom(ctx, opts); err != nil {
				return err
			}
			fmt.Fprintf(env.Err, "Created %q: node %q of chain %q, id %s\n", joined.Home, joined.Moniker, joined.ChainID, joined.NodeID)
			if joined.TrustsFrom {
				fmt.Fprintf(env.Err, "TRUSTING header %d, hash %s, as reported by %s: compare it with a source you trust\n",
					joined.TrustHeight, joined.TrustHash, opts.From)
			}
			if noRun {
				fmt.Fprintf(env.Err, "Next: start it:\n  starlingd start --home %s\n", config.Quote(joined.Home))
				return nil
			}
			err = runNode(ctx, env)
			if errors.Is(err, join.ErrTrust) {
				err = errors.Join(err, undoJoin(env, joined))
			}
			return err
		},
	}
	config.AddFlags(cmd.Flags())
	cmd.Flags().Int64Var(&opts.TrustHeight, "trust-height", 0, "height of a header that you trust")
	cmd.Flags().StringVar(&opts.TrustHash, "trust-hash", "", "hash of that header, in hex")
	cmd.Flags().StringVar(&nodes, "storage-nodes", "", "file of the storage nodes that keep the state, if this node is not to keep it")
	cmd.Flags().BoolVar(&noRun, "no-start", false, "only make the home")
	return cmd
}
