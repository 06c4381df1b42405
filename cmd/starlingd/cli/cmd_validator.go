package cli

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/tx"
)

func newValidatorCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "validator",
		RunE:  group,
		Short: "List the validators, or change them (for admins)",
	}
	set := &cobra.Command{
		Use:   "set PUBKEY POWER",
		Short: "Set the voting power of a validator; 0 removes the validator",
		Long: `Set the voting power of a validator; 0 removes the validator. Only an admin can sign this.
PUBKEY is the output of "starlingd show-validator" on the validator's machine.

A block needs signatures of more than two thirds of the power. The command therefore shows
the share of the power that signed the last block, and the same share after the change. If
the change lowers the share to two thirds or less, the network refuses it, unless you
confirm keys whose nodes run and will sign: --confirm for PUBKEY, --confirm-also for a
validator that did not sign the last block. A key confirmed by mistake can halt the chain
permanently.`,
		Example: `  starlingd validator set $(starlingd show-validator --home /other) 10 --from root --dry-run
  starlingd validator set $(starlingd show-validator --home /other) 10 --from root --confirm`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error { return setValidator(cmd, env, args) },
	}
	addSignFlags(set.Flags())
	set.Flags().Bool("confirm", false, "confirm that a node with PUBKEY runs and will sign")
	set.Flags().StringSlice("confirm-also", nil, "another validator known to be running (may be repeated)")
	addProposeFlags(set.Flags())
	set.Flags().Bool("dry-run", false, "show the signing share after the change, and send nothing")
	set.Flags().BoolP("yes", "y", false, "do not ask for confirmation")
	list := &cobra.Command{
		Use:   "list",
		Short: "List the validators, their voting power, and which of them signed the block",
		Long: `List the validators of the state after a block, their voting power, and which of them
signed that block. --verify does not prove the signatures.

` + verifyHelp,
		Example: "  starlingd validator list --verify",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return listValidators(cmd, env) },
	}
	addReadFlags(list.Flags())
	cmd.AddCommand(list, set)
	return cmd
}

type validatorJSON struct {
	PublicKey string `json:"public_key"` // hex
	Who       string `json:"who"`        // display name
	Power     uint64 `json:"power"`
	Signed    bool   `json:"signed"` // signed the block at that height
}

func listValidators(cmd *cobra.Command, env *cliEnv) error {
	ctx, cancel := callContext(cmd, env)
	defer cancel()
	c, options, err := reader(ctx, env)
	if err != nil {
		return explain(err)
	}
	now, err := c.Validators(ctx, options...)
	if err != nil {
		return explain(err)
	}
	keys, _ := keyring(env).List() // names are optional
	who, total, list := (&planner{keys: keys}).who, uint64(0), []validatorJSON{}
	for _, v := range now.List {
		total += v.Power
		list = append(list, validatorJSON{hex.EncodeToString(v.PublicKey), who(v.PublicKey), v.Power, v.Signed})
	}
	if env.JSON() {
		return writeJSON(env.Out, struct {
			stateJSON
			Validators []validatorJSON `json:"validators"`
		}{toStateJSON(now.State), list})
	}
	noteState(env, now.State, 0)
	table := tabwriter.NewWriter(env.Out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "POWER\tSIGNED\tVALIDATOR")
	for _, v := range list {
		fmt.Fprintf(table, "%s\t%s\t%s\n", powerOf(v.Power, total), map[bool]string{true: "yes", false: "no"}[v.Signed], v.Who)
	}
	return table.Flush()
}

func setValidator(cmd *cobra.Command, env *cliEnv, args []string) error {
	key, err := parseAccount(env, "PUBKEY", args[0])
	if err != nil {
		return err
	}
	power, err := strconv.ParseUint(args[1], 10, 64)
	if err != nil {
		return usagef("POWER %q is not a number of 0 or more", args[1])
	}
	if power > app.MaxTotalPower {
		return usagef("POWER %d is above the limit for the sum of all powers, %d", power, uint64(app.MaxTotalPower))
	}
	confirm := env.V.GetBool("confirm")
	if confirm && power == 0 {
		return usagef("--confirm with POWER 0: a validator that is removed signs nothing")
	}
	var also [][]byte
	for _, name := range env.V.GetStringSlice("confirm-also") {
		other, err := parseAccount(env, "--confirm-also", name)
		if err != nil {
			return err
		}
		also = append(also, other)
	}
	dry := env.V.GetBool("dry-run")
	if !dry {
		if _, err := signer(env); err != nil {
			return err
		}
	}
	change, err := planValidator(cmd, env, key, power, confirm, also)
	if err != nil {
		return err
	}
	if err := change.show(env, dry); err != nil {
		return err
	}
	if change.refused() {
		return refusedError{fmt.Errorf("the network would refuse this, because the chain could halt: if a node runs with this key, use --confirm; " +
			"if one runs with the key of another validator that did not sign the last block, name it with --confirm-also")}
	}
	if dry {
		return nil
	}
	if !env.V.GetBool("yes") {
		if err := ask(env, "this changes the validators' voting power", "sent"); err != nil {
			return err
		}
	}
	return send(cmd, env, change.height, change.operations...)
}

