package main

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/tx"
)

func newValidatorCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "validator",
		RunE:  group,
		Short: "Change the set of validators (for admins)",
	}
	set := &cobra.Command{
		Use:   "set PUBKEY POWER",
		Short: "Set the voting power of a validator; 0 removes the validator",
		Long: `Set the voting power of a validator; 0 removes the validator. An admin must sign. PUBKEY
is what "starlingd show-validator" prints on the validator's machine.

A block needs signatures of more than two thirds of the power. So the command shows which
part of the power signed the last block, and which part that is with the change. If that
falls to two thirds or less, the network refuses the change, unless you confirm keys whose
nodes run and will sign: --confirm for PUBKEY, --confirm-also for a validator that did not
sign the last block. A key that is confirmed by mistake can stop the chain for ever.`,
		Example: `  starlingd validator set $(starlingd show-validator --home /other) 10 --from root --dry-run
  starlingd validator set $(starlingd show-validator --home /other) 10 --from root --confirm`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error { return setValidator(cmd, env, args) },
	}
	addSignFlags(set.Flags())
	set.Flags().Bool("confirm", false, "a node runs with PUBKEY and will sign")
	set.Flags().StringSlice("confirm-also", nil, "so does one with this validator's key (may be repeated)")
	addProposeFlags(set.Flags())
	set.Flags().Bool("dry-run", false, "show what the change does to the power that signs, and send nothing")
	set.Flags().Bool("yes", false, "do not ask")
	cmd.AddCommand(set)
	return cmd
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
		return refusedError{fmt.Errorf("the network would refuse this, because the chain could stand still: if a node runs with this key, use --confirm; " +
			"if one runs with the key of another validator that did not sign the last block, name it with --confirm-also")}
	}
	if dry {
		return nil
	}
	if !env.V.GetBool("yes") {
		if err := ask(env, "this changes who decides about blocks", "sent"); err != nil {
			return err
		}
	}
	return send(cmd, env, change.height, change.operations...)
}

// validatorChange is what a change does to the power that signs.
type validatorChange struct {
	height        int64 // of the state that it is judged by
	operations    []tx.Operation
	key           []byte
	who           string    // key, as people know it
	power, old    uint64    // of key, after and before
	before, after app.Share // by who signed the block of that height
	// The same where those that are confirmed count as signing: what the network decides by.
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
			return nil, usagef("--confirm-also %x: that is no other validator", other)
		}
		change.operations = append(change.operations, tx.NewConfirmedValidator(other, now.List[i].Power))
	}
	change.judge(now.List, key, power)
	return change, nil
}

// judge sums up the powers.
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
	Who     string    `json:"who"`     // the same for people
	From    uint64    `json:"from"`    // its power now
	To      uint64    `json:"to"`
	Before  shareJSON `json:"before"`
	After   shareJSON `json:"after"`   // by who signed the block of that height
	Counted shareJSON `json:"counted"` // after, where those that are confirmed count as signing
	Refused bool      `json:"refused"`
}

type shareJSON struct {
	Signing uint64 `json:"signing"`
	Total   uint64 `json:"total"`
}

// show prints the change: to the output if the command prints nothing else, otherwise to standard
// error.
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
