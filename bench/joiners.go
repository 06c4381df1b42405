package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/bench/e2ebench"
	"github.com/starling-kv/starling/bench/harness"
)

func newJoiners() *cobra.Command {
	var (
		o    e2ebench.JoinersOptions
		file string
	)
	cmd := &cobra.Command{
		Use:   "joiners",
		Short: "Many nodes that join a network at the same moment",
		Long: `Starts validators with a state, lets clients write at a steady rate, and starts many
new nodes at once, which join over the transport. It fails unless all of them follow
the head, with the validators' app hash. It prints the time until they do, and the
intervals between blocks before and meanwhile.`,
		Example: `  go run . joiners --joiners 4 --keys 2000
  go run . joiners --json joiners.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Check(); err != nil {
				return fmt.Errorf("%w; 'starling-bench joiners --help' shows examples", err)
			}
			return measure(cmd, file, func(ctx context.Context, p *harness.Progress) (*e2ebench.JoinersResult, error) {
				return e2ebench.RunJoiners(ctx, o, p)
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVar(&o.Joiners, "joiners", 24, "nodes that join at the same moment")
	flags.IntVar(&o.Keys, "keys", 25_000, "keys of the state, each as long as a transaction")
	flags.IntVar(&o.Rate, "rate", 200, "transactions a second that clients send")
	flags.IntVar(&o.Interval, "snapshot-interval", 20, "blocks between snapshots")
	flags.IntVar(&o.Seconds, "seconds", 15, "seconds of blocks to compare with, before the joiners start")
	flags.DurationVar(&o.Patience, "patience", 15*time.Minute, "time limit for all to join")
	networkFlags(flags, &o.Network)
	if err := flags.Set("tx-bytes", "1024"); err != nil {
		panic(err)
	}
	flags.Lookup("tx-bytes").DefValue = "1024"
	flags.StringVar(&file, "json", "", "write the result to this file, too")
	return cmd
}
