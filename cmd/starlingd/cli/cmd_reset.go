package cli

import (
	"fmt"

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
validator could sign twice. The home of a storage node is refused.`,
		Example: `  starlingd unsafe-reset-all --yes`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := config.Load(env.Home, env.V)
			if err != nil {
				return err
			}
			if !yes {
				if err := ask(env, fmt.Sprintf("this removes all data in %q", config.CometBFT.DBDir()), "removed"); err != nil {
					return err
				}
			}
			removed, err := home.Reset(config.CometBFT)
			for _, path := range removed {
				fmt.Fprintln(env.Out, "removed", path)
			}
			if err != nil {
				return err
			}
			fmt.Fprintln(env.Out, "kept", config.CometBFT.PrivValidatorStateFile(), "and the keys")
			return nil
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	return cmd
}
