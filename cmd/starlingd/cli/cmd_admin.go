package cli

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/tx"
)

const togetherHelp = `A chain can require that several admins approve an operation: "admin threshold". Then
one admin adds --propose to the command (grant, revoke, validator set, admin, upgrade).
The others review the proposal with "admin list" and run "admin approve". The operation is
executed when enough admins have approved. Each admin can have one open proposal: a new
one replaces it.`

func newAdminCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "admin",
		RunE:  group,
		Short: "List and change the admins, and approve their proposals",
		Long:  "List and change the admins.\n\n" + togetherHelp,
	}
	for _, c := range []struct {
		name, short string
		remove      bool
	}{
		{"add", "Make an account an admin", false},
		{"remove", "Remove an account's admin rights; enough admins to approve must stay", true},
	} {
		sub := &cobra.Command{
			Use:     c.name + " ACCOUNT",
			Short:   c.short,
			Long:    c.short + ".\n\nOnly an admin can sign this. ACCOUNT" + accountHelp + ".",
			Example: fmt.Sprintf("  starlingd admin %s alice --from root", c.name),
			Args:    cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				account, err := parseAccount(env, "ACCOUNT", args[0])
				if err != nil {
					return err
				}
				return submitAdmin(cmd, env, tx.NewSetAdmin(account, c.remove))
			},
		}
		addAdminFlags(sub.Flags())
		cmd.AddCommand(sub)
	}
	threshold := &cobra.Command{
		Use:     "threshold NUMBER",
		Short:   "Set the number of admins that must approve an operation",
		Long:    "Set the number of admins that must approve an operation: from 1 to the number of admins.\nLater changes of this number need as many approvals, too.\n\n" + togetherHelp,
		Example: "  starlingd admin threshold 2 --from root --dry-run",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.ParseUint(args[0], 10, 64)
			if err != nil || n < 1 || n > tx.MaxThreshold {
				return usagef("NUMBER %q is not a number from 1 to %d", args[0], tx.MaxThreshold)
			}
			return submitAdmin(cmd, env, tx.NewSetThreshold(n))
		},
	}
	addAdminFlags(threshold.Flags())
	list := &cobra.Command{
		Use:     "list",
		Short:   "List the admins and their proposals",
		Long:    "List the admins, the number of them that must approve, and their proposals.\n\n" + verifyHelp,
		Example: "  starlingd admin list --verify",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return listAdmins(cmd, env) },
	}
	addReadFlags(list.Flags())
	approve := &cobra.Command{
		Use:   "approve PROPOSER",
		Short: "Approve another admin's proposal",
		Long: `Approve another admin's proposal, as the command shows it: if the proposal is replaced
meanwhile, the network refuses the approval. PROPOSER` + accountHelp + `.`,
		Example: `  starlingd admin approve root --from ann --dry-run
  starlingd admin approve root --from ann`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			proposer, err := parseAccount(env, "PROPOSER", args[0])
			if err != nil {
				return err
			}
			return approveProposal(cmd, env, proposer)
		},
	}
	addSignFlags(approve.Flags())
	addDryRunFlag(approve.Flags())
	approve.Flags().BoolP("yes", "y", false, "do not ask for confirmation")
	withdraw := &cobra.Command{
		Use:     "withdraw",
		Short:   "Withdraw the proposal of --from",
		Example: "  starlingd admin withdraw --from root",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return submit(cmd, env, tx.NewWithdraw()) },
	}
	addSignFlags(withdraw.Flags())
	cmd.AddCommand(list, threshold, approve, withdraw)
	return cmd
}

// addProposeFlags adds the flags that turn an admin's command into a proposal.
func addProposeFlags(flags *pflag.FlagSet) {
	flags.Bool("propose", false, "propose the operation to the other admins (see starlingd admin --help)")
	flags.Uint64("expires-in", 10_000, "with --propose: number of blocks in which the proposal can be approved")
}

// send sends the operations, or proposes them with --propose.
func send(cmd *cobra.Command, env *cliEnv, height int64, operations ...tx.Operation) error {
	if !env.V.GetBool("propose") {
		return submit(cmd, env, operations...)
	}
	proposal, err := tx.NewPropose(uint64(height)+env.V.GetUint64("expires-in"), operations...)
	if err != nil {
		return err
	}
	return submitTogether(cmd, env, proposal)
}

// submitTogether sends a proposal or an approval, and prints whether the operations were executed.
func submitTogether(cmd *cobra.Command, env *cliEnv, operation tx.Operation) error {
	result, err := execute(cmd, env, operation)
	if err != nil {
		return err
	}
	if err := printResult(env, result); err != nil || env.JSON() {
		return err
	}
	if result.Executed() {
		_, err = fmt.Fprintln(env.Out, "threshold reached: executed")
	} else {
		_, err = fmt.Fprintln(env.Out, "waiting for more admins to approve: `starlingd admin list`")
	}
	return err
}

