package cli

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/home"
)

func newResetCmd(env *cliEnv) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "unsafe-reset-all",
		Short: "Remove all data of a stopped node, except keys and the validator's signing state",
		Long: `Removes blocks, state and indexes of a stopped node, which must then fetch them from the
network again. If all nodes of a network do this, its data are lost.

Keys, configuration and data/priv_validator_state.json stay: without its signing state, a
validator could sign twice.

In the home of a storage node, it removes the ranges with their log, and the trusted header.
Keys, configuration, the map of the ranges and evidence of two chains stay. Check first with
"starlingd storage ranges" that other nodes have the ranges.`,
		Example: `  starlingd unsafe-reset-all --yes`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := config.Load(env.Home, env.V)
			if err != nil {
				return err
			}
			what, reset := fmt.Sprintf("this removes all data in %q", config.CometBFT.DBDir()), home.Reset
			kept := config.CometBFT.PrivValidatorStateFile() + " and the keys"
			if home.HasRanges(config.CometBFT) {
				what += ", which may be the last replicas of its ranges (check with `starlingd storage ranges`)"
				reset, kept = home.ResetStorage, filepath.Join(config.Home, "config")+": configuration, the map of the ranges, and keys"
			}
			if !yes {
				if err := ask(env, what, "removed"); err != nil {
					return err
				}
			}
			removed, err := reset(config.CometBFT)
			for _, path := range removed {
				fmt.Fprintln(env.Out, "removed", path)
			}
			if err != nil {
				return err
			}
			fmt.Fprintln(env.Out, "kept", kept)
			return nil
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	return cmd
}
