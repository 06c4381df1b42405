package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/treebench"
)

func newTree() *cobra.Command {
	var (
		o             treebench.Options
		against, file string
	)
	cmd := &cobra.Command{
		Use:   "tree",
		Short: "The tree against memiavl and IAVL v1",
		Long: `Measures the tree against memiavl and IAVL v1 on the same seeded workload: keys of
20 random bytes, values of 100; load in batches; versions of 1,000 operations
(80 % update, 15 % insert, 5 % delete) without and beside an export; random gets;
ICS-23 proofs; export and verified import; memory. memiavl takes part twice: with all
nodes as objects, and over a snapshot that it maps. Beside it the floor: the time for
the hashes of a commit, in bulk with the best kernel on one core.

Each tree has its own process; one runs at a time, in turns of a few dozen versions.
With the defaults, a run takes a quarter of an hour or more, most of it for IAVL v1;
without it (--against memiavl), about six minutes. Peers keep their files in --dir.`,
		Example: `  go run . tree --against memiavl
  go run . tree --json tree.json
  go run . tree --keys 10000000 --versions 400 --against memiavl --exports 0
  go run . tree --keys 100000 --versions 200 --iavl-versions 20`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Against = list(against)
			if err := o.Check(); err != nil {
				return fmt.Errorf("%w; 'starling-bench tree --help' shows examples", err)
			}
			return measure(cmd, file, func(ctx context.Context, p *harness.Progress) (*treebench.Result, error) {
				return treebench.Run(ctx, o, p)
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVar(&o.Keys, "keys", 1_000_000, "keys to load")
	flags.IntVar(&o.Batch, "batch", 10_000, "keys in a batch of the load")
	flags.IntVar(&o.Versions, "versions", 2_000, "versions without an export, and as many beside one")
	flags.StringVar(&against, "against", "iavl,memiavl", "peers: iavl, memiavl; empty for none")
	flags.BoolVar(&o.Index, "index", true, "measure Starling with an index by hash, too")
	flags.Uint64Var(&o.Seed, "seed", 1, "seed of the workload")
	flags.StringVar(&file, "json", "", "write the result to this file, too")
	flags.IntVar(&o.IAVLVersions, "iavl-versions", 200, "--versions for IAVL v1, whose versions take a second; at most --versions are made")
	flags.Float64Var(&o.ExportRate, "export-rate", 32, "MB/s of leaf records that an export beside commits makes")
	flags.IntVar(&o.Exports, "exports", 5, "exports and verified imports of each; 0 for none (memiavl's take a minute at ten million keys)")
	flags.StringVar(&o.Dir, "dir", "", "folder for databases, which are removed afterwards (default: the system's temporary folder)")
	return cmd
}

// newTreeContestant is the command of a child of tree, which only its parent runs.
func newTreeContestant() *cobra.Command {
	return &cobra.Command{
		Use:    treebench.ChildCommand,
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return treebench.Serve(os.Stdin, os.Stdout)
		},
	}
}
