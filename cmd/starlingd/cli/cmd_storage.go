package cli

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/home"
	"github.com/starling-kv/starling/node/storagenode"
)

func newStorageCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "storage",
		Short: "Create, run and inspect storage nodes, which keep the ranges of a sharded state",
		Long: `In a network with a sharded state, storage nodes keep ranges of keys. Validators with
[state] mode = "sharded" fetch from them the keys and proofs that they need.`,
		Example: `  starlingd storage init --genesis genesis.json --peers ID@HOST:26666 --home ~/.starling-storage
  starlingd storage ranges --at g,p --nodes ID@HOST:26666,ID@HOST:26666 --write --home ~/.starling-storage
  starlingd storage start --home ~/.starling-storage`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newStorageInitCmd(env), newStorageStartCmd(env), newStorageStatusCmd(env), newStorageRangesCmd(env))
	balance := newStorageBalanceCmd(env) // the same command as `storage ranges balance`
	balance.Hidden = true
	cmd.AddCommand(balance)
	return cmd
}

func newStorageInitCmd(env *cliEnv) *cobra.Command {
	var (
		opts             home.InitOptions
		trustHeight      int64
		trustHash        string
		peers, address   string
		network          string
		storageNodesFile = config.DefaultStorageNodesFile
	)
	cmd := &cobra.Command{
		Use:   "init [MONIKER]",
		Short: "Create the home folder of a storage node",
		Long: `Creates the home of a storage node: configuration, genesis file and node key, without a
validator key. Existing files are never overwritten.

--peers names transports of validators, which provide headers. The node trusts the first
header if the genesis validators signed it, or the header of --trust-height and
--trust-hash, which is required if the chain is older than a week.`,
		Example: `  starlingd storage init --genesis genesis.json --peers ID@HOST:26666
  starlingd storage init s1 --genesis genesis.json --peers ID@HOST:26666 --laddr 0.0.0.0:26666 \
      --trust-height 1000 --trust-hash A1B2…`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			opts.Home, opts.NoValidator = env.Home, true
			if opts.Network, err = config.ParseNetwork(network); err != nil {
				return usagef("--network: %w", err)
			}
			if len(args) > 0 {
				opts.Moniker = args[0]
			}
			switch raw, err := hex.DecodeString(trustHash); {
			case opts.GenesisFile == "":
				return usagef("the network's genesis file is missing: --genesis FILE")
			case (trustHeight > 0) != (trustHash != ""):
				return usagef("use --trust-height and --trust-hash together")
			case err != nil || trustHash != "" && len(raw) != 32:
				return usagef("--trust-hash is %q, it must be 64 hex digits", trustHash)
			}
			opts.Edit = func(c *cfg.Config, a *config.App) {
				c.StateSync.TrustHeight, c.StateSync.TrustHash = trustHeight, trustHash
				a.Join.Peers = peers
				if address != "" {
					a.Transport.ListenAddress = address
				}
			}
			path, done, err := inputFile(cmd, opts.GenesisFile)
			if err != nil {
				return err
			}
			defer done()
			opts.GenesisFile = path
			made, err := home.Init(opts)
			if err != nil {
				return err
			}
			conf, err := config.Load(env.Home, env.V)
			if err != nil {
				return err
			}
			at, err := config.TransportAddress(conf)
			if err != nil {
				return err
			}
			if env.JSON() {
				return writeJSON(env.Out, map[string]string{
					"home": made.Home, "chain_id": made.ChainID, "moniker": made.Moniker, "node_id": made.NodeID, "transport": at,
				})
			}
			fmt.Fprintf(env.Out, "Created %q: storage node %q of chain %q\n  node id    %s\n  transport  %s\n\n", made.Home, made.Moniker, made.ChainID, made.NodeID, at)
			if peers == "" {
				fmt.Fprintf(env.Out, "Add transports of validators to [join] peers in config/app.toml.\n")
			}
			fmt.Fprintf(env.Out, "Next: add it to %s of every node, as %s@HOST:PORT, and start it:\n  starlingd storage start --home %s\n", storageNodesFile, made.NodeID, config.Quote(made.Home))
			return nil
		},
	}
	flags := cmd.Flags()
	addNetwork(flags, &network)
	flags.StringVar(&opts.GenesisFile, "genesis", "", "genesis file of the network")
	flags.StringVar(&peers, "peers", "", "transports of validators, as ID@HOST:26666, comma-separated")
	flags.StringVar(&address, "laddr", "", "address to listen on (default: the p2p port + 10, 0.0.0.0:26666)")
	flags.Int64Var(&trustHeight, "trust-height", 0, "height of a trusted header")
	flags.StringVar(&trustHash, "trust-hash", "", "hash of that header, in hex")
	return cmd
}

func newStorageStartCmd(env *cliEnv) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "start",
		Short: "Run the storage node",
		Long: `Runs the storage node of the home folder until SIGTERM or SIGINT, which stop it
cleanly with exit status 0. A kill does not lose acknowledged data.

The node keeps the ranges that list its ID in config/storage_nodes.toml. It builds a new
range from the genesis file, or fetches it from other storage nodes of the range and from
validators with mode = "local". With --snapshot-file it takes ranges that it does not have
from a snapshot file (starlingd snapshots export), verifies them against a proved header,
and then fetches only what has changed since then. After Ctrl-C or a kill, the same
command continues. The log and starlingd status show bytes, rate and time left.`,
		Example: `  starlingd storage start
  starlingd storage start --snapshot-file demo.snapshot
  starlingd storage start --home ~/.starling-storage --transport.laddr 0.0.0.0:26666`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := untilSignal(cmd.Context())
			defer cancel()
			return runStorage(ctx, env, file)
		},
	}
	cmd.Flags().StringVar(&file, "snapshot-file", "", "snapshot file from which ranges without a state are filled")
	config.AddFlags(cmd.Flags())
	// A storage node ignores these.
	config.HideFlags(cmd.Flags(),
		"consensus.", "disk.state_in_memory", "grpc.", "halt_height", "join.mode", "p2p.external_address", "rpc.", "state.",
		"statesync.enable", "statesync.rpc_servers")
	return cmd
}

// runStorage runs the storage node of the home folder until ctx ends. file is a snapshot file; "":
// none.
func runStorage(ctx context.Context, env *cliEnv, file string) error {
	conf, logger, err := loadHome(env)
	if err != nil {
		return err
	}
	storagenode.LimitGarbage()
	o := storagenode.Options{Config: conf, Logger: logger, SnapshotFile: file}
	if conf.CometBFT.Instrumentation.Prometheus {
		o.Metrics = prometheus.DefaultRegisterer
	}
	n, err := storagenode.New(ctx, o)
	if err != nil {
		return unlessStopped(ctx, err)
	}
	n.Start()
	select {
	case <-ctx.Done():
	case err = <-n.Failed():
	}
	return errors.Join(err, n.Stop())
}
