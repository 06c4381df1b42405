package cli

import (
	"context"
	"fmt"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/home"
)

func newCompactCmd(env *cliEnv) *cobra.Command {
	return &cobra.Command{
		Use:   "compact",
		Short: "Reclaim disk space of a stopped node: rewrite its data without deleted records",
		Long: `Rewrites state and blocks on disk without records that were overwritten, deleted or
pruned. A running node does the same gradually. The node must be stopped.

Compaction needs free space for a few large files. Ctrl-C ends it at any time; files
rewritten so far stay rewritten.

Stored snapshots (data/snapshots) share files with the state. They keep the old
files, so afterwards they take disk space of their own.`,
		Example: `  starlingd compact
  starlingd compact --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return offline(cmd, env, func(ctx context.Context, config *config.Config) error {
				shown := stages{env: env, unit: bytesUnit}
				zones, err := home.Compact(ctx, config, func(zone string, done, total uint64) { shown.at("compacting "+zone, done, total) })
				shown.end()
				if env.JSON() {
					if zones == nil {
						zones = []home.CompactedZone{}
					}
					if wrong := writeJSON(env.Out, zones); wrong != nil {
						return wrong
					}
					return err
				}
				for _, z := range zones {
					fmt.Fprintf(env.Out, "%s: %s before, %s now\n", z.Folder, humanize.IBytes(z.Before), humanize.IBytes(z.After))
				}
				return err
			})
		},
	}
}
