package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/opsbench"
	"github.com/starling-kv/starling/bench/syncbench"
)

func newCosmos() *cobra.Command {
	var (
		o                     syncbench.CosmosOptions
		engines, file, stores string
	)
	cmd := &cobra.Command{
		Use:   "cosmos",
		Short: "An SDK node's home by verified chunks, against the SDK's snapshots",
		Long: `Measures how a new node of a Cosmos SDK chain gets a state of 20-byte keys and values of
100 in one IAVL store: by chunks that the app hash proves (cosmos/nodedb), from a
database on disk to a home that the SDK opens; and by the SDK's own snapshots, create
and restore. Both are in one process, without a network. The SDK's store is a module of
its own, which is built first and loads a million keys in two minutes.

Then the blocks of a running application (bench/sdknode), beside the states that it serves and
a joiner: how much longer the 99th percentile of a commit takes is commit_p99_ratio.

Then the operations of one store of a chain: IAVL's and ours (cosmos/store) in the SDK's
multi-store, and memiavl's. Each has a process, and they take turns.`,
		Example: `  go run . cosmos --keys 100000
  go run . cosmos --engines goleveldb --json cosmos.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Engines, o.Stores = list(engines), nil
			for name := range strings.SplitSeq(stores, ";") {
				if name = strings.TrimSpace(name); name != "" {
					o.Stores = append(o.Stores, name)
				}
			}
			if err := o.Check(); err != nil {
				return fmt.Errorf("%w; 'starling-bench cosmos --help' shows examples", err)
			}
			return measure(cmd, file, func(ctx context.Context, p *harness.Progress) (*syncbench.CosmosResult, error) {
				return syncbench.RunCosmos(ctx, o, p)
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVar(&o.Keys, "keys", 1_000_000, "keys of the state")
	flags.StringVar(&engines, "engines", strings.Join(syncbench.Engines, ","), "databases: goleveldb, pebbledb")
	flags.IntVar(&o.Repeat, "repeat", 3, "joins and restores, whose medians count")
	flags.Uint64Var(&o.Seed, "seed", 1, "seed of the keys and values")
	flags.StringVar(&file, "json", "", "write the result to this file, too")
	flags.StringVar(&o.Dir, "dir", "", "folder for databases, which are removed afterwards (default: the system's temporary folder)")
	flags.IntVar(&o.Commits, "commits", 500, "blocks whose commits are timed, of a node that serves and of one that does not; 0: none")
	flags.StringVar(&stores, "stores", strings.Join(opsbench.Names, "; "), "stores whose operations are measured, between semicolons; empty: none")
	flags.StringVar(&o.StoreOps, "storeops", "", "the built program of bench/storeops (default: it is built)")
	flags.StringVar(&o.Node, "sdknode", "", "the built program of bench/sdknode (default: it is built)")
	flags.StringVar(&o.SDK, "sdkstore", "", "the built program of bench/sdkstore (default: it is built)")
	return cmd
}

// newOps is the child for memiavl's stores of cosmos.
func newOps() *cobra.Command {
	return &cobra.Command{
		Use:    opsbench.ChildCommand,
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return opsbench.Serve(cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}
