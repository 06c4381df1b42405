package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/storagebench"
)

func newStorage() *cobra.Command {
	var (
		o                   storagebench.Options
		against, only, file string
		budget              float64
		quick               bool
	)
	cmd := &cobra.Command{
		Use:   "storage",
		Short: "The storage zones against one mixed Pebble and goleveldb",
		Long: `Replays a chain, blocks and state, into the storage zones, into one mixed Pebble
database and into goleveldb with the state as IAVL's nodes, and into the steps
between; then reads transactions and accounts. All have the same memory, a quarter
of the state. Beside it: the space-gaming cache against fixed splits, a start after
SIGKILL, the time that durable storage adds to a commit, and the CPU time of commits
and queries where a node has memory for a quarter of its state ("paged").

Each contestant has its own process; one runs at a time, in turns.`,
		Example: `  go run . storage --quick
  go run . storage --json storage.json
  go run . storage --only recovery --keys 10000000`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Against, o.Only = list(against), list(only)
			o.Budget = int64(budget * (1 << 20))
			if quick {
				for flag, to := range map[string]func(){
					"keys": func() { o.Keys = 100_000 }, "blocks": func() { o.Blocks = 100 }, "queries": func() { o.Queries = 2000 },
				} {
					if !cmd.Flags().Changed(flag) {
						to()
					}
				}
			}
			if err := o.Check(); err != nil {
				return fmt.Errorf("%w; 'starling-bench storage --help' shows examples", err)
			}
			return measure(cmd, file, func(ctx context.Context, p *harness.Progress) (*storagebench.Result, error) {
				return storagebench.Run(ctx, o, p)
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVar(&o.Keys, "keys", 1_000_000, "accounts before the first block")
	flags.IntVar(&o.Blocks, "blocks", 1_000, "blocks to replay")
	flags.IntVar(&o.TxsPerBlock, "txs-per-block", 1_000, "transactions in a block, each of which changes an account")
	flags.Float64Var(&budget, "budget", 0, "MiB of memory for each contestant (default: a quarter of the state)")
	flags.Float64Var(&o.NodeShare, "node-share", 0.5, "share of the caches that is for decoded nodes where the state is IAVL's nodes")
	flags.BoolVar(&o.Cold, "cold", false, "empty the system's page cache of the databases before each cell of reads (Linux)")
	flags.IntVar(&o.Queries, "queries", 10_000, "queries in each cell of a table, after as many that warm caches")
	flags.StringVar(&against, "against", strings.Join(storagebench.Peers, ","), "peers: mixed, goleveldb; empty for none")
	flags.StringVar(&only, "only", "", "parts: "+strings.Join(storagebench.Parts, ", ")+" (default: all)")
	flags.BoolVar(&quick, "quick", false, "100,000 keys, 100 blocks, 2,000 queries: a test run of two or three minutes")
	flags.Uint64Var(&o.Seed, "seed", 1, "seed of the chain")
	flags.StringVar(&file, "json", "", "write the result to this file, too")
	flags.StringVar(&o.Dir, "dir", "", "folder for databases, which are removed afterwards (default: the system's temporary folder)")
	return cmd
}

// list splits names at commas, without empty ones.
func list(names string) (l []string) {
	for name := range strings.SplitSeq(names, ",") {
		if name = strings.TrimSpace(name); name != "" {
			l = append(l, name)
		}
	}
	return l
}

// newStorageContestant is the command of a child of storage, which only its parent runs.
func newStorageContestant() *cobra.Command {
	return &cobra.Command{
		Use:    storagebench.ChildCommand,
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return storagebench.Serve(os.Stdin, os.Stdout)
		},
	}
}
