package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/syncbench"
)

func newHiccup() *cobra.Command {
	var (
		o             syncbench.HiccupOptions
		against, file string
	)
	cmd := &cobra.Command{
		Use:   "hiccup",
		Short: "The commits of a validator while nodes join from it",
		Long: `Measures the commit times of a validator with blocks of 2,000 operations, which pins
a snapshot every ten blocks: alone, and while 1 and 4 joiners download, each at --rate
at most. Beside it the SDK's store with IAVL, without snapshots and with one every ten
blocks.`,
		Example: `  go run . hiccup --against ""
  go run . hiccup --json hiccup.json
  go run . hiccup --keys 100000 --blocks 100 --sdk-blocks 30`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Against = list(against)
			if err := o.Check(); err != nil {
				return fmt.Errorf("%w; 'starling-bench hiccup --help' shows examples", err)
			}
			return measure(cmd, file, func(ctx context.Context, p *harness.Progress) (*syncbench.HiccupResult, error) {
				return syncbench.RunHiccup(ctx, o, p)
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVar(&o.Keys, "keys", 1_000_000, "keys of the state before the first block")
	flags.IntVar(&o.Blocks, "blocks", 500, "blocks of each row")
	flags.IntVar(&o.PauseMS, "interval", 100, "milliseconds between the beginnings of two blocks; 0: one after another")
	flags.IntSliceVar(&o.Joiners, "joiners", []int{0, 1, 4}, "joiners that download meanwhile, one row each")
	flags.Float64Var(&o.Rate, "rate", 5.12, "MB/s that the validator gives each of them (the default is what CometBFT's p2p gives)")
	flags.StringVar(&against, "against", "sdk", "peers: sdk; empty for none")
	flags.IntVar(&o.SDKBlocks, "sdk-blocks", 100, "blocks of each row of the SDK's store, whose blocks take longer")
	flags.Uint64Var(&o.Seed, "seed", 1, "seed of the operations")
	flags.StringVar(&file, "json", "", "write the result to this file, too")
	flags.StringVar(&o.Dir, "dir", "", "folder for databases, which are removed afterwards (default: the system's temporary folder)")
	flags.StringVar(&o.SDK, "sdkstore", "", "the built program of bench/sdkstore (default: it is built)")
	return cmd
}
