package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/tablebench"
)

func newTables() *cobra.Command {
	var (
		o    tablebench.Options
		file string
	)
	cmd := &cobra.Command{
		Use:   "tables",
		Short: "The table writer of a restore against Pebble's sstable.Writer",
		Long: `Measures the CPU time, bytes and allocations of the table that a restore writes for
each chunk: with our writer (internal/rowtable) and with Pebble's sstable.Writer in its row
format and its newest one. The chunks are of 700 KB and 5 KB, with keys of 20 bytes and values
of 100, and of one value of 1 MiB. Decision 0022 is based on it.`,
		Example: `  go run . tables --mb 8 --rounds 3
  go run . tables --json tables.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Check(); err != nil {
				return fmt.Errorf("%w; 'starling-bench tables --help' shows examples", err)
			}
			return measure(cmd, file, func(ctx context.Context, p *harness.Progress) (*tablebench.Result, error) {
				return tablebench.Run(ctx, o, p)
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVar(&o.MB, "mb", 64, "MiB of records that each writer writes in a round; of small chunks a sixteenth")
	flags.IntVar(&o.Rounds, "rounds", 9, "rounds, whose medians count")
	flags.Uint64Var(&o.Seed, "seed", 1, "seed of the records")
	flags.StringVar(&file, "json", "", "write the result to this file, too")
	flags.StringVar(&o.Dir, "dir", "", "folder for tables, which are removed afterwards (default: the system's temporary folder)")
	return cmd
}
