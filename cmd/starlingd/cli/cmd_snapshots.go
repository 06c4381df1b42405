package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"text/tabwriter"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/home"
)

func newSnapshotsCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "snapshots",
		RunE:  group,
		Short: "List the snapshots that a node serves; export and import one as a file; remove stored ones",
	}
	list := &cobra.Command{
		Use:   "list",
		Short: "List the snapshots: height, chunks, app hash",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := callContext(cmd, env)
			defer cancel()
			c, err := dial(ctx, env)
			if err != nil {
				return explain(err)
			}
			answer, err := c.Query(ctx, app.PathSnapshots, nil, 0, false)
			if err != nil {
				return explain(err)
			}
			infos := []app.SnapshotInfo{}
			if err := json.Unmarshal(answer.Response.Value, &infos); err != nil {
				return fmt.Errorf("the node's list of snapshots cannot be decoded: %w", err)
			}
			if env.JSON() {
				return writeJSON(env.Out, infos)
			}
			if len(infos) == 0 {
				fmt.Fprintln(env.Err, "no snapshots: no snapshot height was reached yet, [snapshots] keep_recent is 0 in app.toml, or storage nodes keep the state ([state] mode)")
				return nil
			}
			table := tabwriter.NewWriter(env.Out, 0, 8, 2, ' ', 0)
			fmt.Fprintln(table, "HEIGHT\tCHUNKS\tAPP HASH")
			for _, s := range infos {
				fmt.Fprintf(table, "%d\t%d\t%s\n", s.Height, s.Chunks, s.Hash)
			}
			return table.Flush()
		},
	}
	addCallFlags(list.Flags())
	cmd.AddCommand(list)
	cmd.AddCommand(newSnapshotsExportCmd(env), newSnapshotsImportCmd(env), newSnapshotsPruneCmd(env))
	return cmd
}

func newSnapshotsPruneCmd(env *cliEnv) *cobra.Command {
	var keep int
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove the stored snapshots of a stopped node, except the newest ones",
		Long: `Removes the snapshots that a stopped node has stored on disk (data/snapshots), except the
newest --keep. Keys, values and blocks stay. A running node keeps [snapshots] keep_recent
of app.toml.`,
		Example: `  starlingd snapshots prune
  starlingd snapshots prune --keep 1`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if keep < 0 {
				return usagef("--keep is %d, it must be 0 or more", keep)
			}
			return offline(cmd, env, func(_ context.Context, config *config.Config) error {
				result, err := home.PruneSnapshots(config, keep)
				if err != nil {
					return err
				}
				if env.JSON() {
					return writeJSON(env.Out, result)
				}
				for _, s := range result.Removed {
					fmt.Fprintf(env.Out, "removed the snapshot of height %d (%s, some of it shared with the state)\n", s.Height, humanize.IBytes(s.Bytes))
				}
				fmt.Fprintf(env.Out, "%s left\n", counted(len(result.Kept), "snapshot"))
				return nil
			})
		},
	}
	cmd.Flags().IntVar(&keep, "keep", 0, "number of newest snapshots to keep")
	return cmd
}
