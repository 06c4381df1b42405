package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/starling-kv/starling/bench/e2ebench"
	"github.com/starling-kv/starling/bench/harness"
)

func newE2E() *cobra.Command {
	var (
		o           e2ebench.Options
		loads, file string
	)
	cmd := &cobra.Command{
		Use:   "e2e",
		Short: "Transactions a second of a network, against CometBFT's own kvstore",
		Long: `Measures transactions per second, and latencies from broadcast to block, of a
network of starlingd beside one of a stock cometbft with its kvstore in process, both
with the same configuration on this machine, in turns: with the load of CometBFT's
loadtime (one key) and with distinct keys.`,
		Example: `  go run . e2e --rounds 1 --seconds 5
  go run . e2e --json e2e.json
  go run . e2e --loads own --kvstore kvstore --indexer null`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Loads = list(loads)
			if err := o.Check(); err != nil {
				return fmt.Errorf("%w; 'starling-bench e2e --help' shows examples", err)
			}
			return measure(cmd, file, func(ctx context.Context, p *harness.Progress) (*e2ebench.Result, error) {
				return e2ebench.Run(ctx, o, p)
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVar(&o.Rounds, "rounds", 5, "rounds, in each of which every network gets every load")
	flags.IntVar(&o.Seconds, "seconds", 15, "seconds of each load in each round; and again for the latencies")
	flags.StringVar(&loads, "loads", strings.Join(e2ebench.Loads, ","), "loads: own (CometBFT's loadtime: one key), distinct")
	flags.IntVar(&o.Rate, "rate", 0, "transactions a second for the latencies (default: half the rate of the slower network)")
	flags.StringVar(&o.KVStore, "kvstore", e2ebench.KVStores[0], "the variant of kvstore: "+strings.Join(e2ebench.KVStores, ", "))
	networkFlags(flags, &o.Network)
	flags.StringVar(&file, "json", "", "write the result to this file, too")
	flags.StringVar(&o.CometBFT, "cometbft", "", "cometbft to use (default: built, in the version that starlingd uses)")
	return cmd
}

// networkFlags adds the flags that all networks share.
func networkFlags(flags *pflag.FlagSet, n *e2ebench.Network) {
	flags.IntVar(&n.Validators, "validators", 4, "validators of a network")
	flags.DurationVar(&n.TimeoutCommit, "timeout-commit", time.Second, "pause between blocks (the default is CometBFT's)")
	flags.IntVar(&n.InFlight, "in-flight", 4000, "transactions under way at any time, at most")
	flags.IntVar(&n.TxBytes, "tx-bytes", 256, "length of a transaction")
	flags.StringVar(&n.Indexer, "indexer", "kv", "index of transactions: kv (CometBFT's default), null")
	flags.StringVar(&n.Dir, "dir", "", "folder for the nodes' homes, which are removed afterwards (default: the system's temporary folder)")
	flags.StringVar(&n.Starlingd, "starlingd", "", "starlingd to use (default: it is built)")
}
