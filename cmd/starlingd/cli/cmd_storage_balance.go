package cli

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/storagenode"
)

func newStorageBalanceCmd(env *cliEnv) *cobra.Command {
	var (
		spare []string
		over  time.Duration
	)
	cmd := &cobra.Command{
		Use:   "balance",
		Short: "Propose changes of the ranges from their sizes and traffic",
		Long: `Queries all storage nodes in config/storage_nodes.toml of the home folder for the sizes and
the traffic of their ranges, and proposes to replicate, split, move or merge ranges. Each
proposal has a reason and a command. Nothing is changed: run the commands that you agree
with, in this order, and then balance again. The responses are not verified.`,
		Example: `  starlingd storage ranges balance
  starlingd storage ranges balance --nodes ID@HOST:26666 --over 1m
  starlingd storage ranges balance --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if over <= 0 {
				return usagef("--over is %s, it must be above 0", over)
			}
			conf, err := config.Load(env.Home, env.V)
			if err != nil {
				return err
			}
			ctx, cancel := untilSignal(cmd.Context())
			defer cancel()
			b, err := storagenode.Balance(ctx, conf, spare, over)
			if err != nil {
				return err
			}
			for i := range b.Proposals {
				if env.Home != defaultHome() {
					b.Proposals[i].Command += " --home " + config.Quote(env.Home)
				}
			}
			if env.JSON() {
				return writeJSON(env.Out, b)
			}
			table := tabwriter.NewWriter(env.Out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(table, "NODE\tRANGES\tBYTES\tKEYS A SECOND")
			for _, n := range b.Nodes {
				if n.Error != "" { // a note says why
					fmt.Fprintf(table, "%s\t%d\tno answer\t\n", harmless(n.Node), n.Ranges)
					continue
				}
				fmt.Fprintf(table, "%s\t%d\t%s\t%d\n", harmless(n.Node), n.Ranges, humanize.IBytes(n.Bytes), n.Traffic)
			}
			if err := table.Flush(); err != nil {
				return err
			}
			for _, note := range b.Notes {
				fmt.Fprintln(env.Out, "note:", harmless(note))
			}
			for i, p := range b.Proposals {
				fmt.Fprintf(env.Out, "%d. %s: %s\n   %s\n", i+1, p.Change, harmless(p.Reason), harmless(p.Command))
			}
			if len(b.Proposals) == 0 {
				fmt.Fprintln(env.Out, "Nothing is proposed")
			}
			return nil
		},
	}
	cmd.Flags().StringSliceVar(&spare, "nodes", nil, "further storage nodes, without ranges, as ID@HOST:PORT")
	cmd.Flags().DurationVar(&over, "over", 10*time.Second, "time over which traffic is measured")
	return cmd
}
