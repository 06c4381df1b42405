package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/transportbench"
)

func newTransport() *cobra.Command {
	var (
		o           transportbench.Options
		file, sizes string
	)
	cmd := &cobra.Command{
		Use:   "transport",
		Short: "Answers by plain sockets, by TLS and by RDMA",
		Long: `Fetches answers between two processes, in turns by plain sockets (tcp), by transport/tcp
(tls) and by transport/rdma (rdma), with one and with several peers, and prints how fast they
come and the CPU time that they cost. The rows of rdma need a device, and a build with cgo:

  CGO_ENABLED=1 go run -tags rdma . transport

--guest builds that itself and runs it in an emulated machine with Soft-RoCE (QEMU; see
docs/rdma.md), beside a program in C that does nothing else. Emulated, nothing is fast: choose a
few MiB.`,
		Example: `  go run . transport --sizes 64KiB,1MiB --peers 1,4 --rounds 1
  go run . transport --guest --mib 32 --limit 2s --json transport.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if o.Sizes, err = transportbench.ParseSizes(sizes); err == nil {
				err = o.Check()
			}
			if err != nil {
				return fmt.Errorf("%w; 'starling-bench transport --help' shows examples", err)
			}
			return measure(cmd, file, func(ctx context.Context, p *harness.Progress) (*transportbench.Result, error) {
				return transportbench.Run(ctx, o, p)
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.BoolVar(&o.Guest, "guest", false, "run in an emulated machine with Soft-RoCE")
	flags.StringVar(&o.Device, "device", "", "RDMA device, or the server's and the client's: mlx5_0 or rxe0,rxe1 (default: the first that is up)")
	flags.StringVar(&sizes, "sizes", "64KiB,256KiB,1MiB,4MiB", "sizes of answers")
	flags.IntSliceVar(&o.Peers, "peers", []int{1, 2, 4, 8}, "numbers of peers that fetch at once")
	flags.IntVar(&o.Rounds, "rounds", 3, "rounds, whose medians count")
	flags.IntVar(&o.MiB, "mib", 256, "MiB of answers in a turn")
	flags.DurationVar(&o.Limit, "limit", 10*time.Second, "time after which a turn ends")
	flags.StringVar(&o.Reference, "reference", "", "the raw reference, built (default: it is built where there is a device)")
	flags.StringVar(&file, "json", "", "write the result to this file, too")
	flags.StringVar(&o.Dir, "dir", "", "folder for what is built, which is removed afterwards (default: the system's temporary folder)")
	return cmd
}

func newTransportSide() *cobra.Command {
	return &cobra.Command{
		Use:    transportbench.ChildCommand,
		Short:  "One side of a transport; the command transport starts it",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return transportbench.Serve(cmd.Context(), os.Stdin, os.Stdout)
		},
	}
}
