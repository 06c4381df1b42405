package cli

import (
	"encoding/hex"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/node/config"
)

func newShowNodeIDCmd(env *cliEnv) *cobra.Command {
	return &cobra.Command{
		Use:   "show-node-id",
		Short: "Print the p2p node ID of this node: the ID in ID@HOST:PORT",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			conf, err := config.Load(env.Home, env.V)
			if err != nil {
				return err
			}
			key, err := config.LoadNodeKey(conf.CometBFT) // a storage node has no validator's key
			if err != nil {
				return err
			}
			if env.JSON() {
				return writeJSON(env.Out, map[string]string{"node_id": string(key.ID())})
			}
			fmt.Fprintln(env.Out, key.ID())
			return nil
		},
	}
}

func newShowValidatorCmd(env *cliEnv) *cobra.Command {
	return &cobra.Command{
		Use:   "show-validator",
		Short: "Print the public key with which this node signs blocks, in hex",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			identity, err := loadIdentity(env)
			if err != nil {
				return err
			}
			key := hex.EncodeToString(identity.ValidatorPubKey)
			if env.JSON() {
				return writeJSON(env.Out, map[string]string{"address": identity.ValidatorAddress, "pub_key": key})
			}
			fmt.Fprintln(env.Out, key)
			return nil
		},
	}
}

func loadIdentity(env *cliEnv) (config.Identity, error) {
	conf, err := config.Load(env.Home, env.V)
	if err != nil {
		return config.Identity{}, err
	}
	return config.LoadIdentity(conf)
}
