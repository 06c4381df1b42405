package cli

import (
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/statuspage"
)

func newStorageStatusCmd(env *cliEnv) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the ranges of the running storage node of this home",
		Long: `Queries the storage node of the home folder at [status] laddr of app.toml for its ranges:
their progress, their other replicas, and what the node is waiting for. "starlingd storage
ranges" queries all storage nodes, over the transport.`,
		Example: `  starlingd storage status --home ~/.starling-storage
  starlingd storage status --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			conf, err := config.Load(env.Home, env.V)
			if err != nil {
				return err
			}
			address := conf.Local().Status
			if address == "" {
				return config.Invalid(errors.New("status.laddr is not set; set it and restart, or run `starlingd storage ranges`"))
			}
			s, err := askStatusPage(cmd.Context(), address)
			if err == nil && s.Sharded == nil {
				err = fmt.Errorf("the node at %s reports no ranges: is this another program's address?", address)
			}
			if err != nil {
				return fmt.Errorf("no response from the storage node: %w: is it running?", err)
			}
			if env.JSON() {
				return writeJSON(env.Out, s)
			}
			table := tabwriter.NewWriter(env.Out, 0, 8, 2, ' ', 0)
			line := func(name string, value any) { fmt.Fprintf(table, "%s\t%v\n", name, value) }
			line("storage node", fmt.Sprintf("%s (%s)", harmless(s.Node.Moniker), harmless(s.Node.ID)))
			line("chain", harmless(s.Node.ChainID))
			line("version", harmless(s.Node.Version))
			line("header", fmt.Sprintf("height %d", s.Chain.Height))
			writeStorage(line, *s.Sharded)
			return table.Flush()
		},
	}
}

// writeStorage prints ranges, and the storage nodes that keep them.
func writeStorage(line func(name string, value any), s statuspage.Sharded) {
	line("storage", fmt.Sprintf("height %d on disk, of %d (%s behind)", s.Durable, s.Head, english.Plural(int(s.Lag), "block", "")))
	if s.Waiting != "" {
		line("waiting", harmless(s.Waiting))
	}
	for i, r := range s.Ranges {
		name := ""
		if i == 0 {
			name = fmt.Sprintf("ranges (%d)", len(s.Ranges))
		}
		line(name, fmt.Sprintf("%s  height %d on disk, %s of updates waiting", harmless(r.Range), r.Durable, humanize.IBytes(r.QueuedBytes)))
		for _, n := range r.Nodes {
			line("", "  "+replicaLine(n))
		}
		if f := r.Filling; f != nil {
			line("", "  "+fillingLine(*f))
		}
		if r.Damaged != "" {
			line("", "  DAMAGED data were put aside in "+harmless(r.Damaged))
		}
	}
	for i, l := range s.Liars {
		name := ""
		if i == 0 {
			name = "liars"
		}
		line(name, fmt.Sprintf("%s  %s, %s times, in %s", harmless(l.ID), harmless(l.Verdict), humanize.Comma(int64(l.Count)), harmless(l.Range)))
	}
}

// fillingLine describes the progress of fetching a range.
func fillingLine(f statuspage.Filling) string {
	shown := fmt.Sprintf("fetching at height %d: %s of %s", f.Height, humanize.IBytes(f.Bytes), humanize.IBytes(f.Total))
	if f.BytesPerSecond == 0 {
		return shown
	}
	return fmt.Sprintf("%s, %s/s, about %s left", shown, humanize.IBytes(f.BytesPerSecond), time.Duration(f.SecondsLeft*float64(time.Second)).Round(time.Second))
}

// replicaLine describes a replica of a range.
func replicaLine(n statuspage.ShardNode) string {
	who := harmless(n.ID + "@" + n.Address)
	switch {
	case !n.Connected && n.Error != "":
		return fmt.Sprintf("%s  SILENT: %s", who, harmless(n.Error))
	case n.Newest == 0 && n.Durable == 0:
		return fmt.Sprintf("%s  %s", who, harmless(n.State))
	}
	shown := fmt.Sprintf("%s  %s, height %d on disk (%s behind)", who, harmless(n.State), n.Durable, english.Plural(int(n.LagBlocks), "block", ""))
	if n.Newest > 0 { // it was queried for its newest height
		shown += fmt.Sprintf(", serves up to %d", n.Newest)
	}
	return shown
}
