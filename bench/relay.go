package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/relaybench"
)

func newRelay() *cobra.Command {
	var (
		o    relaybench.Options
		file string
	)
	cmd := &cobra.Command{
		Use:   "relay",
		Short: "A large block's way to the validators: p2p against transport.relay",
		Long: `Starts networks of three validators, in turns, with p2p at its default rate and at
500 MB/s, without and with transport.relay, lets them make blocks of 4 MiB, and
measures the time from a proposal to the last validator's last part; with --device or
--guest by RDMA, too. That needs a build with RDMA of this program (CGO_ENABLED=1 go run
-tags rdma .) and of starlingd (make build-rdma); --guest builds both, and runs them in an
emulated machine with Soft-RoCE.`,
		Example: `  go run . relay --rounds 1 --blocks 2
  go run . relay --guest --rounds 1 --blocks 6 --rates 5120000
  go run . relay --json relay.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Check(); err != nil {
				return fmt.Errorf("%w; 'starling-bench relay --help' shows examples", err)
			}
			return measure(cmd, file, func(ctx context.Context, p *harness.Progress) (*relaybench.Result, error) {
				return relaybench.Run(ctx, o, p)
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVar(&o.Rounds, "rounds", 3, "rounds, in each of which every network makes blocks")
	flags.IntVar(&o.Blocks, "blocks", 5, "full blocks for which each validator has transactions in a round")
	flags.Int64SliceVar(&o.Rates, "rates", relaybench.Rates(), "rates of p2p, in bytes per second")
	flags.StringVar(&file, "json", "", "write the result to this file, too")
	flags.StringVar(&o.Device, "device", "", "RDMA device, by name or address, for relays by RDMA (default: none are measured)")
	flags.BoolVar(&o.Guest, "guest", false, "run in an emulated machine with Soft-RoCE")
	flags.StringVar(&o.Dir, "dir", "", "folder for the nodes' homes, which are removed afterwards (default: the system's temporary folder)")
	flags.StringVar(&o.Starlingd, "starlingd", "", "starlingd to use (default: it is built)")
	return cmd
}
