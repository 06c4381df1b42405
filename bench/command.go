package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/pictures"
)

// benchmark returns the command of a benchmark. O are the benchmark's options, which define its
// flags; every benchmark has --json and --dir, too. The command fails before measuring if a flag is
// invalid or an output file cannot be written.
func benchmark[O any, R interface{ Print(io.Writer) }, P interface {
	*O
	Flags(*harness.Flags)
}](name, short, example string, run func(context.Context, O, *harness.Progress) (R, error)) *cobra.Command {
	cmd := &cobra.Command{Use: name, Short: short, Example: "  go run . " + example, Args: cobra.NoArgs}
	var (
		o         O
		file, dir string
		flags     = &harness.Flags{FlagSet: cmd.Flags()}
	)
	flags.SortFlags = false
	P(&o).Flags(flags)
	flags.Output(&file, "json", "also write the result to this file, as JSON")
	flags.StringVar(&dir, "dir", "", "folder for the run's files, which are removed at the end (default: the system's temporary folder)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := flags.Check(); err != nil {
			return fmt.Errorf("%w\n'starling-bench %s --help' shows an example", err, name)
		}
		discard, err := flags.Reserve()
		if err != nil {
			return err
		}
		progress := harness.NewProgress(os.Stderr)
		progress.Dir = dir
		harness.ThisMachine() // with the load before the run
		result, err := run(cmd.Context(), o, progress)
		if err != nil {
			discard()
			return err
		}
		result.Print(cmd.OutOrStdout())
		return save(file, result)
	}
	return cmd
}

// save writes a result to a file as JSON. It does nothing if the name is empty.
func save(file string, result any) error {
	if file == "" {
		return nil
	}
	b, err := json.MarshalIndent(result, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, append(b, '\n'), 0o644); err != nil { //nolint:gosec // results are world-readable
		return fmt.Errorf("--json: %w", err)
	}
	return nil
}

// newChild returns the hidden command that runs every child.
func newChild() *cobra.Command {
	return &cobra.Command{
		Use: harness.ChildCommand, Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			run := children[args[0]]
			if run == nil {
				return fmt.Errorf("unknown child %q", args[0])
			}
			return run(cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}

// newDraw returns the command that draws pictures and measures nothing.
func newDraw() *cobra.Command {
	var o pictures.Options
	cmd := &cobra.Command{
		Use: "draw", Short: "Draws the pictures of the documents from the recorded output of runs",
		Example: "  go run . draw --runs ../docs/runs --out ../docs", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			files, err := pictures.Run(o)
			for _, file := range files {
				fmt.Fprintln(cmd.OutOrStdout(), file)
			}
			return err
		},
	}
	o.Flags(&harness.Flags{FlagSet: cmd.Flags()})
	return cmd
}
