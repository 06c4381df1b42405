package cli

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/tx"
)

// planner reads the state at the height of plan, with the changes of the previous operations
// applied.
type planner struct {
	ctx       context.Context
	client    *client.Client
	keys      []client.KeyInfo
	admins    [][]byte
	threshold uint64            // number of admins that must approve
	changed   map[string][]byte // changed records; nil: removed
	plan      *plan
}

func (p *planner) isAdmin(account []byte) bool {
	return slices.ContainsFunc(p.admins, func(a []byte) bool { return bytes.Equal(a, account) })
}

func (p *planner) refuse(format string, args ...any) {
	if p.plan.Refused == "" {
		p.plan.Refused = fmt.Sprintf(format, args...)
	}
}

// who: text that identifies an account: its local name if it has one, its key, and whether it is an
// admin.
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

// change adds a record's change to the plan; describe renders its value before and after.
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
	case *tx.Operation_SetThreshold:
		p.setThreshold(op.SetThreshold.Admins)
		return nil
	}
	return fmt.Errorf("operation type %T is not an admin operation", operation.Op)
}

func (p *planner) grant(grantee, prefix, quota []byte) error {
	what := fmt.Sprintf("right to write keys that start with %q", prefix)
	if len(prefix) == 0 {
		what = "right to write all keys"
	}
	if len(grantee) == 0 {
		grantee = []byte{}
	}
	return p.change(what, grantee, app.GrantKey(grantee, prefix), quota, grantText)
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
		switch {
		case after == 0:
			p.refuse("the last admin cannot be removed: add another one first")
		case uint64(after) < p.threshold:
			p.refuse("%d must approve, and %s would be left: first add an admin or lower the threshold", p.threshold, counted(after, "admin"))
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
	p.plan.Changes = append(p.plan.Changes, plannedChange{What: "number of admins", Before: number, After: counted(after, "admin")})
	p.admins = slices.DeleteFunc(p.admins, func(a []byte) bool { return bytes.Equal(a, account) })
	if !remove {
		p.admins = append(p.admins, account)
	}
	return err
}

func (p *planner) setThreshold(n uint64) {
	if n > uint64(len(p.admins)) {
		p.refuse("the chain has %s, but %d would have to approve", counted(len(p.admins), "admin"), n)
	}
	of := " of " + counted(len(p.admins), "admin")
	p.plan.Changes = append(p.plan.Changes, plannedChange{What: "approvals required",
		Before: strconv.FormatUint(p.threshold, 10) + of, After: strconv.FormatUint(n, 10) + of})
	p.threshold = n
}

// validator plans a power change. planValidator checks the share of the power that signs.
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
		return fmt.Errorf("the node's response is not a Starling state: missing or invalid parameters record")
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
		p.refuse("the scheduled upgrade is to version %d, not %d", u.Version, op.Version)
	case op.Height == 0:
	case op.Version != params.AppVersion+1:
		p.refuse("the chain has version %d, so the next version is %d, not %d", params.AppVersion, params.AppVersion+1, op.Version)
	case op.Height <= uint64(p.plan.Height)+1:
		p.refuse("block %d cannot be the last one of version %d: the chain has already reached height %d", op.Height, params.AppVersion, p.plan.Height)
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
