// Command byzantine is a full node that follows the chain like any other and lies to whoever joins from it.
//
//	home of `starlingd init` ──► node.New(WithApp(liar.Wrap), WithTransport(liar.Over)) ──► offers what honest nodes offer, serves something else
//
// It exists to be tried against: cmd/localnet and the end-to-end tests start it. It is never linked into starlingd.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/spf13/cobra"
	"github.com/spf13/viper"

	"github.com/starling-kv/starling/e2e/byzantine/liar"
	"github.com/starling-kv/starling/node"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends it at once
	err := command(os.Stderr).ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "byzantine: %v\n", err)
		os.Exit(1)
	}
}

func command(logs io.Writer) *cobra.Command {
	var (
		home, lie string
		seed      uint64
	)
	cmd := &cobra.Command{
		Use:           "byzantine",
		Short:         "A Starling node that lies to those who join from it",
		Example:       "  starlingd init liar --chain-id demo-1 --home /tmp/liar\n  byzantine --home /tmp/liar --lie truncate",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			mode, err := liar.ParseMode(lie)
			if err != nil {
				return fmt.Errorf("--lie: %w", err)
			}
			if home == "" {
				return errors.New("no home folder: give --home one that `starlingd init` made")
			}
			return run(cmd.Context(), home, mode, seed, logs)
		},
	}
	cmd.Flags().StringVar(&home, "home", "", "home folder")
	cmd.Flags().StringVar(&lie, "lie", string(liar.Mix), "how to lie: "+liar.Names())
	cmd.Flags().Uint64Var(&seed, "seed", 1, "seed of the lies")
	cmd.CompletionOptions.HiddenDefaultCmd = true
	return cmd
}

// run runs the node until ctx ends.
func run(ctx context.Context, home string, mode liar.Mode, seed uint64, logs io.Writer) error {
	v := viper.New()
	node.BindEnvironment(v)
	config, err := node.LoadConfig(home, v)
	if err != nil {
		return err
	}
	logger, err := node.NewLogger(logs, config.CometBFT.LogLevel, config.CometBFT.LogFormat)
	if err != nil {
		return err
	}
	if mode == liar.Drip {
		config.App.Transport.SendRatePerPeer = liar.DripRate
	}
	told := func(lie liar.Lie) {
		logger.Info("Lying about a "+lie.About, "how", string(lie.How), "height", lie.Height, "chunk", lie.Chunk, "to", string(lie.To))
	}
	n, err := node.New(ctx, config, logger,
		node.WithApp(func(honest abci.Application) abci.Application { return liar.Wrap(honest, mode, seed, told) }),
		node.WithTransport(liar.Over(mode, seed, told)))
	if err != nil {
		return err
	}
	if err := n.Start(ctx); err != nil {
		return errors.Join(err, n.Stop())
	}
	select {
	case <-ctx.Done():
		err = nil
	case err = <-n.Failed():
	}
	return errors.Join(err, n.Stop())
}
