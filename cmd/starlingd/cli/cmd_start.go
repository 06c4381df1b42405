package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/node"
	"github.com/starling-kv/starling/node/comet"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/home"
)

func newStartCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "start",
		Short: "Run the node",
		Long: `Runs the node until SIGTERM or SIGINT, which stop it cleanly with exit status 0. A second
signal ends it at once; the next start then replays the last blocks.

Every setting of config/config.toml and config/app.toml is also a flag and a
variable: [p2p] laddr is --p2p.laddr and STARLINGD_P2P_LADDR.

With --statesync.enable, a node without state fetches it from its peers and verifies
it chunk by chunk. It trusts only the header at --statesync.trust_height with hash
--statesync.trust_hash. "starlingd join" creates a home and starts it this way.`,
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
	config.AddFlags(cmd.Flags())
	return cmd
}

// loadHome reads the configuration of the home folder, and creates the logger that it configures.
func loadHome(env *cliEnv) (*config.Config, log.Logger, error) {
	conf, err := config.Load(env.Home, env.V)
	if err != nil {
		return nil, nil, err
	}
	logger, err := config.NewLogger(env.Err, conf.CometBFT.LogLevel, conf.CometBFT.LogFormat)
	return conf, logger, err
}

// runNode runs the node of the home folder until ctx ends.
func runNode(ctx context.Context, env *cliEnv) error {
	s := onTerminal(env.Err)
	if s != nil {
		env.Err = s
		defer s.end()
	}
	conf, logger, err := loadHome(env)
	if err != nil {
		return err
	}
	n, err := node.New(ctx, conf, logger, joinProgress(s)...)
	if err != nil {
		return tellCosmovisor(env, unlessHalted(logger, unlessStopped(ctx, err)))
	}
	err = n.Start(ctx)
	if s != nil {
		s.show("") // clears the line of a join that found nothing
	}
	if err == nil {
		select {
		case <-ctx.Done():
		case err = <-n.Failed():
		}
	}
	return tellCosmovisor(env, errors.Join(unlessHalted(logger, unlessStopped(ctx, err)), n.Stop()))
}

// tellCosmovisor writes data/upgrade-info.json if err requires a newer program. It returns err.
func tellCosmovisor(env *cliEnv, err error) error {
	var old *app.UpgradeError
	if !errors.As(err, &old) {
		return err
	}
	return errors.Join(err, home.WriteUpgradeInfo(env.Home, old))
}

// unlessHalted drops the error of a node that stopped at halt_height, but keeps an error that
// occurred while it stopped.
func unlessHalted(logger log.Logger, err error) error {
	if !errors.Is(err, comet.ErrHalted) {
		return err
	}
	// The parts of errors.Join, not of wrapped errors.
	if joined, several := err.(interface{ Unwrap() []error }); several { //nolint:errorlint
		var rest []error
		for _, one := range joined.Unwrap() {
			rest = append(rest, unlessHalted(logger, one))
		}
		return errors.Join(rest...)
	}
	logger.Info("Halting", "reason", err)
	return nil
}

// haltFlag accepts --halt-height, as the Cosmos SDK spells it, for --halt_height.
func haltFlag(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	if name == "halt-height" {
		name = "halt_height"
	}
	return pflag.NormalizedName(name)
}

// untilSignal ends the context at the first SIGTERM or SIGINT; a second signal ends the process by
// default handling.
func untilSignal(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := signal.NotifyContext(parent, os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, cancel)
	return ctx, cancel
}

// unlessStopped drops the error of a start that a signal interrupted.
func unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // ended by the signal
	}
	return err
}
