package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/bench/clientbench"
	"github.com/starling-kv/starling/bench/harness"
)

func newWatch() *cobra.Command {
	var (
		o    clientbench.WatchOptions
		file string
	)
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "What watchers cost a node, and how fast one catches up",
		Long: `Writes at a steady rate to one node, with many watchers and without, in turns, and
measures the time between blocks. It fails if a watcher misses an event. Then it
watches from many heights ago.`,
		Example: `  go run . watch --rounds 1 --seconds 5 --watchers 100 --heights 100
  go run . watch --timeout-commit 200ms
  go run . watch --json watch.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Check(); err != nil {
				return fmt.Errorf("%w; 'starling-bench watch --help' shows examples", err)
			}
			return measure(cmd, file, func(ctx context.Context, p *harness.Progress) (*clientbench.WatchResult, error) {
				return clientbench.RunWatch(ctx, o, p)
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVar(&o.Rounds, "rounds", 3, "rounds, each with watchers and without")
	flags.IntVar(&o.Seconds, "seconds", 60, "seconds of each")
	flags.IntVar(&o.Watchers, "watchers", 1000, "watchers of one key each; as many keys are written in turn")
	flags.IntVar(&o.All, "all", 10, "watchers of everything")
	flags.BoolVar(&o.Shared, "shared", false, "all watchers are of one client (otherwise each has a client of its own)")
	flags.IntVar(&o.Changes, "changes", 1000, "changes a second")
	flags.IntVar(&o.TxChanges, "tx-changes", 10, "changes of a transaction")
	flags.IntVar(&o.Heights, "heights", 10_000, "heights of the log that a watcher catches up with; 100 changes in each block that is not empty")
	flags.DurationVar(&o.TimeoutCommit, "timeout-commit", time.Second, "pause between blocks (the default is CometBFT's)")
	flags.StringVar(&o.Dir, "dir", "", "folder for the homes, which are removed afterwards (default: the system's temporary folder)")
	flags.StringVar(&o.Starlingd, "starlingd", "", "starlingd to use (default: it is built)")
	flags.StringVar(&file, "json", "", "write the result to this file, too")
	return cmd
}
