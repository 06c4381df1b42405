package main

import (
	"errors"
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
ICS-23 proofs; export and verified import; memory. Beside it the floor: what the
hashes of a commit cost with the best kernel in bulk on one core.

Each tree has a process of its own, one works at a time, in turns of a few dozen
versions. With the defaults that takes a quarter of an hour or more, mostly IAVL v1's;
without it, --against memiavl, some four minutes. Peers keep their files in --dir.`,
		Example: `  go run . tree --against memiavl
  go run . tree --json tree.json
  go run . tree --keys 100000 --versions 200 --iavl-versions 20`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Against = list(against)
			if err := o.Check(); err != nil {
				return fmt.Errorf("%w; 'starling-bench tree --help' shows examples", err)
			}
			return measureTree(cmd, o, file)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVar(&o.Keys, "keys", 1_000_000, "keys to load")
	flags.IntVar(&o.Batch, "batch", 10_000, "keys in a batch of the load")
	flags.IntVar(&o.Versions, "versions", 2_000, "versions without an export, and as many beside one")
	flags.StringVar(&against, "against", "iavl,memiavl", "peers: iavl, memiavl; empty for none")
	flags.Uint64Var(&o.Seed, "seed", 1, "seed of the workload")
	flags.StringVar(&file, "json", "", "write the result to this file, too")
	flags.IntVar(&o.IAVLVersions, "iavl-versions", 200, "--versions for IAVL v1, whose versions take a second; at most --versions are made")
	flags.Float64Var(&o.ExportRate, "export-rate", 32, "MB/s of leaf records that an export beside commits makes")
	flags.StringVar(&o.Dir, "dir", "", "folder for databases, which are removed afterwards (default: the system's temporary folder)")
	return cmd
}

func measureTree(cmd *cobra.Command, o treebench.Options, file string) error {
	// A file that cannot be written shows now, not after half an hour.
	discard, err := reserve(file)
	if err != nil {
		return err
	}
	result, err := treebench.Run(cmd.Context(), o, harness.NewProgress(os.Stderr))
	if err != nil {
		discard()
		return err
	}
	result.Print(cmd.OutOrStdout())
	return save(file, result)
}

// reserve makes sure that file can be written. discard removes it again, unless it was there before.
func reserve(file string) (discard func(), err error) {
	if file == "" {
		return func() {}, nil
	}
	_, err = os.Stat(file)
	isNew := errors.Is(err, os.ErrNotExist)
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE, 0o644) //nolint:gosec // a result is for everybody to read
	if err != nil {
		return nil, fmt.Errorf("--json: the result could not be written, name a file in a folder that exists: %w", err)
	}
	f.Close()
	return func() {
		if isNew {
			_ = os.Remove(file) // an empty file harms nobody
		}
	}, nil
}

// newTreeContestant is a child of tree: it talks to its parent, not to people.
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
