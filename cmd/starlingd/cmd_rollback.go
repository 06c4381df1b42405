package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/node/home"
)

func newRollbackCmd(env *cliEnv) *cobra.Command {
	var hard, yes bool
	cmd := &cobra.Command{
		Use:   "rollback",
		Short: "Take a stopped node one block back, so that it executes that block again",
		Long: `Takes a stopped node from height n to n-1, like cometbft rollback, for a node that
computed a wrong app hash and cannot continue. With another version of starlingd,
the next start executes block n again. With --hard block n is removed as well, and
fetched from other nodes again (a network of one validator cannot make it a second
time, because the validator has signed the first). Rollback can be repeated.

The state on disk goes back to the newest stored snapshot at or below n-1, unless it
is older anyway; the next start executes the blocks since then. If no snapshot fits
and all blocks exist, the state is emptied, after a question, and everything is
executed from the first block, which can take long. Otherwise nothing is changed,
and the remedy is state sync.

Ctrl-C ends it at any time: either the node is unchanged, or rollback completes the
work when it is called again.`,
		Example: `  starlingd rollback
  starlingd rollback --hard --yes`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			config, err := offlineConfig(env)
			if err != nil {
				return err
			}
			plan, err := home.Rollback(config, hard, func(plan home.RollbackPlan) error { return confirmRollback(env, plan, yes) })
			if err != nil {
				return err
			}
			if env.JSON() {
				return writeJSON(env.Out, plan)
			}
			showRollback(env, plan)
			return nil
		},
	}
	cmd.Flags().BoolVar(&hard, "hard", false, "remove the last block as well")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

// confirmRollback asks before all of the state is removed.
func confirmRollback(env *cliEnv, plan home.RollbackPlan, yes bool) error {
	if plan.State > 0 && plan.State < plan.StateBefore {
		fmt.Fprintf(env.Err, "replacing the state of height %[2]d by the snapshot of height %[1]d\n", plan.State, plan.StateBefore)
	}
	if yes || !plan.Empties() {
		return nil
	}
	what := fmt.Sprintf("no stored snapshot is low enough: the state is removed, and the next start executes %s, from the first block on", counted(plan.Replayed, "block"))
	return ask(env, what, "changed")
}

func showRollback(env *cliEnv, plan home.RollbackPlan) {
	what := "CometBFT's state"
	if plan.RemovedBlock > 0 {
		what = fmt.Sprintf("CometBFT's state and block %d", plan.RemovedBlock)
	}
	fmt.Fprintf(env.Out, "rolled back %s to height %d, app hash %s\n", what, plan.Height, plan.AppHash)
	switch {
	case plan.Sharded:
		fmt.Fprintf(env.Out, "the next start takes up the newest state, not above that height, that the storage nodes have, and executes the blocks since then\n")
		return
	case plan.Empties():
		fmt.Fprintf(env.Out, "removed the state of height %d\n", plan.StateBefore)
	case plan.State < plan.StateBefore:
		fmt.Fprintf(env.Out, "rolled back the state on disk from height %d to the snapshot of height %d\n", plan.StateBefore, plan.State)
	default:
		fmt.Fprintf(env.Out, "left the state on disk at height %d\n", plan.State)
	}
	fmt.Fprintf(env.Out, "the next start executes %s\n", counted(plan.Replayed, "block"))
}
