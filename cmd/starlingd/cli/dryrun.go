package cli

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

// The effect of an admin's operations is shown before they are sent; with --dry-run it is only
// shown. It is computed locally from the records that the node reports. The network decides when it
// executes the transaction, and the state may have changed by then.

func addAdminFlags(flags *pflag.FlagSet) {
	addSignFlags(flags)
	addDryRunFlag(flags)
	addProposeFlags(flags)
}

func addDryRunFlag(flags *pflag.FlagSet) {
	flags.Bool("dry-run", false, "show the changes, but sign and send nothing")
}

// submitAdmin shows the changes of the operations, and sends them unless --dry-run is set.
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

// dryRun shows the changes that the operations would make; --from is optional.
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

// showPlan shows the changes of the operations on standard error, and returns the height of the
// state that they are based on.
func showPlan(cmd *cobra.Command, env *cliEnv, operations []tx.Operation) (int64, error) {
	from, err := signerInfo(env)
	if err == nil && from == nil {
		_, err = signer(env) // its error names the flag
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

// plan lists the changes of operations to the state at a height.
type plan struct {
	Height  int64           `json:"height"`
	Signer  string          `json:"signer,omitempty"` // display name
	Changes []plannedChange `json:"changes"`
	Refused string          `json:"refused,omitempty"` // why the network would refuse it
}

type plannedChange struct {
	What    string `json:"what"`
	Account string `json:"account,omitempty"` // hex
	Who     string `json:"who,omitempty"`     // display name
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
			fmt.Fprintf(w, "  %s%s: %s, unchanged\n", c.What, who, c.Before)
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

// signerInfo returns the key of --from without its secret, nil without --from.
func signerInfo(env *cliEnv) (*client.KeyInfo, error) {
	name := env.V.GetString("from")
	if name == "" {
		return nil, nil
	}
	info, err := keyring(env).Show(name)
	return &info, err
}

// firstBlockPoll is the interval of polls for a chain's first block.
const firstBlockPoll = 200 * time.Millisecond

// adminsOf reads the admin records. It waits for the chain's first block, because operators often
// run the first admin command right after the start.
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

// planOperations computes the changes of the operations, in order, if the key from signs (nil: an
// admin). together: the operations are a proposal, which other admins approve.
func planOperations(ctx context.Context, env *cliEnv, c *client.Client, from *client.KeyInfo, together bool, operations []tx.Operation) (*plan, error) {
	all, err := adminsOf(ctx, c)
	if err != nil {
		return nil, err
	}
	keys, _ := keyring(env).List() // names are optional
	p := &planner{ctx: ctx, client: c, keys: keys, admins: all.List, threshold: all.Threshold, changed: map[string][]byte{},
		plan: &plan{Height: all.Height, Changes: []plannedChange{}}}
	if from != nil {
		p.plan.Signer = p.who(from.PublicKey)
		if !p.isAdmin(from.PublicKey) {
			p.refuse("%s is not an admin", p.plan.Signer)
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
