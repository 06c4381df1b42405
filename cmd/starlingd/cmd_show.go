package main

import (
	"encoding/hex"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/node/config"
)

func newShowNodeIDCmd(env *cliEnv) *cobra.Command {
	return &cobra.Command{
		Use:   "show-node-id",
		Short: "Print the id of this node among its peers: the ID in ID@HOST:PORT",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			identity, err := loadIdentity(env)
			if err != nil {
				return err
			}
			if env.JSON() {
				return writeJSON(env.Out, map[string]string{"node_id": identity.NodeID})
			}
			fmt.Fprintln(env.Out, identity.NodeID)
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
