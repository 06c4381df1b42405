package cli

import (
	"encoding/hex"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"filippo.io/age/armor"
	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/client"
)

type keyJSON struct {
	Name      string `json:"name"`
	Type      string `json:"type"`
	PublicKey string `json:"public_key"` // the account
	Encrypted bool   `json:"encrypted"`
}

func toKeyJSON(info client.KeyInfo) keyJSON {
	return keyJSON{Name: info.Name, Type: info.PublicKey.Type(), PublicKey: hex.EncodeToString(info.PublicKey), Encrypted: info.Encrypted}
}

func newKeysCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "keys",
		RunE:  group,
		Short: "Create, list, encrypt, export and import the keys that sign transactions",
		Long: `Create, list, encrypt, export and import the keys that sign transactions. Keys are
stored in the folder keys of the home, one file each, readable by their owner only. A key
with a passphrase is encrypted in the format of the age program. The passphrase comes
from --passphrase-file, the variable STARLINGD_PASSPHRASE, or the terminal.

An account is a public key; it can write once an admin grants it a key prefix.`,
		Example: `  starlingd keys add alice
  starlingd keys show alice --public-key`,
	}
	cmd.AddCommand(newKeysAddCmd(env), newKeysImportCmd(env), newKeysListCmd(env), newKeysShowCmd(env),
		newKeysPassphraseCmd(env), newKeysExportCmd(env), newKeysDeleteCmd(env),
		newKeysBackupCmd(env), newKeysRestoreCmd(env))
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
			passphrase, err := newPassphrase(env, passphraseFlag, args[0])
			if err != nil {
				return err
			}
			info, err := keyring(env).Add(args[0], client.EncryptWith(passphrase))
			if err != nil {
				return err
			}
			warnUnencrypted(env, info)
			return printKey(env, info)
		},
	}
	cmd.Flags().Bool("recover", false, "read the private key from standard input, like keys import")
	addPassphraseFlag(cmd.Flags(), "key")
	return cmd
}

func newKeysImportCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import NAME",
		Short: "Store a private key from standard input: the output of keys export, or hex",
		Long: `Store a private key from standard input: the output of keys export, or in hex a seed of 32
bytes or 64 bytes with the public key. With a passphrase, the key is stored encrypted.`,
		Example: `  starlingd keys import alice --passphrase-file FILE < alice.age
  starlingd keys import alice < seed.hex`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return importKey(cmd, env, args[0]) },
	}
	addPassphraseFlag(cmd.Flags(), "key")
	return cmd
}

func importKey(cmd *cobra.Command, env *cliEnv, name string) error {
	const longest = 4096 // a key in hex has 64 or 128 digits, an encrypted key about 500 characters
	text, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), longest))
	if err != nil {
		return fmt.Errorf("read the private key from standard input: %w", err)
	}
	if exported := strings.TrimSpace(string(text)); strings.HasPrefix(exported, armor.Header) {
		passphrase, err := passphraseOf(env, name)
		if err != nil {
			return err
		}
		info, err := keyring(env).ImportExported(name, []byte(exported), passphrase)
		if err != nil {
			return err
		}
		return printKey(env, info)
	}
	private, err := hex.DecodeString(strings.TrimPrefix(strings.TrimSpace(string(text)), "0x"))
	if err != nil {
		// Never print the input: it may be a private key.
		return usagef("standard input is neither a private key in hex nor the output of keys export")
	}
	passphrase, err := newPassphrase(env, passphraseFlag, name)
	if err != nil {
		return err
	}
	info, err := keyring(env).Import(name, private, client.EncryptWith(passphrase))
	if err != nil {
		return err
	}
	warnUnencrypted(env, info)
	return printKey(env, info)
}

func newKeysPassphraseCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "passphrase NAME",
		Short: "Encrypt a key, or change its passphrase",
		Example: `  starlingd keys passphrase alice
  starlingd keys passphrase alice --passphrase-file OLD --new-passphrase-file NEW`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			name, remove := args[0], env.V.GetBool("remove")
			passphrase := ""
			if !remove {
				var err error
				if passphrase, err = newPassphrase(env, newPassphraseFlag, name); err != nil {
					return err
				}
				if passphrase == "" {
					return usagef("no new passphrase: use --%s FILE, or set %s; --remove stores the key unencrypted", newPassphraseFlag, variableOf(newPassphraseFlag))
				}
			}
			if err := keyring(env).SetPassphrase(name, passphrase); err != nil {
				return err
			}
			info, err := keyring(env).Show(name)
			if err != nil {
				return err
			}
			warnUnencrypted(env, info)
			return printKey(env, info)
		},
	}
	addPassphraseFlag(cmd.Flags(), "key")
	cmd.Flags().String(newPassphraseFlag, "", "file whose first line is the new passphrase (or the variable "+variableOf(newPassphraseFlag)+")")
	cmd.Flags().Bool("remove", false, "store the key unencrypted")
	return cmd
}

func newKeysExportCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "export NAME",
		Short: "Write a private key to standard output, encrypted with a separate passphrase",
		Long: `Write a private key to standard output, encrypted with a separate passphrase: an armored
file of the age program that contains the seed in hex. keys import and age --decrypt can
read it.`,
		Example: `  starlingd keys export alice --new-passphrase-file FILE > alice.age
  starlingd keys export alice --unencrypted > alice.hex`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if env.V.GetBool("unencrypted") {
				priv, err := keyring(env).Get(args[0])
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(env.Out, "%x\n", priv.Bytes()[:ed25519.SeedSize])
				return err
			}
			passphrase, err := newPassphrase(env, newPassphraseFlag, "the exported key")
			if err != nil {
				return err
			}
			if passphrase == "" {
				return usagef("no passphrase to export with: use --%s FILE, or set %s; --unencrypted writes the plain key", newPassphraseFlag, variableOf(newPassphraseFlag))
			}
			exported, err := keyring(env).Export(args[0], passphrase)
			if err != nil {
				return err
			}
			_, err = env.Out.Write(exported)
			return err
		},
	}
	addPassphraseFlag(cmd.Flags(), "key")
	cmd.Flags().String(newPassphraseFlag, "", "file whose first line is the passphrase of the export (or the variable "+variableOf(newPassphraseFlag)+")")
	cmd.Flags().Bool("unencrypted", false, "write the seed in hex: anyone who reads it controls the account")
	return cmd
}

func newKeysDeleteCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "delete NAME",
		Short: "Remove a private key; without another copy, the rights of its account are lost",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			info, err := keyring(env).Show(args[0])
			if err != nil {
				return err
			}
			if !env.V.GetBool("yes") {
				what := fmt.Sprintf("The private key %s of account %x will be deleted", info.Name, []byte(info.PublicKey))
				if err := ask(env, what, "deleted"); err != nil {
					return err
				}
			}
			if err := keyring(env).Delete(info.Name); err != nil {
				return err
			}
			fmt.Fprintf(env.Err, "deleted %s, account %x\n", info.Name, []byte(info.PublicKey))
			return nil
		},
	}
	cmd.Flags().BoolP("yes", "y", false, "do not ask for confirmation")
	return cmd
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
				encrypted := "unencrypted"
				if info.Encrypted {
					encrypted = "encrypted"
				}
				fmt.Fprintf(table, "%s\t%x\t%s\n", info.Name, []byte(info.PublicKey), encrypted)
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
	cmd.Flags().Bool("public-key", false, "print only the public key, for scripts")
	return cmd
}

func printKey(env *cliEnv, info client.KeyInfo) error {
	if env.JSON() {
		return writeJSON(env.Out, toKeyJSON(info))
	}
	_, err := fmt.Fprintf(env.Out, "name        %s\npublic key  %x\n", info.Name, []byte(info.PublicKey))
	return err
}
