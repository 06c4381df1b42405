package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/tx"
)

// What operations of an admin change is shown before they are sent, and instead of it with
// --dry-run. It is computed here, from the records as the node reports them. The network decides
// when the transaction is executed, and the state may differ by then.

func addAdminFlags(flags *pflag.FlagSet) {
	addSignFlags(flags)
	addDryRunFlag(flags)
	addProposeFlags(flags)
}

func addDryRunFlag(flags *pflag.FlagSet) {
	flags.Bool("dry-run", false, "show what it would change, and sign and send nothing")
}

// submitAdmin shows what the operations change, and sends them unless --dry-run is given.
func submitAdmin(cmd *cobra.Command, env *cliEnv, operations ...tx.Operation) error {
	if !env.V.GetBool("dry-run") {
		height, err := showPlan(cmd, env, operations)
		if err != nil {
			return err
		}
		return send(cmd, env, height, operations...)
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

// showPlan shows what the operations change, on standard error, and returns the height of the state
// that it shows.
func showPlan(cmd *cobra.Command, env *cliEnv, operations []tx.Operation) (int64, error) {
	from, err := signerInfo(env)
	if err == nil && from == nil {
		_, err = signer(env) // says how to name one
	}
	if err != nil {
		return 0, err
	}
	p, err := makePlan(cmd, env, operations)
	if err != nil {
		return 0, err
	}
	p.print(env.Err)
	return p.Height, nil
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
	p.printChanges(w)
}

func (p *plan) printChanges(w io.Writer) {
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
	p, err := planOperations(ctx, env, c, from, env.V.GetBool("propose"), operations)
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

// firstBlockPoll is how often a node is asked whether the chain has its first block.
const firstBlockPoll = 200 * time.Millisecond

// adminsOf reads the records of admins. It waits for the first block of a chain: what an admin does
// first is often typed right after the start.
func adminsOf(ctx context.Context, c *client.Client) (*client.Admins, error) {
	poll := time.NewTicker(firstBlockPoll)
	defer poll.Stop()
	for {
		all, err := c.Admins(ctx)
		if !errors.Is(err, &tx.Error{Code: tx.CodeUnknownHeight}) {
			return all, err
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return nil, err
		}
	}
}

// planOperations computes what the operations change, one after another, where the key from signs
// (nil: an admin). together: they are proposed, or a proposal that others approve of.
func planOperations(ctx context.Context, env *cliEnv, c *client.Client, from *client.KeyInfo, together bool, operations []tx.Operation) (*plan, error) {
	all, err := adminsOf(ctx, c)
	if err != nil {
		return nil, err
	}
	keys, _ := keyring(env).List() // names are a help, no more
	p := &planner{ctx: ctx, client: c, keys: keys, admins: all.List, threshold: all.Threshold, changed: map[string][]byte{},
		plan: &plan{Height: all.Height, Changes: []plannedChange{}}}
	if from != nil {
		p.plan.Signer = p.who(from.PublicKey)
		if !p.isAdmin(from.PublicKey) {
			p.refuse("%s is no admin", p.plan.Signer)
		}
	}
	if all.Threshold > 1 && !together {
		p.refuse("%d of %s must approve: use --propose", all.Threshold, counted(len(all.List), "admin"))
	}
	for i := range operations {
		if err := p.operation(&operations[i]); err != nil {
			return nil, err
		}
	}
	return p.plan, nil
}
