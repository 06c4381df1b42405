package cli

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/node/buildinfo"
)

func newVersionCmd(env *cliEnv) *cobra.Command {
	var long bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of Starling, CometBFT and Go in this program",
		Long: `Prints the versions of Starling, CometBFT and Go in this program. With --long, also prints
how it was built, the app versions that it executes, and the on-disk formats that it can
read.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if long {
				return longVersion(env)
			}
			v := buildinfo.Read()
			if env.JSON() {
				return writeJSON(env.Out, v)
			}
			_, err := fmt.Fprint(env.Out, versionText(v))
			return err
		},
	}
	cmd.Flags().BoolVar(&long, "long", false, "also print build details, app versions and on-disk formats")
	return cmd
}

// versionText is the output of `starlingd version` and `starlingd --version`.
func versionText(v buildinfo.Versions) string {
	return fmt.Sprintf("starlingd %s\ncometbft  %s\ngo        %s\n", v.Starling, v.CometBFT, v.Go)
}

func longVersion(env *cliEnv) error {
	v, err := buildinfo.ReadLong()
	if err != nil {
		return err
	}
	if env.JSON() {
		return writeJSON(env.Out, v)
	}
	return writeLongVersion(env.Out, v)
}

func writeLongVersion(w io.Writer, v buildinfo.LongVersions) error {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	line := func(name string, value any) { fmt.Fprintf(table, "%s\t%v\n", name, value) }
	line("starlingd", v.Starling)
	line("commit", v.Commit)
	line("platform", v.Platform+map[bool]string{true: ", static", false: ""}[v.Static])
	line("go", v.Go)
	line("cometbft", v.CometBFT)
	line("pebble", v.Pebble)
	versions := fmt.Sprintf("%d to %d", v.OldestAppVersion, v.NewestAppVersion)
	if v.Rehearsal {
		versions += fmt.Sprintf(" (%d is for rehearsals: use this program in test networks only)", v.NewestAppVersion)
	}
	line("app versions", versions)
	line("formats", fmt.Sprintf("state zone %d, block zone %d, database %d, snapshots %d", v.StateFormat, v.BlocksFormat, v.DatabaseFormat, v.SnapshotFormat))
	return table.Flush()
}
