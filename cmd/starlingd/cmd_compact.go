package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/node"
)

func newCompactCmd(env *cliEnv) *cobra.Command {
	return &cobra.Command{
		Use:   "compact",
		Short: "Rewrite the data of a stopped node, so that nothing deleted takes room",
		Long: `Rewrites state and blocks on disk without what was overwritten, deleted or
pruned, which a running node does little by little. The node must be stopped.
It needs free space of about the size of a few large files; Ctrl-C ends it at
any time, and what is done stays done.

Stored snapshots (data/snapshots) share files with the state. They keep theirs,
so that they take room of their own afterwards.`,
		Example: `  starlingd compact
  starlingd compact --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return offline(cmd, env, func(ctx context.Context, config *node.Config) error {
				shown := stages{env: env, unit: bytesUnit}
				zones, err := node.Compact(ctx, config, func(zone string, done, total uint64) { shown.at("compacting "+zone, done, total) })
				shown.end()
				if env.JSON() {
					if zones == nil {
						zones = []node.CompactedZone{}
					}
					if wrong := writeJSON(env.Out, zones); wrong != nil {
						return wrong
					}
					return err
				}
				for _, z := range zones {
					fmt.Fprintf(env.Out, "%s: %s before, %s now\n", z.Folder, byteCount(z.Before), byteCount(z.After))
				}
				return err
			})
		},
	}
}
