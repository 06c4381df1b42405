package main

import (
	"encoding/json"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/app"
)

func newSnapshotsCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "snapshots",
		RunE:  group,
		Short: "List the snapshots that a node serves; export and import one as a file",
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
				fmt.Fprintln(env.Err, "no snapshots: none was due yet, [snapshots] keep is 0 in app.toml, or storage nodes keep the state ([state] mode)")
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
	cmd.AddCommand(newSnapshotsExportCmd(env), newSnapshotsImportCmd(env))
	return cmd
}
