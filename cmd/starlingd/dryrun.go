package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/tx"
)

// What operations of an admin change is shown before they are sent, and instead of it with
// --dry-run. It is computed here, from the records as the node reports them. The network decides
// when the transaction is executed, and the state may differ by then.

func addAdminFlags(flags *pflag.FlagSet) {
	addSignFlags(flags)
	flags.Bool("dry-run", false, "show what it would change, and sign and send nothing")
}

// submitAdmin shows what the operations change, and sends them unless --dry-run is given.
func submitAdmin(cmd *cobra.Command, env *cliEnv, operations ...tx.Operation) error {
	if !env.V.GetBool("dry-run") {
		if err := showPlan(cmd, env, operations); err != nil {
			return err
		}
		return submit(cmd, env, operations...)
	}
	return dryRun(cmd, env, operations)
}

// dryRun shows what the operations would change, by a signer that need not be named.
func dryRun(cmd *cobra.Command, env *cliEnv, operations []tx.Operation) error {
	p, err := makePlan(cmd, env, operations)
	if err != nil {
		return err
	}
	if env.JSON() {
		err = writeJSON(env.Out, p)
	} else {
		p.print(env.Out)
	}
	if err == nil && p.Refused != "" {
		err = refusedError{fmt.Errorf("the network would refuse this: %s", p.Refused)}
	}
	return err
}

// showPlan shows what the operations change, on standard error.
func showPlan(cmd *cobra.Command, env *cliEnv, operations []tx.Operation) error {
	from, err := signerInfo(env)
	if err == nil && from == nil {
		_, err = signer(env) // says how to name one
	}
	if err != nil {
		return err
	}
	p, err := makePlan(cmd, env, operations)
	if err != nil {
		return err
	}
	p.print(env.Err)
	return nil
}

// plan is what operations change in the state at a height.
type plan struct {
	Height  int64           `json:"height"`
	Signer  string          `json:"signer,omitempty"` // as who writes it
	Changes []plannedChange `json:"changes"`
	Refused string          `json:"refused,omitempty"` // why the network would refuse it
}

type plannedChange struct {
	What    string `json:"what"`
	Account string `json:"account,omitempty"` // hex
	Who     string `json:"who,omitempty"`     // the same for people
	Before  string `json:"before"`
	After   string `json:"after"`
}

func (p *plan) print(w io.Writer) {
	by := ""
	if p.Signer != "" {
		by = ", signed by " + p.Signer
	}
	fmt.Fprintf(w, "at height %d%s:\n", p.Height, by)
	for _, c := range p.Changes {
		who := ""
		if c.Who != "" {
			who = " of " + c.Who
		}
		if c.Before == c.After {
			fmt.Fprintf(w, "  %s%s: %s, as it is\n", c.What, who, c.Before)
			continue
		}
		fmt.Fprintf(w, "  %s%s: %s -> %s\n", c.What, who, c.Before, c.After)
	}
}

func makePlan(cmd *cobra.Command, env *cliEnv, operations []tx.Operation) (*plan, error) {
	from, err := signerInfo(env)
	if err != nil {
		return nil, err
	}
	ctx, cancel := callContext(cmd, env)
	defer cancel()
	c, err := dial(ctx, env)
	if err != nil {
		return nil, explain(err)
	}
	p, err := planOperations(ctx, env, c, from, operations)
	return p, explain(err)
}

// signerInfo returns the key of --from without its secret, nil if there is no --from.
func signerInfo(env *cliEnv) (*client.KeyInfo, error) {
	name := env.V.GetString("from")
	if name == "" {
		return nil, nil
	}
	info, err := keyring(env).Show(name)
	return &info, err
}

// planOperations computes what the operations change, one after another, where the key from signs
// (nil: an admin).
func planOperations(ctx context.Context, env *cliEnv, c *client.Client, from *client.KeyInfo, operations []tx.Operation) (*plan, error) {
	keys, _ := keyring(env).List() // names are a help, no more
	p := &planner{ctx: ctx, client: c, keys: keys, changed: map[string][]byte{}, plan: &plan{Changes: []plannedChange{}}}
	if err := p.readAdmins(); err != nil {
		return nil, err
	}
	if from != nil {
		p.plan.Signer = p.who(from.PublicKey)
		if !p.isAdmin(from.PublicKey) {
			p.refuse("%s is no admin", p.plan.Signer)
		}
	}
	for i := range operations {
		if err := p.operation(&operations[i]); err != nil {
			return nil, err
		}
	}
	return p.plan, nil
}

