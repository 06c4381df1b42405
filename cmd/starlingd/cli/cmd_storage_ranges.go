package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/storagenode"
)

func newStorageRangesCmd(env *cliEnv) *cobra.Command {
	var (
		split, replicas int
		at, nodes       []string
		from            string
		single, write   bool
	)
	cmd := &cobra.Command{
		Use:   "ranges",
		Short: "Show the storage nodes' ranges and heights, assign ranges to nodes, or change them",
		Long: `Queries the storage nodes in config/storage_nodes.toml of the home folder for the heights
of their ranges. The responses are not verified.

With --at or --split, the command prints a new storage_nodes.toml instead, or writes it to
the home folder with --write. --at lists the keys at which ranges begin. --split divides
the state of the node --from, which must have all of it, into ranges of about the same size.
With --from storage, it divides the state of the storage nodes in the present file; without
--from, it divides printable text keys into ranges of equal width. Two storage nodes keep
each range unless --replicas says otherwise. The file must be the same in every home.`,
		Example: `  starlingd storage ranges
  starlingd storage ranges --at g,p --nodes ID@HOST:26666,ID@HOST:26666 --write
  starlingd storage ranges --split 8 --from ID@HOST:26666 --nodes ID@HOST:26666,ID@HOST:26666 --write
  starlingd storage ranges --split 8 --single-replica --nodes ID@HOST:26666 > storage_nodes.toml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case split == 0 && len(at) == 0:
				if len(nodes) > 0 || write || from != "" {
					return usagef("--split N or --at KEY,KEY is missing: it divides the keys into ranges")
				}
				return showRanges(cmd, env)
			case split != 0 && len(at) > 0:
				return usagef("use either --split or --at")
			case split == 0 && from != "":
				return usagef("--from needs --split: --at names the keys itself")
			case split < 0 || split > config.MaxEvenRanges:
				return usagef("--split is %d, it must be from 1 to %d", split, config.MaxEvenRanges)
			case single && cmd.Flags().Changed("replicas"):
				return usagef("use either --replicas or --single-replica")
			case single:
				replicas = 1
			case replicas == 1:
				return usagef("with --replicas 1, a lost disk loses the state of a range: use 2 or more, or --single-replica for a demonstration, with state.min_acks = 1 at validators")
			}
			edges := config.EvenEdges(split)
			if from != "" {
				var err error
				if edges, err = dataEdges(cmd, env, from, split); err != nil {
					return err
				}
			}
			return divide(env, edges, at, nodes, replicas, write)
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&split, "split", 0, "number of ranges")
	flags.StringVar(&from, "from", "", `full-state node whose state --split divides, as ID@HOST:PORT of its transport, or "storage": that of the storage nodes`)
	flags.StringSliceVar(&at, "at", nil, "keys at which ranges begin, ascending: text, or hex after 0x")
	flags.StringSliceVar(&nodes, "nodes", nil, "storage nodes, as ID@HOST:PORT")
	flags.IntVar(&replicas, "replicas", 2, "number of storage nodes that keep each range")
	flags.BoolVar(&single, "single-replica", false, "one storage node for each range: a lost disk loses its state")
	flags.BoolVar(&write, "write", false, "write config/storage_nodes.toml of the home folder")
	cmd.AddCommand(newStorageBalanceCmd(env))
	cmd.AddCommand(newStorageChangeCmds(env)...)
	return cmd
}

// dataEdges returns the edges of n ranges with about the same number of bytes of a node's state.
func dataEdges(cmd *cobra.Command, env *cliEnv, from string, n int) ([][]byte, error) {
	conf, err := config.Load(env.Home, env.V)
	if err != nil {
		return nil, err
	}
	edges, err := storagenode.DataEdges(cmd.Context(), conf, from, n)
	if err == nil && len(edges) < n-1 {
		fmt.Fprintf(env.Err, "warning: the state is too small for %d ranges: divided into %d\n", n, len(edges)+1)
	}
	return edges, err
}

// divide prints or writes a storage nodes file.
func divide(env *cliEnv, edges [][]byte, at, nodes []string, replicas int, write bool) error {
	for _, text := range at {
		key, err := config.ParseKey(text)
		if err != nil {
			return usagef("--at: %w", err)
		}
		edges = append(edges, key)
	}
	text, err := config.DivideStorageNodes(edges, nodes, replicas)
	if err != nil {
		return err
	}
	for _, node := range nodes {
		if !bytes.Contains(text, fmt.Appendf(nil, "%q", node)) {
			fmt.Fprintf(env.Err, "warning: no range uses node %s: divide the keys into more ranges, or raise --replicas\n", node)
		}
	}
	if !write {
		_, err := env.Out.Write(text)
		return err
	}
	path := filepath.Join(env.Home, config.DefaultStorageNodesFile)
	err = writeNewFile(path, text, 0o600)
	if errors.Is(err, os.ErrExist) {
		return usagef("%q exists: move it away first; storage nodes will fetch the ranges newly assigned to them", path)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(env.Out, "Wrote %q: copy it into the home of every node\n", path)
	return nil
}

// showRanges prints the heights that the storage nodes of the home's file have. It returns an error
// if some do not answer.
func showRanges(cmd *cobra.Command, env *cliEnv) error {
	conf, err := config.Load(env.Home, env.V)
	if err != nil {
		return err
	}
	rows, err := storagenode.Ask(cmd.Context(), conf)
	if err != nil {
		return err
	}
	if env.JSON() {
		return writeJSON(env.Out, rows)
	}
	w := tabwriter.NewWriter(env.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "RANGE\tNODE\tHEIGHTS\tDURABLE\tNEEDS")
	for _, r := range rows {
		if r.Next {
			r.Range = "next " + r.Range
		}
		if r.Error != "" {
			fmt.Fprintf(w, "%s\t%s\t%s\t\t\n", r.Range, r.Node, r.Error)
			continue
		}
		fmt.Fprintf(w, "%s\t%s\t%d–%d\t%d\t%d\n", r.Range, r.Node, r.Oldest, r.Newest, r.Durable, r.Needs)
	}
	return w.Flush()
}
