package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/shard"
)

func newStorageRangesCmd(env *cliEnv) *cobra.Command {
	var (
		split, replicas int
		at, nodes       []string
		write           bool
	)
	cmd := &cobra.Command{
		Use:   "ranges",
		Short: "Show what storage nodes have, or divide the keys among them",
		Long: `Asks the storage nodes that config/storage_nodes.toml of the home folder names which
heights of their ranges they have. Nothing of it is proved.

With --at or --split it prints such a file instead, or with --write makes it in the
home folder. --at names the keys at which ranges begin; --split makes ranges of the
same width for keys of printable text. The file must be the same in every home.`,
		Example: `  starlingd storage ranges
  starlingd storage ranges --at g,p --nodes ID@HOST:26666,ID@HOST:26666 --replicas 2 --write
  starlingd storage ranges --split 8 --nodes ID@HOST:26666 > storage_nodes.toml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case split == 0 && len(at) == 0:
				if len(nodes) > 0 || write {
					return usagef("how are the keys divided? Give --split N, or --at KEY,KEY")
				}
				return showRanges(cmd, env)
			case split != 0 && len(at) > 0:
				return usagef("give --split or --at, not both")
			case split < 0 || split > config.MaxEvenRanges:
				return usagef("--split is %d, it must be from 1 to %d", split, config.MaxEvenRanges)
			}
			return divide(env, config.EvenEdges(split), at, nodes, replicas, write)
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&split, "split", 0, "number of ranges of the same width")
	flags.StringSliceVar(&at, "at", nil, "keys at which ranges begin, ascending: text, or hex after 0x")
	flags.StringSliceVar(&nodes, "nodes", nil, "storage nodes, as ID@HOST:PORT")
	flags.IntVar(&replicas, "replicas", 1, "number of storage nodes that keep each range")
	flags.BoolVar(&write, "write", false, "write config/storage_nodes.toml of the home folder")
	return cmd
}

// divide prints or writes a file of ranges.
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
	if !write {
		_, err := env.Out.Write(text)
		return err
	}
	path := filepath.Join(env.Home, config.DefaultStorageNodesFile)
	err = writeNewFile(path, text, 0o600)
	if errors.Is(err, os.ErrExist) {
		return usagef("%q exists: move it away first, and note that storage nodes then fetch the ranges that are new to them", path)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(env.Out, "Wrote %q: copy it into the home of every node\n", path)
	return nil
}

// showRanges prints what the storage nodes of the home's file have. The error says that some do not
// answer.
func showRanges(cmd *cobra.Command, env *cliEnv) error {
	conf, err := config.Load(env.Home, env.V)
	if err != nil {
		return err
	}
	rows, err := shard.Ask(cmd.Context(), conf)
	if err != nil {
		return err
	}
	if env.JSON() {
		return writeJSON(env.Out, rows)
	}
	w := tabwriter.NewWriter(env.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "RANGE\tNODE\tHEIGHTS\tDURABLE\tNEEDS")
	for _, r := range rows {
		if r.Error != "" {
			fmt.Fprintf(w, "%s\t%s\t%s\t\t\n", r.Range, r.Node, r.Error)
			continue
		}
		fmt.Fprintf(w, "%s\t%s\t%d–%d\t%d\t%d\n", r.Range, r.Node, r.Oldest, r.Newest, r.Durable, r.Needs)
	}
	return w.Flush()
}
