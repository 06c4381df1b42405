package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/home"
	"github.com/starling-kv/starling/node/join"
)

// undoJoin removes the home of a join that failed because of its trusted header before anything was
// fetched, so that the command can be repeated.
func undoJoin(env *cliEnv, made home.Newcomer) error {
	conf, err := config.Load(env.Home, env.V)
	if err != nil {
		return err
	}
	if err := made.Undo(conf.CometBFT); err != nil {
		return err
	}
	fmt.Fprintf(env.Err, "Removed %q: nothing was fetched\n", made.Home)
	return nil
}

// maxStorageNodesBytes is the size limit of the --storage-nodes file.
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
		Short: "Create the home of a new node and join a running network",
		Long: `Creates a new home folder from one address of the network and runs the node, which
fetches the state from many peers at once, verifies every chunk and then follows the
chain. If the node is killed, "starlingd start" resumes the join.

ADDRESS is a node's RPC server (http://host:26657) or its transport (host:26666 or
id@host:26666: the p2p port + 10). The node's genesis file is used, and checked
against the trusted header: --trust-height and --trust-hash, which should come from
a source you trust. Without them the newest header of ADDRESS is trusted.

Settings given as flags are written to the new home's files.

With --storage-nodes, storage nodes keep the state ([state] mode = "sharded"). The new
node fetches only the upper part of the tree, which takes seconds for a state of any
size. Copy config/storage_nodes.toml from another such node.`,
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
			if opts.Edit, err = settings(cmd, env, config.WAN); err != nil {
				return err
			}
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
				fmt.Fprintf(env.Err, "Next: start the node:\n  starlingd start --home %s\n", config.Quote(joined.Home))
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
	// The command sets these, or has a shorter name for them.
	config.HideFlags(cmd.Flags(), "statesync.enable", "statesync.trust_")
	cmd.Flags().Int64Var(&opts.TrustHeight, "trust-height", 0, "height of a trusted header")
	cmd.Flags().StringVar(&opts.TrustHash, "trust-hash", "", "hash of that header, in hex")
	cmd.Flags().StringVar(&nodes, "storage-nodes", "", "file that names the storage nodes, if they keep the state instead of this node")
	cmd.Flags().BoolVar(&noRun, "no-start", false, "create the home, but do not start the node")
	return cmd
}
