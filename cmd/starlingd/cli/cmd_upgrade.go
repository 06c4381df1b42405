package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/node/buildinfo"
	"github.com/starling-kv/starling/tx"
)

func newUpgradeCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "upgrade",
		RunE:  group,
		Short: "Raise the chain's app version at a height (for admins)",
		Long: `The app version selects the rules for executing blocks. An admin schedules the next
version; the block at that height is the last one of the old version. A node whose program
supports the new version continues. Any other node commits that block, stops with exit
status 7 and names the version it needs. Every operator should install the new program
before that height; until then it executes the old version. The chain halts after that
block unless more than two thirds of the voting power support the new version.`,
	}
	schedule := &cobra.Command{
		Use:   "schedule",
		Short: "Schedule the next version, replacing one that is already scheduled",
		Example: `  starlingd upgrade schedule --version 2 --at-height 250000 --from root \
      --info https://example.org/starling-2`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			version, height := env.V.GetUint64("version"), env.V.GetUint64("at-height")
			if version == 0 || height == 0 {
				return usagef("--version and --at-height are missing: the next version, and the last block of the current one")
			}
			if !env.V.GetBool("dry-run") {
				if err := knowsVersion(env, version, height); err != nil {
					return err
				}
			}
			return submitAdmin(cmd, env, tx.NewScheduleUpgrade(version, height, env.V.GetString("info")))
		},
	}
	addAdminFlags(schedule.Flags())
	schedule.Flags().Uint64("version", 0, "version of the blocks after the height: the current version plus one")
	schedule.Flags().Uint64("at-height", 0, "last block of the old version")
	schedule.Flags().String("info", "", "where operators get the program, up to 256 bytes")
	schedule.Flags().BoolP("yes", "y", false, "do not ask for confirmation, even if this program does not support the version")
	cancel := &cobra.Command{
		Use:     "cancel",
		Short:   "Cancel the scheduled version",
		Example: "  starlingd upgrade cancel --version 2 --from root",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			version := env.V.GetUint64("version")
			if version == 0 {
				return usagef("--version is missing: the version to cancel (see `starlingd upgrade show`)")
			}
			return submitAdmin(cmd, env, tx.NewCancelUpgrade(version))
		},
	}
	addAdminFlags(cancel.Flags())
	cancel.Flags().Uint64("version", 0, "the scheduled version")
	show := &cobra.Command{
		Use:     "show",
		Short:   "Show the chain's version, and the scheduled one",
		Example: "  starlingd upgrade show --verify",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return showUpgrade(cmd, env) },
	}
	addReadFlags(show.Flags())
	cmd.AddCommand(schedule, cancel, show)
	return cmd
}

// knowsVersion asks for confirmation before it schedules a version that this program does not
// support: possibly no program does. The network does not refuse it, because the versions that a
// program supports are not part of the chain's state.
func knowsVersion(env *cliEnv, version, height uint64) error {
	newest, err := buildinfo.NewestAppVersion()
	if err != nil || version <= newest || env.V.GetBool("yes") {
		return err
	}
	return ask(env, fmt.Sprintf("this program supports app versions up to %d: after block %d every node with this program stops, and without two thirds "+
		"of the power on version %d the chain halts", newest, height, version), "scheduled")
}

type upgradeJSON struct {
	stateJSON
	Version   uint64         `json:"version"`             // of the blocks after this state
	Since     uint64         `json:"since,omitempty"`     // its first block; omitted: not recorded
	Scheduled *scheduledJSON `json:"scheduled,omitempty"` // the next version
}

type scheduledJSON struct {
	Version   uint64 `json:"version"`
	LastBlock uint64 `json:"last_block"` // last block of the current version
	Blocks    uint64 `json:"blocks"`     // number of blocks until then
	Info      string `json:"info,omitempty"`
}

func showUpgrade(cmd *cobra.Command, env *cliEnv) error {
	ctx, cancel := callContext(cmd, env)
	defer cancel()
	c, options, err := reader(ctx, env)
	if err != nil {
		return explain(err)
	}
	value, err := c.Get(ctx, app.ParamsKey(), options...)
	if err != nil {
		return explain(err)
	}
	var params app.Params
	if err := params.Unmarshal(value.Value); err != nil || !value.Found {
		return errors.New("the node's response is not a Starling state: missing or invalid parameters record")
	}
	upgrade, err := c.ScheduledUpgrade(ctx, append(options, client.AtHeight(value.Height))...)
	if err != nil {
		return explain(err)
	}
	out := upgradeJSON{stateJSON: toStateJSON(upgrade.State), Version: params.AppVersion}
	switch u := upgrade.Upgrade; {
	case upgrade.Pending():
		out.Scheduled = &scheduledJSON{u.Version, u.Height, u.Height - uint64(upgrade.Height), u.Info}
	case u != nil:
		out.Since = u.Height + 1
	}
	if env.JSON() {
		return writeJSON(env.Out, out)
	}
	noteState(env, upgrade.State, 0)
	since := ""
	if out.Since > 0 {
		since = fmt.Sprintf(" since block %d", out.Since)
	}
	fmt.Fprintf(env.Out, "height %d: app version %d%s\n", upgrade.Height, out.Version, since)
	if s := out.Scheduled; s != nil {
		fmt.Fprintf(env.Out, "scheduled: version %d after block %d, in %s\n", s.Version, s.LastBlock, counted(s.Blocks, "block"))
		if s.Info != "" {
			fmt.Fprintf(env.Out, "info: %s\n", harmless(s.Info))
		}
		return nil
	}
	fmt.Fprintln(env.Out, "scheduled: none")
	return nil
}
