package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/bench/dsmbench"
	"github.com/starling-kv/starling/bench/harness"
)

func newDSM() *cobra.Command {
	var (
		o            dsmbench.Options
		phases, file string
	)
	cmd := &cobra.Command{
		Use:   "dsm",
		Short: "A state that is sharded over storage nodes, against local mode",
		Long: `Measures what RainBlock's evaluation does, on its workload: bytes of witnesses for
validators that keep the tree to several depths, and for bags of several ages; blocks
of an application on such bags beside one with everything in memory and one with a
paged state, in turns; storage nodes, each a process, that serve witnesses and take
updates over loopback TCP; a validator that joins. CometBFT takes no part.

With the defaults, a run takes about ten minutes.`,
		Example: `  go run . dsm --quick
  go run . dsm --keys 1000000 --retain 12 --window 32 --shards 1,2,4,8,16 --json dsm.json
  go run . dsm --keys 10000000 --phases sizes,join --depths 12 --shards 4`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Phases = list(phases)
			if o.Quick {
				quick(cmd, &o)
			}
			if err := o.Check(); err != nil {
				return fmt.Errorf("%w; 'starling-bench dsm --help' shows examples", err)
			}
			return measure(cmd, file, func(ctx context.Context, p *harness.Progress) (*dsmbench.Result, error) {
				return dsmbench.Run(ctx, o, p)
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVar(&o.Keys, "keys", 1_000_000, "accounts of the state")
	flags.IntVar(&o.Retain, "retain", 12, "r: the depth to which a validator keeps the tree")
	flags.IntVar(&o.Window, "window", 32, "blocks for which it keeps what changed")
	flags.IntSliceVar(&o.Shards, "shards", []int{1, 2, 4, 8, 16}, "storage nodes, one row each")
	flags.IntSliceVar(&o.Depths, "depths", []int{0, 8, 10, 14, 16}, "r of further rows of the sizes")
	flags.IntVar(&o.Blocks, "blocks", 60, "blocks of each row that count")
	flags.StringVar(&phases, "phases", strings.Join(dsmbench.Phases, ","), "what is measured")
	flags.IntVar(&o.PagedMB, "paged-mb", 64, "MiB of memory of the paged state")
	flags.Uint64Var(&o.Seed, "seed", 1, "seed of the transfers")
	flags.BoolVar(&o.Quick, "quick", false, "a run of seconds on a few keys, whose figures mean nothing")
	flags.StringVar(&file, "json", "", "write the result to this file, too")
	flags.StringVar(&o.Dir, "dir", "", "folder for states, which are removed afterwards (default: the system's temporary folder)")
	return cmd
}

// quick makes small what the command line does not set.
func quick(cmd *cobra.Command, o *dsmbench.Options) {
	unset := func(name string) bool { return !cmd.Flags().Changed(name) }
	if unset("keys") {
		o.Keys = 20_000
	}
	if unset("window") {
		o.Window = 4
	}
	if unset("shards") {
		o.Shards = []int{1, 3}
	}
	if unset("depths") {
		o.Depths = []int{0, 8}
	}
	if unset("blocks") {
		o.Blocks = 4
	}
}

// newDSMContestant is the command of a child of dsm, which only its parent runs.
func newDSMContestant() *cobra.Command {
	return &cobra.Command{
		Use:    dsmbench.ChildCommand,
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return dsmbench.Serve(os.Stdin, os.Stdout)
		},
	}
}
