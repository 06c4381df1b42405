package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/node"
	"github.com/starling-kv/starling/node/config"
)

func newABCICmd(env *cliEnv) *cobra.Command {
	var opts node.ABCIOptions
	cmd := &cobra.Command{
		Use:   "abci --address ADDRESS",
		Short: "Run the application alone, for a stock cometbft",
		Long: `Serves the application over ABCI to a cometbft process, which is responsible for
blocks, peers and consensus. The state is in data/state of --home, the settings in
its config/app.toml, if that exists.

With the genesis file (default: config/genesis.json of --home), a joining node can
reject snapshots at heights at which the network takes none. --transport grpc
requires it, since a gRPC message carries at most 4 MiB.

The cometbft process keeps its own databases: in a home made by "starlingd init",
set db_backend = "goleveldb" in config/config.toml for it.`,
		Example: `  starlingd abci --address unix:///run/starling.sock --home ~/.starling
  cometbft start --proxy_app unix:///run/starling.sock`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if opts.Address == "" {
				return usagef("--address is missing: the address at which cometbft connects to the application, unix:///PATH or tcp://HOST:PORT")
			}
			var err error
			if opts.Config, err = config.LoadApp(env.Home, env.V); err != nil {
				return err
			}
			if opts.Logger, err = config.NewLogger(env.Err, env.V.GetString("log_level"), env.V.GetString("log_format")); err != nil {
				return err
			}
			opts.Home = env.Home
			if opts.GenesisFile == "" {
				if usual := filepath.Join(env.Home, "config", "genesis.json"); exists(usual) {
					opts.GenesisFile = usual
				}
			}
			path, done, err := inputFile(cmd, opts.GenesisFile)
			if err != nil {
				return err
			}
			defer done()
			opts.GenesisFile = path
			ctx, cancel := untilSignal(cmd.Context())
			defer cancel()
			return tellCosmovisor(env, serveABCI(ctx, opts))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.Address, "address", "", "address to listen on: unix:///PATH or tcp://HOST:PORT")
	flags.StringVar(&opts.Transport, "transport", "socket", "socket or grpc, like the abci setting of cometbft")
	flags.StringVar(&opts.GenesisFile, "genesis", "", "genesis file of the network")
	config.AddAppFlags(flags)
	return cmd
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func serveABCI(ctx context.Context, opts node.ABCIOptions) error {
	server, err := node.NewABCIServer(ctx, opts)
	if errors.Is(err, node.ErrTransport) {
		return usageError{err}
	}
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case err = <-server.Failed():
		if err = unlessHalted(opts.Logger, err); err != nil {
			err = fmt.Errorf("the application cannot continue: %w", err)
		}
	}
	return errors.Join(err, server.Stop())
}
