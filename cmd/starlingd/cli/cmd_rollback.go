package cli

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
computed a wrong app hash and cannot continue. The next start, with another version of
starlingd, executes block n again. With --hard, block n is removed as well, and the node
fetches it from other nodes again (a network of one validator cannot make it again,
because the validator has signed it). Rollback can be repeated.

The state on disk goes back to the newest stored snapshot at or below n-1, unless it is
older already; the next start executes the blocks since then. If no snapshot fits and all
blocks exist, the command asks, empties the state, and the next start executes all blocks
from the first on, which can take long. Otherwise nothing is changed: use state sync.

Ctrl-C is safe at any time: the node is unchanged, or the next rollback completes the
work.`,
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
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	return cmd
}

// confirmRollback asks for confirmation before the whole state is removed.
func confirmRollback(env *cliEnv, plan home.RollbackPlan, yes bool) error {
	if plan.State > 0 && plan.State < plan.StateBefore {
		fmt.Fprintf(env.Err, "replacing the state of height %[2]d by the snapshot of height %[1]d\n", plan.State, plan.StateBefore)
	}
	if yes || !plan.Empties() {
		return nil
	}
	what := fmt.Sprintf("no stored snapshot is low enough: the state is removed, and the next start executes %s, beginning with the first block", counted(plan.Replayed, "block"))
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
		fmt.Fprintf(env.Out, "the next start continues from the newest state of the storage nodes at or below that height, and executes the blocks since then\n")
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
