package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/syncbench"
)

func newByzantine() *cobra.Command {
	var (
		o          syncbench.ByzantineOptions
		lies, file string
	)
	cmd := &cobra.Command{
		Use:   "byzantine",
		Short: "A join from many peers, of which some lie",
		Long: `Measures Starling's join from 80 peers of which 0, 1, 5, 10, 20, 26 and 79 lie: the
time, the chunks that were re-requested, and the bytes wasted. The peers are in one
process over one state, each with its own key and address.`,
		Example: `  go run . byzantine --json byzantine.json
  go run . byzantine --lying 0,79 --lies silent
  go run . byzantine --keys 100000 --peers 20 --lying 0,6,19`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Lies = list(lies)
			if err := o.Check(); err != nil {
				return fmt.Errorf("%w; 'starling-bench byzantine --help' shows examples", err)
			}
			return measure(cmd, file, func(ctx context.Context, p *harness.Progress) (*syncbench.ByzantineResult, error) {
				return syncbench.RunByzantine(ctx, o, p)
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVar(&o.Keys, "keys", 1_000_000, "keys of the state")
	flags.IntVar(&o.Peers, "peers", 80, "peers to join from")
	flags.IntSliceVar(&o.Lying, "lying", syncbench.DefaultLying, "how many of them lie, one row each")
	flags.StringVar(&lies, "lies", strings.Join(syncbench.Lies, ","), "what they do wrong with chunks, in turns")
	flags.IntVar(&o.Repeat, "repeat", 5, "joins of each row, whose median counts")
	flags.Float64Var(&o.Limit, "limit", 300, "seconds after which a join counts as one that does not end")
	flags.Uint64Var(&o.Seed, "seed", 1, "seed of the keys and values, and of who lies")
	flags.StringVar(&file, "json", "", "write the result to this file, too")
	flags.StringVar(&o.Dir, "dir", "", "folder for databases, which are removed afterwards (default: the system's temporary folder)")
	return cmd
}