func approveProposal(cmd *cobra.Command, env *cliEnv, proposer []byte) error {
	dry := env.V.GetBool("dry-run")
	from, err := signerInfo(env)
	if err != nil {
		return err
	}
	if from == nil && !dry {
		_, err := signer(env) // its error names the flag
		return err
	}
	ctx, cancel := callContext(cmd, env)
	defer cancel()
	c, err := dial(ctx, env)
	if err != nil {
		return explain(err)
	}
	all, err := c.Admins(ctx)
	if err != nil {
		return explain(err)
	}
	i := slices.IndexFunc(all.Proposals, func(p client.Proposal) bool { return bytes.Equal(p.Proposer, proposer) })
	if i < 0 {
		return refusedError{fmt.Errorf("account %x has no proposal (see starlingd admin list)", proposer)}
	}
	proposal := &all.Proposals[i]
	p, err := planOperations(ctx, env, c, from, true, proposal.Operations)
	if err != nil {
		return explain(err)
	}
	out := env.Err
	if dry {
		out = env.Out
	}
	if dry && env.JSON() {
		err = writeJSON(env.Out, p)
	} else {
		p.print(out)
		fmt.Fprintf(out, "approved by %d of %d required; expires after block %d; digest %x\n", len(proposal.Approvals), all.Threshold, proposal.Expires, proposal.Digest)
	}
	if err != nil {
		return err
	}
	if p.Refused != "" && dry {
		return refusedError{fmt.Errorf("the network would refuse to execute this: %s", p.Refused)}
	}
	if dry {
		return nil
	}
	if !env.V.GetBool("yes") {
		if err := ask(env, "this approves these changes", "sent"); err != nil {
			return err
		}
	}
	return submitTogether(cmd, env, tx.NewApprove(proposal.Proposer, proposal.Digest))
}

type adminsJSON struct {
	stateJSON
	Threshold uint64         `json:"threshold"`
	Admins    []string       `json:"admins"` // public keys in hex
	Proposals []proposalJSON `json:"proposals"`
}

type proposalJSON struct {
	Proposer  string          `json:"proposer"`
	Digest    string          `json:"digest"`
	Expires   uint64          `json:"expires"`
	Expired   bool            `json:"expired"`
	Approvals []string        `json:"approvals"`
	Changes   []plannedChange `json:"changes"` // computed against the current state
}

func listAdmins(cmd *cobra.Command, env *cliEnv) error {
	ctx, cancel := callContext(cmd, env)
	defer cancel()
	c, options, err := reader(ctx, env)
	if err != nil {
		return explain(err)
	}
	all, err := c.Admins(ctx, options...)
	if err != nil {
		return explain(err)
	}
	keys, _ := keyring(env).List() // names are optional
	who := (&planner{keys: keys}).who
	out := adminsJSON{stateJSON: toStateJSON(all.State), Threshold: all.Threshold, Admins: []string{}, Proposals: []proposalJSON{}}
	for _, a := range all.List {
		out.Admins = append(out.Admins, hex.EncodeToString(a))
	}
	plans := make([]*plan, len(all.Proposals))
	for i, p := range all.Proposals {
		if plans[i], err = planOperations(ctx, env, c, nil, true, p.Operations); err != nil {
			return explain(err)
		}
		one := proposalJSON{Proposer: hex.EncodeToString(p.Proposer), Digest: hex.EncodeToString(p.Digest[:]), Expires: p.Expires,
			Expired: p.Expires <= uint64(all.Height), Approvals: []string{}, Changes: plans[i].Changes}
		for _, a := range p.Approvals {
			one.Approvals = append(one.Approvals, hex.EncodeToString(a))
		}
		out.Proposals = append(out.Proposals, one)
	}
	if env.JSON() {
		return writeJSON(env.Out, out)
	}
	noteState(env, all.State, 0)
	fmt.Fprintf(env.Out, "height %d: %s, %d must approve\n", all.Height, counted(len(all.List), "admin"), all.Threshold)
	for _, a := range all.List {
		fmt.Fprintf(env.Out, "  %s\n", who(a))
	}
	for i, p := range all.Proposals {
		expired := ""
		if out.Proposals[i].Expired {
			expired = ", which has passed"
		}
		fmt.Fprintf(env.Out, "proposed by %s until block %d%s, digest %x:\n", who(p.Proposer), p.Expires, expired, p.Digest)
		plans[i].printChanges(env.Out)
		for _, a := range p.Approvals {
			fmt.Fprintf(env.Out, "  approved by %s\n", who(a))
		}
	}
	return nil
}
