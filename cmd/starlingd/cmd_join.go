package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/node"
)

func newJoinCmd(env *cliEnv) *cobra.Command {
	var (
		opts   node.NewcomerOptions
		noRun  bool
		joined node.Newcomer
	)
	cmd := &cobra.Command{
		Use:   "join ADDRESS",
		Short: "Make the home of a new node and join a running network with it",
		Long: `Makes a new home folder from one address of the network and runs the node, which
fetches the state from many peers at once, verifies every chunk of it and follows
the chain. Killed at any time, it goes on with "starlingd start".

ADDRESS is a node's RPC server (http://host:26657) or its transport (host:26666,
id@host:26666: its p2p port + 10). Its genesis file is taken, and checked against
the header that is trusted: --trust-height and --trust-hash, which you should have
from somebody whom you trust. Without them the newest header of ADDRESS is trusted.`,
		Example: `  starlingd join http://HOST:26657 --trust-height 1000 --trust-hash A1B2…
  starlingd join HOST:26666 --home ~/.starling-carol --moniker carol`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.Home, opts.From, opts.Moniker = env.Home, args[0], env.V.GetString("moniker")
			ctx, cancel := untilSignal(cmd.Context())
			defer cancel()
			var err error
			if joined, err = node.InitFrom(ctx, opts); err != nil {
				return err
			}
			fmt.Fprintf(env.Err, "Made %s: node %q of chain %q, id %s\n", joined.Home, joined.Moniker, joined.ChainID, joined.NodeID)
			if joined.TrustsFrom {
				fmt.Fprintf(env.Err, "TRUSTING header %d, hash %s, because %s says so: compare it with a source of yours\n",
					joined.TrustHeight, joined.TrustHash, opts.From)
			}
			if noRun {
				fmt.Fprintf(env.Err, "Next: start it:\n  starlingd start --home %s\n", joined.Home)
				return nil
			}
			return runNode(ctx, env)
		},
	}
	node.AddFlags(cmd.Flags())
	cmd.Flags().Int64Var(&opts.TrustHeight, "trust-height", 0, "height of a header that you trust")
	cmd.Flags().StringVar(&opts.TrustHash, "trust-hash", "", "hash of that header, in hex")
	cmd.Flags().BoolVar(&noRun, "no-start", false, "only make the home")
	return cmd
}
