package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/joinbench"
)

func newJoin() *cobra.Command {
	var (
		o    joinbench.Options
		file string
	)
	cmd := &cobra.Command{
		Use:   "join",
		Short: "The blocks of a chain, over the transport and by block sync",
		Long: `Makes a chain, has a validator serve it, and starts new nodes that have none of its
blocks: over the transport, by CometBFT's block sync at its own rate of 5.12 MB/s, and
by block sync at 500 MB/s; with --device or --guest by RDMA, too. It prints the time from a
node's start until its RPC server reports the chain's last block but one, and its CPU
time. By RDMA it needs a build with RDMA of this program (CGO_ENABLED=1 go run -tags rdma .)
and of starlingd (make build-rdma); --guest builds both, and runs them in an emulated
machine with Soft-RoCE.`,
		Example: `  go run . join --blocks 40
  go run . join --guest --blocks 20 --rounds 1
  go run . join --blocks 500 --json join.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Check(); err != nil {
				return fmt.Errorf("%w; 'starling-bench join --help' shows examples", err)
			}
			return measure(cmd, file, func(ctx context.Context, p *harness.Progress) (*joinbench.Result, error) {
				return joinbench.Run(ctx, o, p)
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVar(&o.Blocks, "blocks", 500, "blocks of the chain")
	flags.IntVar(&o.BlockBytes, "block-bytes", 1<<20, "bytes of values in a block")
	flags.IntVar(&o.ValueBytes, "value-bytes", 64<<10, "bytes of a value")
	flags.IntVar(&o.Rounds, "rounds", 3, "joins in each way, whose medians count")
	flags.Uint64Var(&o.Seed, "seed", 1, "seed of the values")
	flags.DurationVar(&o.Patience, "patience", 20*time.Minute, "time limit for one join")
	flags.StringVar(&file, "json", "", "write the result to this file, too")
	flags.StringVar(&o.Starlingd, "starlingd", "", "the built program (default: it is built)")
	flags.StringVar(&o.Device, "device", "", "RDMA device, by name or address, for joins by RDMA (default: none are measured)")
	flags.BoolVar(&o.Guest, "guest", false, "run in an emulated machine with Soft-RoCE")
	flags.StringVar(&o.Dir, "dir", "", "folder for homes, which are removed afterwards (default: the system's temporary folder)")
	return cmd
}
