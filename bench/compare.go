package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/bench/comparebench"
	"github.com/starling-kv/starling/bench/harness"
)

func newCompare() *cobra.Command {
	var (
		o    comparebench.Options
		file string
	)
	cmd := &cobra.Command{
		Use:   "compare [flags] BEFORE AFTER -- ARG ...",
		Short: "The CPU time of two programs that do the same work",
		Long: `Runs two programs with the same arguments in turns, and compares the user and system time
of their process trees pair by pair: the median of the ratios, and the interval that covers
the true one with a probability of 95 % or more (from 6 pairs on). scripts/compare.sh builds
starling-bench from two revisions and compares them so.`,
		Example: `  ../scripts/compare.sh v1.0.0 HEAD tree --keys 100000 --versions 300 --against ""
  go run . compare --pairs 7 /tmp/before /tmp/after -- sync --keys 100000 --against ""`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Before, o.After, o.Args = args[0], args[1], args[2:]
			if err := o.Check(); err != nil {
				return fmt.Errorf("%w; 'starling-bench compare --help' shows examples", err)
			}
			return measure(cmd, file, func(ctx context.Context, p *harness.Progress) (*comparebench.Result, error) {
				return comparebench.Run(ctx, o, p)
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVar(&o.Pairs, "pairs", 7, "pairs of runs that count")
	flags.IntVar(&o.WarmUp, "warm-up", 1, "pairs of runs before those that count")
	flags.StringVar(&file, "json", "", "write the result to this file, too")
	return cmd
}
