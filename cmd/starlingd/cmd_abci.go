package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/node"
)

func newABCICmd(env *cliEnv) *cobra.Command {
	var opts node.ABCIOptions
	cmd := &cobra.Command{
		Use:   "abci --address ADDRESS",
		Short: "Run the application alone, for a stock cometbft",
		Long: `Serves the application over ABCI to a cometbft process, which has the blocks,
the peers and the consensus. The state lies in data/state of --home, settings in
its config/app.toml, if there is one.

The genesis file (default: config/genesis.json of --home) lets a joining node
refuse snapshots at heights that the network has none at, and --transport grpc
needs it: a gRPC message carries 4 MiB at most.

The cometbft process keeps databases of its own: in a home that "starlingd init"
made, set db_backend = "goleveldb" in config/config.toml for it.`,
		Example: `  starlingd abci --address unix:///run/starling.sock --home ~/.starling
  cometbft start --proxy_app unix:///run/starling.sock`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if opts.Address == "" {
				return usagef("--address is missing: where is cometbft to find the application? unix:///PATH or tcp://HOST:PORT")
			}
			var err error
			if opts.Config, err = node.LoadAppConfig(env.Home, env.V); err != nil {
				return err
			}
			if opts.Logger, err = node.NewLogger(env.Err, env.V.GetString("log_level"), env.V.GetString("log_format")); err != nil {
				return err
			}
			opts.Home = env.Home
			if opts.GenesisFile == "" {
				if usual := filepath.Join(env.Home, "config", "genesis.json"); exists(usual) {
					opts.GenesisFile = usual
				}
			}
			ctx, cancel := untilSignal(cmd.Context())
			defer cancel()
			return serveABCI(ctx, opts)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.Address, "address", "", "address to listen on: unix:///PATH or tcp://HOST:PORT")
	flags.StringVar(&opts.Transport, "transport", "socket", "socket or grpc, as the abci setting of cometbft")
	flags.StringVar(&opts.GenesisFile, "genesis", "", "genesis file of the network")
	node.AddAppFlags(flags)
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
			err = fmt.Errorf("the application cannot go on: %w", err)
		}
	}
	return errors.Join(err, server.Stop())
}
