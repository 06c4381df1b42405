package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/bench/framebench"
	"github.com/starling-kv/starling/bench/harness"
)

func newFrames() *cobra.Command {
	var (
		o    framebench.Options
		file string
	)
	cmd := &cobra.Command{
		Use:   "frames",
		Short: "The frames of transport/tcp against yamux and QUIC",
		Long: `Measures calls over TLS 1.3 on loopback: with transport/tcp, with a stream of yamux for each
call (HashiCorp's and libp2p's fork) and with a stream of QUIC for each: CPU time and
allocations of large answers, the latency of small ones alone and beside large ones, what
happens after a cancel, and the memory of a connection. Decision 0023 is based on it.`,
		Example: `  go run . frames --mb 16 --small 50 --rounds 3
  go run . frames --json frames.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Check(); err != nil {
				return fmt.Errorf("%w; 'starling-bench frames --help' shows examples", err)
			}
			return measure(cmd, file, func(ctx context.Context, p *harness.Progress) (*framebench.Result, error) {
				return framebench.Run(ctx, o, p)
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVar(&o.MB, "mb", 256, "MiB of large answers in the turn of a contestant")
	flags.IntVar(&o.Small, "small", 300, "small calls in a turn, alone and as many beside large ones")
	flags.IntVar(&o.Flight, "flight", 8, "large calls under way at a time, at most 15")
	flags.IntVar(&o.Rounds, "rounds", 9, "rounds, whose medians count")
	flags.Uint64Var(&o.Seed, "seed", 1, "seed of the bytes")
	flags.StringVar(&file, "json", "", "write the result to this file, too")
	return cmd
}
