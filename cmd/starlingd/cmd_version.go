package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/node"
)

func newVersionCmd(env *cliEnv) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of Starling, CometBFT and Go in this program",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := node.BuildVersions()
			if env.JSON() {
				return writeJSON(env.Out, v)
			}
			fmt.Fprintf(env.Out, "starlingd %s\ncometbft  %s\ngo        %s\n", v.Starling, v.CometBFT, v.Go)
			return nil
		},
	}
}
