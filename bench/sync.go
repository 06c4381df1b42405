package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/syncbench"
)

func newSync() *cobra.Command {
	var (
		o             syncbench.Options
		against, file string
	)
	cmd := &cobra.Command{
		Use:   "sync",
		Short: "A new node's state, against the SDK's snapshots and memiavl's",
		Long: `Measures how long it takes a new node to get a state of 20-byte keys and values
of 100: Starling's join over loopback TCP from connecting to durable, verified
state, with a server and a joiner process; the Cosmos SDK's store with IAVL and
goleveldb, snapshot restore (create stands beside it); memiavl, the export of a mapped
snapshot piped into an import. Beside it the floor: the least time for loopback,
hashes and disk on this machine.

All take turns; the processes of the others are stopped. The SDK's store is a module of
its own, which is built first and loads a million keys in two minutes; --against
memiavl leaves it out. With --chunk-bytes, the same keys in chunks of 1 MiB are joined
as well.`,
		Example: `  go run . sync --keys 100000
  go run . sync --json sync.json
  go run . sync --keys 16000 --chunk-bytes 5000 --against ""
  go run . sync --against memiavl --repeat 9`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Against = list(against)
			if err := o.Check(); err != nil {
				return fmt.Errorf("%w; 'starling-bench sync --help' shows examples", err)
			}
			return measure(cmd, file, func(ctx context.Context, p *harness.Progress) (*syncbench.Result, error) {
				return syncbench.Run(ctx, o, p)
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVar(&o.Keys, "keys", 1_000_000, "keys of the state")
	flags.StringVar(&against, "against", strings.Join(syncbench.Peers, ","), "peers: sdk, memiavl; empty for none")
	flags.IntVar(&o.Repeat, "repeat", 5, "joins of Starling and of memiavl, whose medians count")
	flags.IntVar(&o.SDKRepeat, "sdk-repeat", 3, "restores of the SDK's store; at most --repeat are made")
	flags.Uint64Var(&o.ChunkBytes, "chunk-bytes", avlstar.DefaultChunkBytes, "limit of a chunk")
	flags.Uint64Var(&o.Seed, "seed", 1, "seed of the keys and values")
	flags.StringVar(&file, "json", "", "write the result to this file, too")
	flags.StringVar(&o.Dir, "dir", "", "folder for databases, which are removed afterwards (default: the system's temporary folder)")
	flags.StringVar(&o.SDK, "sdkstore", "", "the built program of bench/sdkstore (default: it is built)")
	return cmd
}

// newSyncContestant is the command of a child of sync, which only its parent runs.
func newSyncContestant() *cobra.Command {
	return &cobra.Command{
		Use:    syncbench.ChildCommand,
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return syncbench.Serve(os.Stdin, os.Stdout)
		},
	}
}
