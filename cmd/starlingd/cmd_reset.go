package main

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
		Short: "Remove all data of a stopped node, but neither keys nor the validator's signing state",
		Long: `Removes blocks, state and indexes of a stopped node, which must then fetch them from
the network again. A network whose nodes all do this has lost its data.

Keys, configuration and data/priv_validator_state.json stay: a validator that forgets
what it signed could sign twice.`,
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
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}