// planner reads the state at the height of plan, changed by the operations before.
type planner struct {
	ctx     context.Context
	client  *client.Client
	keys    []client.KeyInfo
	admins  [][]byte
	changed map[string][]byte // records; nil: removed
	plan    *plan
}

// readAdmins reads who is an admin, and with that the height.
func (p *planner) readAdmins() error {
	prefix := app.AdminKey(nil)
	var options []client.ReadOption
	for start := prefix; start != nil; {
		page, err := p.client.Range(p.ctx, start, client.PrefixEnd(prefix), options...)
		if err != nil {
			return err
		}
		for _, e := range page.Entries {
			p.admins = append(p.admins, e.Key[len(prefix):])
		}
		p.plan.Height, start = page.Height, page.Next
		options = []client.ReadOption{client.AtHeight(page.Height)}
	}
	return nil
}

func (p *planner) isAdmin(account []byte) bool {
	return slices.ContainsFunc(p.admins, func(a []byte) bool { return bytes.Equal(a, account) })
}

func (p *planner) refuse(format string, args ...any) {
	if p.plan.Refused == "" {
		p.plan.Refused = fmt.Sprintf(format, args...)
	}
}

// who describes an account: its name here if it has one, its key, and whether it is an admin.
func (p *planner) who(account []byte) string {
	if len(account) == 0 {
		return "everyone"
	}
	text := hex.EncodeToString(account)
	for _, k := range p.keys {
		if bytes.Equal(k.PublicKey, account) {
			text = k.Name + " (" + text + ")"
		}
	}
	if p.isAdmin(account) {
		text += ", an admin"
	}
	return text
}

func (p *planner) get(key []byte) ([]byte, error) {
	if value, ok := p.changed[string(key)]; ok {
		return value, nil
	}
	value, err := p.client.Get(p.ctx, key, client.AtHeight(p.plan.Height))
	if err != nil || !value.Found {
		return nil, err
	}
	return value.Value, nil
}

// change notes that a record changes, and how people would say that.
func (p *planner) change(what string, account, key, after []byte, describe func([]byte) string) error {
	before, err := p.get(key)
	if err != nil {
		return err
	}
	c := plannedChange{What: what, Before: describe(before), After: describe(after)}
	if account != nil {
		c.Account, c.Who = hex.EncodeToString(account), p.who(account)
	}
	p.plan.Changes = append(p.plan.Changes, c)
	p.changed[string(key)] = after
	return nil
}

func (p *planner) operation(operation *tx.Operation) error {
	switch op := operation.Op.(type) {
	case *tx.Operation_Grant:
		return p.grant(op.Grant.Grantee, op.Grant.Prefix, binary.BigEndian.AppendUint64(nil, op.Grant.Quota))
	case *tx.Operation_Revoke:
		return p.grant(op.Revoke.Grantee, op.Revoke.Prefix, nil)
	case *tx.Operation_SetValidator:
		return p.validator(op.SetValidator.PublicKey, op.SetValidator.Power)
	case *tx.Operation_SetAdmin:
		return p.admin(op.SetAdmin.Account, op.SetAdmin.Remove)
	case *tx.Operation_ScheduleUpgrade:
		return p.upgrade(op.ScheduleUpgrade)
	}
	return fmt.Errorf("an operation of type %T is none of an admin", operation.Op)
}

func (p *planner) grant(grantee, prefix, quota []byte) error {
	what := fmt.Sprintf("keys that start with %q, right to write", prefix)
	if len(prefix) == 0 {
		what = "all keys, right to write"
	}
	if len(grantee) == 0 {
		grantee = []byte{}
	}
	return p.change(what, grantee, app.GrantKey(grantee, prefix), quota, func(quota []byte) string {
		switch {
		case len(quota) != 8:
			return "none"
		case binary.BigEndian.Uint64(quota) == 0:
			return "without a limit of bytes"
		}
		return counted(binary.BigEndian.Uint64(quota), "byte") + " at most"
	})
}

