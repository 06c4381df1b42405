package main

import (
	"encoding/hex"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/client"
)

type keyJSON struct {
	Name      string `json:"name"`
	Type      string `json:"type"`
	PublicKey string `json:"public_key"` // the account
}

func toKeyJSON(info client.KeyInfo) keyJSON {
	return keyJSON{Name: info.Name, Type: info.PublicKey.Type(), PublicKey: hex.EncodeToString(info.PublicKey)}
}

func newKeysCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "keys",
		RunE:  group,
		Short: "Create, list and import the keys that sign transactions",
		Long: `Create, list and import the keys that sign transactions. They are stored unencrypted in
the folder keys of the home, one file each, which only its owner can read. An account is
a public key; it can write once an admin grants it a prefix.`,
		Example: `  starlingd keys add alice
  starlingd keys show alice --public-key`,
	}
	cmd.AddCommand(newKeysAddCmd(env), newKeysImportCmd(env), newKeysListCmd(env), newKeysShowCmd(env))
	return cmd
}

func newKeysAddCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "add NAME",
		Short: "Create a new key; an existing one is never overwritten",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if env.V.GetBool("recover") {
				return importKey(cmd, env, args[0])
			}
			info, err := keyring(env).Add(args[0])
			if err != nil {
				return err
			}
			return printKey(env, info)
		},
	}
	cmd.Flags().Bool("recover", false, "take the private key from standard input, as keys import does")
	return cmd
}

func newKeysImportCmd(env *cliEnv) *cobra.Command {
	return &cobra.Command{
		Use:     "import NAME",
		Short:   "Store a private key, read in hex from standard input: a seed of 32 bytes, or 64 with the public key",
		Example: "  starlingd keys import alice < seed.hex",
		Args:    cobra.ExactArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return importKey(cmd, env, args[0]) },
	}
}

func importKey(cmd *cobra.Command, env *cliEnv, name string) error {
	const longest = 1024 // a key in hex has 64 or 128 digits
	text, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), longest))
	if err != nil {
		return fmt.Errorf("read the private key from standard input: %w", err)
	}
	private, err := hex.DecodeString(strings.TrimPrefix(strings.TrimSpace(string(text)), "0x"))
	if err != nil {
		return usagef("standard input is not a private key in hex") // and never shown in a message
	}
	info, err := keyring(env).Import(name, private)
	if err != nil {
		return err
	}
	return printKey(env, info)
}

func newKeysListCmd(env *cliEnv) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the keys of this home folder",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			all, err := keyring(env).List()
			if err != nil {
				return err
			}
			if env.JSON() {
				out := make([]keyJSON, 0, len(all))
				for _, info := range all {
					out = append(out, toKeyJSON(info))
				}
				return writeJSON(env.Out, out)
			}
			table := tabwriter.NewWriter(env.Out, 0, 8, 2, ' ', 0)
			for _, info := range all {
				fmt.Fprintf(table, "%s\t%x\n", info.Name, []byte(info.PublicKey))
			}
			return table.Flush()
		},
	}
}

func newKeysShowCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show the public part of a key",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			info, err := keyring(env).Show(args[0])
			if err != nil {
				return err
			}
			if env.V.GetBool("public-key") && !env.JSON() {
				_, err := fmt.Fprintf(env.Out, "%x\n", []byte(info.PublicKey))
				return err
			}
			return printKey(env, info)
		},
	}
	cmd.Flags().Bool("public-key", false, "print the public key alone, for scripts")
	return cmd
}

func printKey(env *cliEnv, info client.KeyInfo) error {
	if env.JSON() {
		return writeJSON(env.Out, toKeyJSON(info))
	}
	_, err := fmt.Fprintf(env.Out, "name        %s\npublic key  %x\n", info.Name, []byte(info.PublicKey))
	return err
}
