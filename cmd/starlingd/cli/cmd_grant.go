package cli

import (
	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/tx"
)

// accountHelp follows the name of an argument.
const accountHelp = " is a key's name, or a public key in hex or base64"

func newGrantCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "grant GRANTEE PREFIX",
		Short: "Let an account write keys that start with PREFIX (for admins)",
		Long: `Let an account write keys that start with PREFIX. Only an admin can sign this.

GRANTEE` + accountHelp + `, or
"everyone". An empty PREFIX ("") covers all keys. A new grant for the same account and
prefix replaces the old one. The command shows the change first; with --dry-run it sends
nothing.`,
		Example: `  starlingd grant alice fruit/ --from root
  starlingd grant alice fruit/ --from root --dry-run
  starlingd grant everyone public/ --quota 1000000 --from root`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			grantee, prefix, err := granteeArgs(env, args)
			if err != nil {
				return err
			}
			return submitAdmin(cmd, env, tx.NewGrant(grantee, prefix, env.V.GetUint64("quota")))
		},
	}
	addAdminFlags(cmd.Flags())
	addBytesFlags(cmd.Flags())
	cmd.Flags().Uint64("quota", 0, "limit for all keys under PREFIX together, in bytes (0: no limit)")
	return cmd
}

func newRevokeCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "revoke GRANTEE PREFIX",
		Short:   "Revoke a grant (for admins); keys written before stay",
		Example: "  starlingd revoke alice fruit/ --from root",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			grantee, prefix, err := granteeArgs(env, args)
			if err != nil {
				return err
			}
			return submitAdmin(cmd, env, tx.NewRevoke(grantee, prefix))
		},
	}
	addAdminFlags(cmd.Flags())
	addBytesFlags(cmd.Flags())
	return cmd
}

// granteeArgs reads GRANTEE (nil: everyone) and PREFIX.
func granteeArgs(env *cliEnv, args []string) (grantee, prefix []byte, err error) {
	if args[0] != "everyone" && args[0] != "*" {
		if grantee, err = parseAccount(env, "GRANTEE", args[0]); err != nil {
			return nil, nil, err
		}
	}
	prefix, err = parseBytes(env, "PREFIX", args[1])
	return grantee, prefix, err
}
