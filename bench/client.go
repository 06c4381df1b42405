package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/bench/clientbench"
	"github.com/starling-kv/starling/bench/harness"
)

func newClient() *cobra.Command {
	var (
		o    clientbench.Options
		file string
	)
	cmd := &cobra.Command{
		Use:   "client",
		Short: "A client's operations, beside those of etcd",
		Long: `Measures how long the operations of a client take, and how many there are in a second:
of a network of starlingd, and of an etcd of three members, all processes on this
machine, in turns. The two make different promises: etcd survives members that stop,
Starling validators that lie, too, and proves its answers.`,
		Example: `  go run . client --rounds 1 --seconds 2
  go run . client --timeout-commit 100ms --validators 4
  go run . client --json client.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Check(); err != nil {
				return fmt.Errorf("%w; 'starling-bench client --help' shows examples", err)
			}
			return measure(cmd, file, func(ctx context.Context, p *harness.Progress) (*clientbench.Result, error) {
				return clientbench.Run(ctx, o, p)
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVar(&o.Rounds, "rounds", 3, "rounds, in each of which every store does every operation")
	flags.IntVar(&o.Seconds, "seconds", 10, "seconds of each operation in each round")
	flags.IntVar(&o.Keys, "keys", 10_000, "keys of the state, written before")
	flags.IntVar(&o.ValueBytes, "value-bytes", 128, "length of a value")
	flags.IntVar(&o.RangeKeys, "range-keys", 100, "keys of a range")
	flags.IntVar(&o.Workers, "workers", 32, "operations under way at any time")
	flags.IntVar(&o.Validators, "validators", 3, "validators of Starling (four are the least that survive one that stops or lies)")
	flags.DurationVar(&o.TimeoutCommit, "timeout-commit", time.Second, "pause between Starling's blocks (the default is CometBFT's)")
	flags.StringVar(&o.Dir, "dir", "", "folder for the homes, which are removed afterwards (default: the system's temporary folder)")
	flags.StringVar(&o.Starlingd, "starlingd", "", "starlingd to use (default: it is built)")
	flags.StringVar(&o.EtcdStore, "etcdstore", "", "program of bench/etcdstore to use (default: it is built)")
	flags.StringVar(&file, "json", "", "write the result to this file, too")
	return cmd
}
