package cli

import (
	"encoding/hex"
	"fmt"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/home"
)

func newInitCmd(env *cliEnv) *cobra.Command {
	var opts home.InitOptions
	var network string
	cmd := &cobra.Command{
		Use:   "init [MONIKER]",
		Short: "Create the home folder of a new node",
		Long: `Creates configuration, keys and a genesis file that names this node as the only
validator. Existing files are never overwritten.

To join an existing network, pass its genesis file with --genesis. The settings in
config.toml and app.toml fit a network of several regions, or with --network lan one
whose nodes are near each other.

Settings given as flags are written to the files, as "starlingd join" does.`,
		Example: `  starlingd init my-node --chain-id demo-1 --open --network lan
  starlingd init my-node --chain-id demo-1 --open --rpc.laddr tcp://127.0.0.1:36657
  starlingd init other-node --genesis genesis.json --home ~/.starling-other`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			opts.Home = env.Home
			if opts.Network, err = config.ParseNetwork(network); err != nil {
				return usagef("--network: %w", err)
			}
			if len(args) > 0 {
				opts.Moniker = args[0]
				if flag := cmd.Flags().Lookup("moniker"); flag.Changed && flag.Value.String() != args[0] {
					return usagef("the moniker is both %q and --moniker %q: give it once", args[0], flag.Value)
				}
			}
			if opts.GenesisFile != "" {
				for _, name := range []string{"chain-id", "admin", "admin-threshold", "open", "chunk-bytes", "snapshot-interval"} {
					if cmd.Flags().Changed(name) {
						return usagef("--%s cannot be used with --genesis: the network's genesis file sets it", name)
					}
				}
			}
			if cmd.Flags().Changed("admin-threshold") && opts.App.AdminThreshold < 1 {
				return usagef("--admin-threshold is 0: the number of admins that must approve is 1 or more")
			}
			if opts.Edit, err = settings(cmd, env, opts.Network); err != nil {
				return err
			}
			given := opts.GenesisFile
			if given != "" {
				var done func()
				if opts.GenesisFile, done, err = inputFile(cmd, given); err != nil {
					return err
				}
				defer done()
			}
			result, err := home.Init(opts)
			if err != nil {
				return err
			}
			return reportInit(env, opts, result)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.ChainID, "chain-id", "", "chain id (default: starling- and six random characters)")
	flags.StringArrayVar(&opts.App.Admins, "admin", nil, "public key of an admin, in hex or base64 (may be repeated)")
	flags.Uint64Var(&opts.App.AdminThreshold, "admin-threshold", 0, "number of admins that must approve an operation (default 1)")
	flags.BoolVar(&opts.App.Open, "open", false, "accept unsigned key=value transactions for keys that no grant covers")
	flags.Uint64Var(&opts.App.ChunkBytes, "chunk-bytes", 0, "largest chunk in bytes (default 1 MiB)")
	flags.Int64Var(&opts.App.SnapshotInterval, "snapshot-interval", 0, fmt.Sprintf("interval of snapshots, in blocks (default %d, in a LAN %d)", app.DefaultSnapshotInterval, config.LAN.SnapshotInterval(app.DefaultSnapshotInterval)))
	addNetwork(flags, &network)
	flags.StringVar(&opts.GenesisFile, "genesis", "", "genesis file of an existing network to join; - is standard input")
	config.AddFlags(flags)
	config.HideFlags(flags, "moniker") // an argument of this command
	return cmd
}

// settings checks the settings that were given as flags of config.AddFlags, or as variables. It
// returns a function that writes those given as flags into the configuration of a new home.
func settings(cmd *cobra.Command, env *cliEnv, network config.Network) (edit func(*cfg.Config, *config.App), err error) {
	if err := config.CheckFlags(env.V, network); err != nil {
		return nil, err
	}
	if err := config.SetFlags(cmd.Flags(), config.DefaultCometBFT(), new(config.App)); err != nil {
		return nil, err
	}
	// cannot fail: they were checked above
	return func(c *cfg.Config, a *config.App) { _ = config.SetFlags(cmd.Flags(), c, a) }, nil
}

// addNetwork adds the flag for the network to which the settings fit.
func addNetwork(flags *pflag.FlagSet, network *string) {
	flags.StringVar(network, "network", string(config.WAN),
		"settings for a network of this kind: lan (nodes within about 1 ms of each other) or wan; nodes with either work together")
}

func reportInit(env *cliEnv, opts home.InitOptions, result home.InitResult) error {
	if env.JSON() {
		return writeJSON(env.Out, map[string]string{
			"home": result.Home, "chain_id": result.ChainID, "moniker": result.Moniker,
			"node_id": result.NodeID, "validator_pub_key": hex.EncodeToString(result.ValidatorPubKey),
		})
	}
	fmt.Fprintf(env.Out, "Created %q: node %q of chain %q\n  node id        %s\n  validator key  %x\n\n", result.Home, result.Moniker, result.ChainID, result.NodeID, result.ValidatorPubKey)
	if opts.GenesisFile != "" {
		fmt.Fprintf(env.Out, "Next: start the node with a peer:\n  starlingd start --home %s --p2p.persistent_peers ID@HOST:26656\nIf the chain has blocks already, join its state, by a recent header from a trusted source:\n  … --statesync.enable --statesync.trust_height HEIGHT --statesync.trust_hash HASH\n", config.Quote(result.Home))
		return nil
	}
	if !opts.App.Open && len(opts.App.Admins) == 0 {
		fmt.Fprintf(env.Out, "Nobody can write yet. Before the first start, create a key and name it as admin:\n  starlingd keys add NAME --home %[1]s\n  starlingd genesis add-account NAME --admin --home %[1]s\n", config.Quote(result.Home))
	}
	fmt.Fprintf(env.Out, "Next: start the node:\n  starlingd start --home %s\n", config.Quote(result.Home))
	return nil
}
