package cli

import (
	"context"
	"fmt"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/home"
)

func newVerifyCmd(env *cliEnv) *cobra.Command {
	var opts home.VerifyOptions
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Check the data on disk of a stopped node",
		Long: `Reads every key of the state on disk, recomputes the root, and compares it with the app
hash stored with the state and with that in the header of the next block. Blocks and
CometBFT's other data (data/blocks) are checked against the checksums of their files. The
node must be stopped. Nothing is changed.

Exit status 6 means that data are damaged: the message names the file or folder and
the fix.`,
		Example: `  starlingd verify
  starlingd verify --snapshots --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return offline(cmd, env, func(ctx context.Context, config *config.Config) error {
				shown := stages{env: env, unit: "keys"}
				opts.Progress = func(folder string, done, total uint64) { shown.at("reading "+folder, done, total) }
				blocks := stages{env: env, unit: bytesUnit}
				opts.BlocksProgress = func(folder string, done, total uint64) {
					shown.end()
					blocks.at("reading "+folder, done, total)
				}
				result, err := home.Verify(ctx, config, opts)
				shown.end()
				blocks.end()
				if env.JSON() {
					if wrong := writeJSON(env.Out, result); wrong != nil {
						return wrong
					}
					return err
				}
				showVerification(env, result, err)
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&opts.Snapshots, "snapshots", false, "also check the stored snapshots")
	return cmd
}

func showVerification(env *cliEnv, result home.Verification, err error) {
	switch {
	case result.Sharded:
		fmt.Fprintln(env.Out, "no state here: storage nodes keep it, and each can verify its own")
	case result.State == nil && err == nil:
		fmt.Fprintln(env.Out, "no state: the node has not committed a block, or its join was interrupted")
	}
	states := result.Snapshots
	if result.State != nil {
		states = append([]home.VerifiedState{*result.State}, states...)
	}
	for _, s := range states {
		compared := "no header to compare with"
		if s.Header > 0 {
			compared = fmt.Sprintf("matches header %d", s.Header)
		}
		fmt.Fprintf(env.Out, "good: %s: height %d, %s, %s, app hash %s, %s\n", s.Folder, s.Height, counted(s.Keys, "key"), humanize.IBytes(s.Bytes), s.AppHash, compared)
	}
	if b := result.Blocks; b != nil && b.Tables > 0 {
		fmt.Fprintf(env.Out, "good: %s: %s, %s\n", b.Folder, counted(uint64(b.Tables), "file"), humanize.IBytes(b.Bytes))
	}
}
