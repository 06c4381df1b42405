package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/starling-kv/starling/node"
)

func newStartCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "start",
		Short: "Run the node",
		Long: `Runs the node until SIGTERM or SIGINT, which stop it cleanly with exit status 0;
a second one ends it at once, which costs nothing but a replay of the last blocks.

Every setting of config/config.toml and config/app.toml is a flag and a variable
too: [p2p] laddr is --p2p.laddr and STARLINGD_P2P_LADDR.

With --statesync.enable a node without state fetches it from its peers, verified
chunk by chunk: the header at --statesync.trust_height with hash
--statesync.trust_hash is all that it trusts. "starlingd join" makes a home and
starts it so.`,
		Example: `  starlingd start
  starlingd start --rpc.laddr tcp://127.0.0.1:36657 --log_format json
  starlingd start --p2p.persistent_peers ID@HOST:26656 --statesync.enable \
      --statesync.trust_height 1000 --statesync.trust_hash A1B2…`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := untilSignal(cmd.Context())
			defer cancel()
			return runNode(ctx, env)
		},
	}
	cmd.Flags().SetNormalizeFunc(haltFlag)
	node.AddFlags(cmd.Flags())
	return cmd
}

// runNode runs the node of the home folder until ctx ends.
func runNode(ctx context.Context, env *cliEnv) error {
	config, err := node.LoadConfig(env.Home, env.V)
	if err != nil {
		return err
	}
	logger, err := node.NewLogger(env.Err, config.CometBFT.LogLevel, config.CometBFT.LogFormat)
	if err != nil {
		return err
	}
	n, err := node.New(ctx, config, logger, joinProgress(env.Err)...)
	if err != nil {
		return unlessHalted(logger, unlessStopped(ctx, err))
	}
	err = n.Start(ctx)
	if err == nil {
		select {
		case <-ctx.Done():
		case err = <-n.Failed():
		}
	}
	return errors.Join(unlessHalted(logger, unlessStopped(ctx, err)), n.Stop())
}

// unlessHalted drops the error of a node that halt_height ended, but not what failed while it was stopped.
func unlessHalted(logger log.Logger, err error) error {
	if !errors.Is(err, node.ErrHalted) {
		return err
	}
	if joined, several := err.(interface{ Unwrap() []error }); several { //nolint:errorlint // of errors.Join, not of what it joins
		var rest []error
		for _, one := range joined.Unwrap() {
			rest = append(rest, unlessHalted(logger, one))
		}
		return errors.Join(rest...)
	}
	logger.Info("Halting", "reason", err)
	return nil
}

// haltFlag lets --halt-height, as the Cosmos SDK spells it, stand for --halt_height.
func haltFlag(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	if name == "halt-height" {
		name = "halt_height"
	}
	return pflag.NormalizedName(name)
}

// untilSignal ends the context at the first SIGTERM or SIGINT; a second one ends the process as if it was not caught.
func untilSignal(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := signal.NotifyContext(parent, os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, cancel)
	return ctx, cancel
}

// unlessStopped drops the error of a start that a signal interrupted.
func unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // the signal is what ended it
	}
	return err
}
