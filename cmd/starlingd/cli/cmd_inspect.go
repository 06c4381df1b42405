package cli

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/home"
)

func newInspectCmd(env *cliEnv) *cobra.Command {
	var counted bool
	cmd := &cobra.Command{
		Use:   "inspect",
		Short: "Show what is on the disk of a stopped node",
		Long: `Shows heights and sizes of state and blocks on disk, and the number of blocks that the
next start executes again, because the state on disk lags a few blocks behind. The node
must be stopped. Nothing is changed.`,
		Example: `  starlingd inspect
  starlingd inspect --count --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return offline(cmd, env, func(ctx context.Context, config *config.Config) error {
				shown := stages{env: env, unit: "keys"}
				result, err := home.Inspect(ctx, config, counted, func(done, total uint64) { shown.at("counting keys", done, total) })
				shown.end()
				if err != nil {
					return err
				}
				if env.JSON() {
					return writeJSON(env.Out, result)
				}
				return showInspection(env, result)
			})
		},
	}
	cmd.Flags().BoolVar(&counted, "count", false, "count the keys instead of estimating them; this reads the whole state")
	return cmd
}

func showInspection(env *cliEnv, r home.Inspection) error {
	table := tabwriter.NewWriter(env.Out, 0, 8, 2, ' ', 0)
	row := func(name, format string, args ...any) { fmt.Fprintf(table, name+"\t"+format+"\n", args...) }
	s := r.State
	row("mode", "%s", r.Mode)
	if r.Mode == config.ModeSharded {
		row("state", "kept by storage nodes")
		return showBlocks(table, row, r)
	}
	row("state", "%s", s.Folder)
	if s.Height == 0 {
		row("  height", "no state")
		if s.Joining > 0 {
			row("  joining", "height %d: interrupted, `starlingd start` resumes it", s.Joining)
		}
	} else {
		from := ""
		if s.Restored {
			from = ", from a snapshot"
		}
		about := "about "
		if s.Exact {
			about = ""
		}
		row("  height", "%d%s", s.Height, from)
		row("  app hash", "%s", s.AppHash)
		row("  chain id", "%s", s.ChainID)
		row("  keys", "%s%d", about, s.Keys)
	}
	row("  size", "%s", humanize.IBytes(s.Bytes))
	for _, l := range s.Levels {
		row(fmt.Sprintf("  level %d", l.Level), "%s, %s", counted(l.Files, "file"), humanize.IBytes(l.Bytes))
	}
	for _, p := range s.Snapshots {
		row(fmt.Sprintf("  snapshot %d", p.Height), "%s, shared with the state", humanize.IBytes(p.Bytes))
	}
	return showBlocks(table, row, r)
}

// showBlocks prints the last rows of an inspection.
func showBlocks(table *tabwriter.Writer, row func(name, format string, args ...any), r home.Inspection) error {
	if r.Blocks == nil {
		row("blocks", "none")
		return table.Flush()
	}
	row("blocks", "%s (%s)", r.Blocks.Folder, r.Blocks.Backend)
	row("  heights", "%d to %d", r.Blocks.Base, r.Blocks.Height)
	row("  size", "%s", humanize.IBytes(r.Blocks.Bytes))
	for _, d := range r.Blocks.Databases {
		row("  "+d.ID, "%s", humanize.IBytes(d.Bytes))
	}
	if r.Mode == config.ModeSharded {
		row("to execute", "at the next start, the blocks since the newest state of the storage nodes")
	} else {
		row("to execute", "%s at the next start", counted(r.Lag, "block"))
	}
	return table.Flush()
}