// validatorChange describes the effect of a change on the power that signs.
type validatorChange struct {
	height        int64 // of the state on which it is based
	operations    []tx.Operation
	key           []byte
	who           string    // display name of key
	power, old    uint64    // power of key after and before the change
	before, after app.Share // share that signed the block at that height
	// The same with confirmed validators counted as signing: the network decides by these.
	confirmedBefore, confirmedAfter app.Share
}

func (c *validatorChange) refused() bool { return c.confirmedAfter.MayHalt(c.confirmedBefore) }

// planValidator reads the validators and plans a change of one of them.
func planValidator(cmd *cobra.Command, env *cliEnv, key []byte, power uint64, confirm bool, also [][]byte) (*validatorChange, error) {
	ctx, cancel := callContext(cmd, env)
	defer cancel()
	c, err := dial(ctx, env)
	if err != nil {
		return nil, explain(err)
	}
	now, err := c.Validators(ctx)
	if err != nil {
		return nil, explain(err)
	}
	keys, _ := keyring(env).List() // names are a help, no more
	change := &validatorChange{height: now.Height, key: key, who: (&planner{keys: keys}).who(key), power: power}
	if confirm {
		change.operations = append(change.operations, tx.NewConfirmedValidator(key, power))
	} else {
		change.operations = append(change.operations, tx.NewSetValidator(key, power))
	}
	for _, other := range also {
		i := slices.IndexFunc(now.List, func(v client.Validator) bool { return bytes.Equal(v.PublicKey, other) })
		if i < 0 || bytes.Equal(other, key) {
			return nil, usagef("--confirm-also %x: not another current validator", other)
		}
		change.operations = append(change.operations, tx.NewConfirmedValidator(other, now.List[i].Power))
	}
	change.judge(now.List, key, power)
	return change, nil
}

// judge computes the shares before and after the change.
func (c *validatorChange) judge(list []client.Validator, key []byte, power uint64) {
	confirmed := func(publicKey []byte) bool {
		return slices.ContainsFunc(c.operations, func(o tx.Operation) bool {
			v := o.GetSetValidator()
			return v.Confirmed && bytes.Equal(v.PublicKey, publicKey)
		})
	}
	if !slices.ContainsFunc(list, func(v client.Validator) bool { return bytes.Equal(v.PublicKey, key) }) {
		list = append(list, client.Validator{PublicKey: key})
	}
	for _, v := range list {
		after := v.Power
		if bytes.Equal(v.PublicKey, key) {
			c.old, after = v.Power, power
		}
		add := func(to *app.Share, power uint64, signs bool) {
			to.Total += power
			if signs {
				to.Signing += power
			}
		}
		add(&c.before, v.Power, v.Signed)
		add(&c.after, after, v.Signed)
		add(&c.confirmedBefore, v.Power, v.Signed || confirmed(v.PublicKey))
		add(&c.confirmedAfter, after, v.Signed || confirmed(v.PublicKey))
	}
}

type validatorChangeJSON struct {
	Height  int64     `json:"height"`
	Account string    `json:"account"` // public key of the validator
	Who     string    `json:"who"`     // display name
	From    uint64    `json:"from"`    // current power
	To      uint64    `json:"to"`
	Before  shareJSON `json:"before"`
	After   shareJSON `json:"after"`   // share that signed the block at that height
	Counted shareJSON `json:"counted"` // After, with confirmed validators counted as signing
	Refused bool      `json:"refused"`
}

type shareJSON struct {
	Signing uint64 `json:"signing"`
	Total   uint64 `json:"total"`
}

// show prints the change: to standard output if the command prints nothing else, otherwise to
// standard error.
func (c *validatorChange) show(env *cliEnv, dry bool) error {
	if dry && env.JSON() {
		return writeJSON(env.Out, validatorChangeJSON{c.height, hex.EncodeToString(c.key), c.who, c.old, c.power, shareJSON(c.before), shareJSON(c.after), shareJSON(c.confirmedAfter), c.refused()})
	}
	out := env.Err
	if dry {
		out = env.Out
	}
	fmt.Fprintf(out, "validator:       %s\n", c.who)
	fmt.Fprintf(out, "its power:       %s -> %s\n", powerOf(c.old, c.before.Total), powerOf(c.power, c.after.Total))
	fmt.Fprintf(out, "signed block %d:  %v of the power\n", c.height, c.before)
	fmt.Fprintf(out, "with the change: %v\n", c.after)
	if c.confirmedAfter != c.after {
		fmt.Fprintf(out, "and confirmed:   %v\n", c.confirmedAfter)
	}
	return nil
}