func (p *planner) admin(account []byte, remove bool) error {
	was, before := p.isAdmin(account), len(p.admins)
	after, value := before, []byte{1}
	switch {
	case remove:
		value = nil
		if was {
			after--
		}
		if after == 0 {
			p.refuse("the last admin cannot be removed: name another one first")
		}
	case !was:
		after++
	}
	number := counted(before, "admin")
	err := p.change("rights", account, app.AdminKey(account), value, func(value []byte) string {
		if value == nil {
			return "an ordinary account"
		}
		return "an admin"
	})
	p.plan.Changes = append(p.plan.Changes, plannedChange{What: "together", Before: number, After: counted(after, "admin")})
	p.admins = slices.DeleteFunc(p.admins, func(a []byte) bool { return bytes.Equal(a, account) })
	if !remove {
		p.admins = append(p.admins, account)
	}
	return err
}

// validator leaves the question who signs to planValidator.
func (p *planner) validator(publicKey []byte, power uint64) error {
	all, err := p.client.Validators(p.ctx, client.AtHeight(p.plan.Height))
	if err != nil {
		return err
	}
	var before, sum uint64
	for _, v := range all.List {
		now, err := p.get(app.ValidatorKey(v.PublicKey))
		if err != nil {
			return err
		}
		if len(now) == 8 {
			sum += binary.BigEndian.Uint64(now)
		}
	}
	var value []byte
	if power > 0 {
		value = binary.BigEndian.AppendUint64(nil, power)
	}
	old, err := p.get(app.ValidatorKey(publicKey))
	if err != nil {
		return err
	}
	if len(old) == 8 {
		before = binary.BigEndian.Uint64(old)
	}
	after := sum - before + power
	if after == 0 {
		p.refuse("the last validator cannot be removed: add another first")
	}
	return p.change("power", publicKey, app.ValidatorKey(publicKey), value, func(value []byte) string {
		if bytes.Equal(value, old) {
			return powerOf(before, sum)
		}
		return powerOf(power, after)
	})
}

func powerOf(power, sum uint64) string {
	if power == 0 {
		return "0 (no validator)"
	}
	return app.Share{Signing: power, Total: sum}.String()
}

func (p *planner) upgrade(op *tx.ScheduleUpgrade) error {
	record, err := p.get(app.ParamsKey())
	if err != nil {
		return err
	}
	var params app.Params
	if err := params.Unmarshal(record); err != nil || params.AppVersion == 0 {
		return fmt.Errorf("the node's answer is not a Starling state: its parameters record is missing or invalid")
	}
	pending := func(value []byte) *tx.ScheduleUpgrade {
		u := new(tx.ScheduleUpgrade)
		if value == nil || u.Unmarshal(value) != nil || u.Version <= params.AppVersion {
			return nil
		}
		return u
	}
	if record, err = p.get(app.UpgradeKey()); err != nil {
		return err
	}
	var value []byte
	switch u := pending(record); {
	case op.Height == 0 && u == nil:
		p.refuse("no upgrade is scheduled")
	case op.Height == 0 && u.Version != op.Version:
		p.refuse("the upgrade that is scheduled is to version %d, not to %d", u.Version, op.Version)
	case op.Height == 0:
	case op.Version != params.AppVersion+1:
		p.refuse("the chain is of version %d, so the next one is %d, not %d", params.AppVersion, params.AppVersion+1, op.Version)
	case op.Height <= uint64(p.plan.Height)+1:
		p.refuse("block %d cannot be the last one of version %d: that of height %d is there already", op.Height, params.AppVersion, p.plan.Height)
	}
	if op.Height > 0 {
		if value, err = op.Marshal(); err != nil {
			return err
		}
	}
	return p.change("next app version", nil, app.UpgradeKey(), value, func(value []byte) string {
		u := pending(value)
		if u == nil {
			return "none"
		}
		text := strconv.FormatUint(u.Version, 10) + " after block " + strconv.FormatUint(u.Height, 10)
		if left := int64(u.Height) - p.plan.Height; left > 0 {
			text += ", in " + counted(left, "block")
		}
		if u.Info != "" {
			text += fmt.Sprintf(" (%s)", harmless(u.Info))
		}
		return text
	})
}
